// Products of tokens with the words of their clusters, and the gradients of these. See `_cpp.py`.
//
// A library's product of a few vectors with some hundred words takes longer than reading the words, as it copies them
// first into an order of its own. Here each is read where it lies, once a block of tokens, into tiles of sums that stay
// in registers. All arrays are float32 and dense; dim is a multiple of LANES.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace {

#ifdef __AVX512F__  // 32 registers: the sums of a tile, and what a step reads
constexpr int LANES = 16, DOT_TOKENS = 4, DOT_WORDS = 6, SUM_ROWS = 6, SUM_VECTORS = 4;
#define STORE_PAST_CACHE __builtin_ia32_movntps512
#else  // 16 registers
constexpr int LANES = 8, DOT_TOKENS = 3, DOT_WORDS = 4, SUM_ROWS = 3, SUM_VECTORS = 4;
#define STORE_PAST_CACHE __builtin_ia32_movntps256
#endif
constexpr int64_t TOKENS = 48;  // whose vectors stay in the cache next to a core while a cluster's words go by
constexpr int64_t WORDS = 32;   // whose vectors do so while the tokens go by; of a gradient's piece twice as many

using Vector = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

Vector &at(float *place) { return *reinterpret_cast<Vector *>(place); }
const Vector &at(const float *place) { return *reinterpret_cast<const Vector *>(place); }

float sum(const Vector &vector) {
    if constexpr (LANES == 16) {
        using Half = float __attribute__((vector_size(32)));
        Half low, high;
        std::memcpy(&low, &vector, sizeof low);
        std::memcpy(&high, reinterpret_cast<const float *>(&vector) + 8, sizeof high);
        low += high;
        return ((low[0] + low[4]) + (low[1] + low[5])) + ((low[2] + low[6]) + (low[3] + low[7]));
    } else {
        return ((vector[0] + vector[4]) + (vector[1] + vector[5])) + ((vector[2] + vector[6]) + (vector[3] + vector[7]));
    }
}

// work(constant) with the constant of 1 to MOST that `number` is.
template <int MOST, class Work>
void with_constant(int64_t number, Work work) {
    if (number == MOST) {
        work(std::integral_constant<int, MOST>{});
    } else if constexpr (MOST > 1) {
        with_constant<MOST - 1>(number, work);
    }
}

// work(first, constant) for pieces of at most MOST of `count`.
template <int MOST, class Work>
void by_pieces(int64_t count, Work work) {
    for (int64_t first = 0; first < count; first += MOST)
        with_constant<MOST>(std::min<int64_t>(MOST, count - first), [&](auto piece) { work(first, piece); });
}

// scores (T, S), rows `stride` apart, of vectors (T, dim) with words (S, dim).
template <int T, int S>
void dot_tile(const float *vectors, const float *words, int64_t dim, float *scores, int64_t stride) {
    Vector sums[T][S] = {};
    for (int64_t d = 0; d < dim; d += LANES) {
        Vector read[S];
        for (int s = 0; s < S; ++s) {
            read[s] = at(words + s * dim + d);
            __builtin_prefetch(words + (s + S) * dim + d);
        }
        for (int t = 0; t < T; ++t) {
            const Vector own = at(vectors + t * dim + d);
            for (int s = 0; s < S; ++s) sums[t][s] += own * read[s];
        }
    }
    for (int t = 0; t < T; ++t)
        for (int s = 0; s < S; ++s) scores[t * stride + s] = sum(sums[t][s]);
}

void dots(const float *vectors, int64_t tokens, const float *words, int64_t size, int64_t dim, float *scores,
          int64_t stride) {
    by_pieces<DOT_WORDS>(size, [&](int64_t s, auto some_words) {
        by_pieces<DOT_TOKENS>(tokens, [&](int64_t t, auto some_tokens) {
            dot_tile<some_tokens(), some_words()>(vectors + t * dim, words + s * dim, dim, scores + t * stride + s, stride);
        });
    });
}

// What becomes of sums: out =, out +=, or out = in memory without a place in any cache.
enum class To { SET, ADD, MEMORY };

