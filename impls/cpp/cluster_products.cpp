// Products of tokens with the words of their clusters, and the gradients of these. See `cluster_products.h`.
//
// A library's product of a few vectors with some hundred words takes longer than reading the words, as it copies them
// first into an order of its own, and threads that share so small a product wait for each other.

#include "cluster_products.h"

#include <limits>

#include "sums.h"
#include "threads.h"
#include "tiles.h"

namespace {

// Words whose vectors stay in the cache next to a core while the tokens go by; of a gradient's piece twice as many.
constexpr int64_t WORDS = 32;

std::vector<Piece> pieces_of_words(const Clusters &clusters) {
    std::vector<Piece> pieces;
    for (int64_t cluster = 0; cluster < clusters.count; ++cluster)
        for (int64_t first = 0, size = clusters.size[cluster]; first < size; first += 2 * WORDS)
            pieces.push_back({cluster, first, std::min<int64_t>(2 * WORDS, size - first)});
    return pieces;
}

}  // namespace

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

void cluster_gradients(int threads, const float *vectors, const int64_t *row, const float *words,
                       const Clusters &clusters, const float *dscores, float *dvectors, float *dwords) {
    const std::vector<Piece> of_tokens = pieces_of_tokens(clusters), of_words = pieces_of_words(clusters);
    const int64_t dim = clusters.dim, slots = clusters.slots, first_of_words = of_tokens.size();
    const bool aligned = (reinterpret_cast<uintptr_t>(dwords) | dim * sizeof(float)) % sizeof(Vector) == 0;

    const auto by_vectors = [&](const Piece &piece) {
        const auto [cluster, first, count] = piece;
        const int64_t size = clusters.size[cluster];
        const float *weights = dscores + first * slots;
        const Dense<const float> own{words + clusters.start[cluster] * dim, dim};
        const Picked<float> out{dvectors, dim, row + first};
        for (int64_t s = 0; s < size; s += WORDS) {
            const int64_t some = std::min(WORDS, size - s), ahead = std::min(WORDS, size - s - some);
            const Dense<const float> these = own.from(s), next = own.from(s + some);
            if (s == 0)
                weighted_sums<To::SET>(weights, slots, 1, count, some, these, out, next, ahead);
            else
                weighted_sums<To::ADD>(weights + s, slots, 1, count, some, these, out, next, ahead);
        }
    };
    const auto by_words = [&](const Piece &piece) {
        const auto [cluster, first, count] = piece;
        const int64_t token = cluster ? clusters.end[cluster - 1] : 0, tokens = clusters.end[cluster] - token;
        const float *weights = dscores + token * slots + first;
        const Picked<const float> own{vectors, dim, row + token};  // where there is none, sums of nothing are zeros
        const Dense<float> out{dwords + (clusters.start[cluster] + first) * dim, dim};
        if (aligned)
            weighted_sums_in_order<To::MEMORY>(weights, 1, slots, count, tokens, own, out);
        else
            weighted_sums_in_order<To::SET>(weights, 1, slots, count, tokens, own, out);
    };
    share_work(threads, of_tokens.size() + of_words.size(), [&](int64_t number) {
        if (number < first_of_words)
            by_vectors(of_tokens[number]);
        else
            by_words(of_words[number - first_of_words]);
    });
}
