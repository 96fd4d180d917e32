// See `weight_gradient.h`. Libraries copy one factor or both first, as neither lies as their products read it: by blocks
// of tokens, which stay in the cache next to a core, both are read where they lie.

#include "weight_gradient.h"

#include "sums.h"
#include "threads.h"

namespace {

constexpr int64_t BLOCK = 256;  // tokens

}  // namespace

void weight_gradient(int threads, const float *dscores, const float *vectors, int64_t tokens, int64_t count, int64_t dim,
                     float *dwords) {
    // As many words for each thread, in whole tiles.
    const int64_t tiles = (count + SUM_ROWS - 1) / SUM_ROWS, height = (tiles + threads - 1) / threads * SUM_ROWS;
    share_work(threads, (count + height - 1) / height, [&](int64_t number) {
        const int64_t first = number * height, some = std::min(height, count - first);
        const float *weights = dscores + first;
        const Dense<float> out{dwords + first * dim, dim};
        for (int64_t token = 0; token < tokens; token += BLOCK, weights += BLOCK * count) {
            const Dense<const float> block{vectors + token * dim, dim};
            const int64_t these = std::min(BLOCK, tokens - token);
            if (token == 0)
                weighted_sums<To::SET>(weights, 1, count, some, these, block, out, block, 0);
            else
                weighted_sums<To::ADD>(weights, 1, count, some, these, block, out, block, 0);
        }
        if (tokens == 0) std::fill_n(out.first, some * dim, 0.0f);
    });
}