// out (R, V vectors) becomes weights (R, count) of rows (count, V vectors); those of out and of rows are `dim` apart.
template <int R, int V, To TO>
void sum_tile(const float *weights, int64_t by_out, int64_t by_row, int64_t count, const float *rows, int64_t dim,
              float *out) {
    Vector sums[R][V] = {};
    if constexpr (TO == To::ADD)
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sums[r][v] = at(out + r * dim + v * LANES);
    for (int64_t k = 0; k < count; ++k) {
        Vector read[V];
        for (int v = 0; v < V; ++v) read[v] = at(rows + k * dim + v * LANES);
        for (int r = 0; r < R; ++r) {
            const float weight = weights[r * by_out + k * by_row];
            for (int v = 0; v < V; ++v) sums[r][v] += weight * read[v];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) {
            float *place = out + r * dim + v * LANES;
            if constexpr (TO == To::MEMORY)
                STORE_PAST_CACHE(place, sums[r][v]);
            else
                at(place) = sums[r][v];
        }
}

// out (outs, dim) becomes weights (outs, count) of rows (count, dim).
// weights: that of out o and row k is at `o * by_out + k * by_row`.
template <To TO>
void weighted_sums(const float *weights, int64_t by_out, int64_t by_row, int64_t outs, int64_t count, const float *rows,
                   int64_t dim, float *out) {
    by_pieces<SUM_ROWS>(outs, [&](int64_t o, auto some_outs) {
        by_pieces<SUM_VECTORS>(dim / LANES, [&](int64_t v, auto some_vectors) {
            const int64_t d = v * LANES;
            sum_tile<some_outs(), some_vectors(), TO>(weights + o * by_out, by_out, by_row, count, rows + d, dim,
                                                      out + o * dim + d);
        });
    });
}

struct Piece {
    int64_t cluster, first, count;  // tokens or rows of words
};

std::vector<Piece> pieces_of_tokens(const int32_t *end, int64_t clusters) {
    std::vector<Piece> pieces;
    for (int64_t cluster = 0, first = 0; cluster < clusters; ++cluster)
        for (; first < end[cluster]; first += pieces.back().count)
            pieces.push_back({cluster, first, std::min<int64_t>(TOKENS, end[cluster] - first)});
    return pieces;
}

std::vector<Piece> pieces_of_words(const int64_t *size, int64_t clusters) {
    std::vector<Piece> pieces;
    for (int64_t cluster = 0; cluster < clusters; ++cluster)
        for (int64_t first = 0; first < size[cluster]; first += 2 * WORDS)
            pieces.push_back({cluster, first, std::min<int64_t>(2 * WORDS, size[cluster] - first)});
    return pieces;
}

}  // namespace

extern "C" {

// scores (N, slots) of tokens' vectors (N, dim), sorted by cluster, with the words of their clusters.
// words (F, dim): a cluster's are `size` rows from `start` on. end: one past each cluster's last token.
// What lies beyond a cluster's size is left as it is.
void cluster_scores(int threads, const float *vectors, const float *words, const int64_t *start, const int64_t *size,
                    const int32_t *end, int64_t clusters, int64_t dim, int64_t slots, float *scores) {
    const std::vector<Piece> pieces = pieces_of_tokens(end, clusters);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (size_t p = 0; p < pieces.size(); ++p) {
        const auto [cluster, first, count] = pieces[p];
        dots(vectors + first * dim, count, words + start[cluster] * dim, size[cluster], dim, scores + first * slots, slots);
    }
}

// dvectors (N, dim) and dwords (F, dim), the gradients of `cluster_scores` by its vectors and words, from dscores
// (N, slots). Rows of dwords, which begins at a multiple of 64 bytes, that are no cluster's are left as they are.
void cluster_gradients(int threads, const float *dscores, const float *vectors, const float *words,
                       const int64_t *start, const int64_t *size, const int32_t *end, int64_t clusters, int64_t dim,
                       int64_t slots, float *dvectors, float *dwords) {
    const std::vector<Piece> of_tokens = pieces_of_tokens(end, clusters), of_words = pieces_of_words(size, clusters);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic) nowait
        for (size_t p = 0; p < of_tokens.size(); ++p) {
            const auto [cluster, first, count] = of_tokens[p];
            const float *weights = dscores + first * slots, *rows = words + start[cluster] * dim;
            for (int64_t s = 0; s < size[cluster]; s += WORDS) {
                const auto sums = s ? weighted_sums<To::ADD> : weighted_sums<To::SET>;
                sums(weights + s, slots, 1, count, std::min(WORDS, size[cluster] - s), rows + s * dim, dim, dvectors + first * dim);
            }
        }
#pragma omp for schedule(dynamic) nowait
        for (size_t p = 0; p < of_words.size(); ++p) {
            const auto [cluster, first, count] = of_words[p];
            const int64_t token = cluster ? end[cluster - 1] : 0, tokens = end[cluster] - token;  // none: sums of nothing
            weighted_sums<To::MEMORY>(dscores + token * slots + first, 1, slots, count, tokens, vectors + token * dim, dim,
                                      dwords + (start[cluster] + first) * dim);
        }
        __builtin_ia32_sfence();  // what went past the caches is there before the threads meet
    }
}
}
