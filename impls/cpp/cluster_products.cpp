// Products of tokens with the words of their clusters. See `cluster_products.h`.
//
// A library's product of a few vectors with some hundred words takes longer than reading the words, as it copies them
// first into an order of its own, and threads that share so small a product wait for each other.

#include "cluster_products.h"

#include <limits>

#include "threads.h"
#include "tiles.h"

void cluster_scores(int threads, const float *vectors, const int64_t *row, const float *words, const Clusters &clusters,
                    const float *bias, float *scores) {
    const std::vector<Piece> pieces = pieces_of_tokens(clusters);
    const int64_t dim = clusters.dim, slots = clusters.slots;
    share_work(threads, pieces.size(), [&](int64_t number) {
        const auto [cluster, first, count] = pieces[number];
        const int64_t start = clusters.start[cluster], size = clusters.size[cluster];
        float *own = scores + first * slots;
        dots(Picked<const float>{vectors, dim, row + first}, count, {words + start * dim, dim}, size, own, slots);
        for (int64_t t = 0; t < count; ++t, own += slots) {
            if (bias)
                for (int64_t s = 0; s < size; ++s) own[s] += bias[start + s];
            std::fill(own + size, own + slots, -std::numeric_limits<float>::infinity());
        }
    });
}
