// See `weight_gradient.h`. Libraries copy one or both factors first, because neither has the layout that their products
// need. Here both are read in place, in blocks of tokens that stay in the L2 cache.

#include "weight_gradient.h"

#include "sums.h"
#include "threads.h"

namespace vocabench {

namespace {

constexpr int64_t BLOCK = 256;  // tokens

}  // namespace

void weight_gradient(int threads, const float *dscores, const float *vectors, int64_t tokens, int64_t count,
                     int64_t dim, float *dwords) {
    if (!count) return;
    // The same number of words for each thread, in whole tiles.
    const int64_t tiles = (count + SUM_ROWS - 1) / SUM_ROWS, height = (tiles + threads - 1) / threads * SUM_ROWS;
    share_work(threads, (count + height - 1) / height, [&](int64_t piece) {
        const int64_t first = piece * height, size = std::min(height, count - first);
        const float *weights = dscores + first;
        const Dense<float> out{dwords + first * dim, dim};
        for (int64_t token = 0; token < tokens; token += BLOCK, weights += BLOCK * count) {
            const Dense<const float> block{vectors + token * dim, dim};
            const int64_t block_tokens = std::min(BLOCK, tokens - token);
            if (token == 0)
                weighted_sums<To::SET>(weights, 1, count, size, block_tokens, block, out, block, 0);
            else
                weighted_sums<To::ADD>(weights, 1, count, size, block_tokens, block, out, block, 0);
        }
        if (tokens == 0) std::fill_n(out.first, size * dim, 0.0f);
    });
}

}  // namespace vocabench
