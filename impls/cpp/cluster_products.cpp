// See `cluster_products.h`.
//
// The matrix product of a library takes longer than reading the words when a few vectors meet some hundred words: it
// first copies both into a layout of its own, and threads that share such a small product wait for each other.

#include "cluster_products.h"

#include <limits>

#include "threads.h"
#include "tiles.h"

namespace vocabench {

void cluster_scores(int threads, const float *vectors, const int64_t *row, const float *words, const Clusters &clusters,
                    const float *bias, float *scores) {
    const std::vector<Piece> pieces = pieces_of_tokens(clusters);
    const int64_t dim = clusters.dim, slots = clusters.slots;
    share_work(threads, pieces.size(), [&](int64_t piece) {
        const auto [cluster, first, count] = pieces[piece];
        const int64_t start = clusters.start[cluster], size = clusters.size[cluster];
        float *token_scores = scores + first * slots;
        dots(Picked<const float>{vectors, dim, row + first}, count, {words + start * dim, dim}, size, token_scores,
             slots);
        for (int64_t t = 0; t < count; ++t, token_scores += slots) {
            if (bias)
                for (int64_t s = 0; s < size; ++s) token_scores[s] += bias[start + s];
            std::fill(token_scores + size, token_scores + slots, -std::numeric_limits<float>::infinity());
        }
    });
}

}  // namespace vocabench
