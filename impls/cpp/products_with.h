// Dot products of one vector with a few others at arbitrary addresses.

#pragma once

#include "tiles.h"

namespace vocabench {

// scores (S,): the S others are read side by side, so that their cache misses overlap.
template <int S>
static void products_with(const float *vector, const float *const *others, int64_t dim, float *scores) {
    Vector sums[S][2] = {};  // two accumulators each, because one would be bound by latency
    int64_t d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES)
        for (int half = 0; half < 2; ++half)
            for (int s = 0; s < S; ++s)
                sums[s][half] += load(vector + d + half * LANES) * load(others[s] + d + half * LANES);
    for (int s = 0; s < S; ++s) {
        scores[s] = sum(sums[s][0] + sums[s][1]);
        for (int64_t rest = d; rest < dim; ++rest) scores[s] += vector[rest] * others[s][rest];
    }
}

}  // namespace vocabench
