// Products of a vector with a few others, wherever these lie.

#pragma once

#include "tiles.h"

namespace {

// scores (S,): the others are read side by side, so that memory is waited for once.
template <int S>
void products_with(const float *vector, const float *const *others, int64_t dim, float *scores) {
    Vector sums[S][2] = {};  // two of each, for one would be waited for
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

}  // namespace
