// Conversion of scores to log-probabilities.

#pragma once

#include <cmath>

#include "tiles.h"

namespace vocabench {

// Replaces `size` scores by their log softmax plus `added`.
static void log_softmax(float *scores, int64_t size, float added) {
    float highest = scores[0];
    for (int64_t s = 1; s < size; ++s) highest = std::max(highest, scores[s]);
    Vector sums = {};
    int64_t s = 0;
    for (; s + LANES <= size; s += LANES) sums += exp(load(scores + s) - highest);
    float total = sum(sums);
    for (; s < size; ++s) total += std::exp(scores[s] - highest);
    const float shift = added - highest - std::log(total);
    for (s = 0; s < size; ++s) scores[s] += shift;
}

}  // namespace vocabench
