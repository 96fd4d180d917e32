// Logarithms of the probabilities with which a way down a tree turns left or right.

#pragma once

#include <cmath>

#include "tiles.h"

namespace {

// log(1 + u), for 0 <= u <= 1, to a rounding or two: of half as much where that is nearer to 1, by a polynomial.
Vector log_above_one(Vector u) {
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

// log sigma(score) and log sigma(-score), of one number or of a vector's.
template <class Number>
struct Turns {
    Number left, right;
};

Turns<Vector> log_turns(const Vector &score) {
    const Vector zero = {};
    const Vector both = log_above_one(exp(score < zero ? score : -score));  // of what they have in common
    return {(score < zero ? score : zero) - both, (score < zero ? zero : -score) - both};
}

Turns<float> log_turns(float score) {
    const float both = std::log1p(std::exp(-std::abs(score)));
    return {std::min(score, 0.0f) - both, std::min(-score, 0.0f) - both};
}

}  // namespace
