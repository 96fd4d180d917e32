// Log-probabilities of turning left or right at the node of a tree.

#pragma once

#include <cmath>

#include "tiles.h"

namespace vocabench {

// log(1 + u) for 0 <= u <= 1, accurate to one or two roundings. Arguments nearer to 1 are halved first; the rest is a
// polynomial.
static Vector log_above_one(Vector u) {
    const auto halved = u > Vector{} + 0.41421356f;
    u = halved ? u * 0.5f - 0.5f : u;
    Vector sum = u * 7.0376836292e-2f - 1.1514610310e-1f;
    sum = sum * u + 1.1676998740e-1f;
    sum = sum * u - 1.2420140846e-1f;
    sum = sum * u + 1.4249322787e-1f;
    sum = sum * u - 1.6668057665e-1f;
    sum = sum * u + 2.0000714765e-1f;
    sum = sum * u - 2.4999993993e-1f;
    sum = sum * u + 3.3333331174e-1f;
    const Vector square = u * u;
    const Vector log = (sum * u - 0.5f) * square + u;
    return halved ? log + 0.693147181f : log;
}

// log sigma(score) and log sigma(-score), for one score or one per lane.
template <class Number>
struct Turns {
    Number left, right;
};

static Turns<Vector> log_turns(const Vector &score) {
    const Vector zero = {};
    const Vector common = log_above_one(exp(score < zero ? score : -score));
    return {(score < zero ? score : zero) - common, (score < zero ? zero : -score) - common};
}

static Turns<float> log_turns(float score) {
    const float common = std::log1p(std::exp(-std::abs(score)));
    return {std::min(score, 0.0f) - common, std::min(-score, 0.0f) - common};
}

}  // namespace vocabench
