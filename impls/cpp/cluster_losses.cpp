// See `cluster_losses.h`.
//
// For large vocabularies most of the time is spent on reading and writing words. Therefore the pass that scores a
// cluster also computes the gradients with respect to the vectors, while its words are in a cache, and the pass that
// writes the gradients with respect to the words does not read the words.

#include "cluster_losses.h"

#include <cmath>
#include <limits>

#include "strips.h"
#include "threads.h"

namespace vocabench {

namespace {

// Probabilities below count as 0. These are words that are ruled out, for which `exp` returns 1.6e-38, and denormal
// numbers, which would make products many times slower.
constexpr float LEAST = 4e-38f;
constexpr int64_t WORDS = 32;  // words whose vectors stay in the L2 cache while the tokens are processed

// Returns the loss of a word from its `size` scores and replaces these by their gradients. There must be memory for
// whole vectors of scores.
float loss_of(float *scores, int64_t size, const float *bias, int64_t word) {
    const int64_t width = whole_lanes(size);
    if (bias)
        for (int64_t s = 0; s < size; ++s) scores[s] += bias[s];
    std::fill(scores + size, scores + width, std::numeric_limits<float>::lowest());
    Vector highest = load(scores);
    for (int64_t s = LANES; s < width; s += LANES) {
        const Vector part = load(scores + s);
        highest = part > highest ? part : highest;
    }
    float most = highest[0];
    for (int lane = 1; lane < LANES; ++lane) most = highest[lane] > most ? highest[lane] : most;
    const float below = scores[word] - most;
    Vector sums = {};
    for (int64_t s = 0; s < width; s += LANES) {
        const Vector exponential = exp(load(scores + s) - most);
        store(scores + s, exponential);
        sums += exponential;
    }
    const float total = sum(sums), share = 1 / total;
    for (int64_t s = 0; s < width; s += LANES) {
        const Vector probability = load(scores + s) * share;
        store(scores + s, probability < Vector{} + LEAST ? Vector{} : probability);
    }
    scores[word] -= 1;
    return std::log(total) - below;
}

struct Scores {};
struct Weighted {};

}  // namespace

void cluster_losses(int threads, const float *vectors, const int64_t *row, const int32_t *slot, const float *words,
                    const Clusters &clusters, const float *bias, float *losses, float *excess, float *dvectors) {
    const std::vector<Piece> pieces = pieces_of_tokens(clusters);
    const int64_t dim = clusters.dim, slots = clusters.slots, width = whole_lanes(slots);
    share_work(threads, pieces.size(), [&](int64_t piece) {
        const auto [cluster, first, count] = pieces[piece];
        const int64_t start = clusters.start[cluster], size = clusters.size[cluster];
        const Dense<const float> cluster_words{words + start * dim, dim};
        float *scores = scratch<Scores>(TOKENS * width);
        dots(Picked<const float>{vectors, dim, row + first}, count, cluster_words, size, scores, width);
        for (int64_t t = 0; t < count; ++t) {
            const int32_t word = slot[first + t];
            if (0 <= word && word < size) {
                losses[first + t] = loss_of(scores + t * width, size, bias ? bias + start : nullptr, word);
            } else {
                losses[first + t] = std::numeric_limits<float>::quiet_NaN();
                std::fill_n(scores + t * width, width, 0.0f);
            }
        }
        if (!excess) return;

        for (int64_t t = 0; t < count; ++t) {
            float *place = excess + (first + t) * slots;
            std::fill(std::copy_n(scores + t * width, size, place), place + slots, 0.0f);
        }
        const Picked<float> out{dvectors, dim, row + first};
        if (!size)
            for (int64_t t = 0; t < count; ++t) std::fill_n(out[t], dim, 0.0f);
        // The last words come first, because they are still in the nearest caches.
        for (int64_t end = size, s; end > 0; end = s) {
            s = std::max<int64_t>(0, end - WORDS);
            const int64_t ahead = std::min(WORDS, s);
            const Dense<const float> block = cluster_words.from(s), next = cluster_words.from(s - ahead);
            if (end == size)
                weighted_sums<To::SET>(scores + s, width, 1, count, end - s, block, out, next, ahead);
            else
                weighted_sums<To::ADD>(scores + s, width, 1, count, end - s, block, out, next, ahead);
        }
    });
}

void cluster_gradients(int threads, const float *vectors, const int64_t *row, const Clusters &clusters,
                       const float *excess, const float *weight, float *dwords, float *dbias) {
    std::vector<Piece> pieces;
    for (int64_t cluster = 0; cluster < clusters.count; ++cluster)
        for (int64_t first = 0, size = clusters.size[cluster]; first < size; first += 2 * WORDS)
            pieces.push_back({cluster, first, std::min<int64_t>(2 * WORDS, size - first)});
    const int64_t dim = clusters.dim, slots = clusters.slots;
    const bool aligned = (reinterpret_cast<uintptr_t>(dwords) | dim * sizeof(float)) % sizeof(Vector) == 0;
    share_work(threads, pieces.size(), [&](int64_t piece) {
        const auto [cluster, first, count] = pieces[piece];
        const int64_t token = cluster ? clusters.end[cluster - 1] : 0, tokens = clusters.end[cluster] - token;
        float *weights = scratch<Weighted>(tokens * count), *place = weights;
        for (int64_t t = token; t < token + tokens; ++t)
            for (int64_t s = first; s < first + count; ++s) *place++ = weight[t] * excess[t * slots + s];
        const int64_t word = clusters.start[cluster] + first;
        const Picked<const float> token_vectors{vectors, dim, row + token};  // without tokens the sums are zeros
        const Dense<float> out{dwords + word * dim, dim};
        if (aligned)
            weighted_sums_in_order<To::MEMORY>(weights, 1, count, count, tokens, token_vectors, out);
        else
            weighted_sums_in_order<To::SET>(weights, 1, count, count, tokens, token_vectors, out);
        if (!dbias) return;
        std::fill_n(dbias + word, count, 0.0f);
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t s = 0; s < count; ++s) dbias[word + s] += weights[t * count + s];
    });
}

}  // namespace vocabench
