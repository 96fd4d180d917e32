// Products of tokens with the words of their clusters, and the gradients of these. See `cluster_products.h`.
//
// A library's product of a few vectors with some hundred words takes longer than reading the words, as it copies them
// first into an order of its own. Here each is read where it lies, once a block of tokens, into tiles of sums that stay
// in registers.

#include "cluster_products.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>
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

// Vectors one after the other.
template <class Number>
struct Dense {
    Number *first;
    int64_t dim;
    Number *operator[](int64_t number) const { return first + number * dim; }
    Dense from(int64_t number) const { return {first + number * dim, dim}; }
};

// Vectors in an order of their own.
template <class Number>
struct Picked {
    Number *first;
    int64_t dim;
    const int64_t *place;
    Number *operator[](int64_t number) const { return first + place[number] * dim; }
    Picked from(int64_t number) const { return {first, dim, place + number}; }
};

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

// The same for pieces of MOST, and of one where fewer are left: half the programs to compile.
template <int MOST, class Work>
void by_pieces_or_singly(int64_t count, Work work) {
    int64_t first = 0;
    for (; first + MOST <= count; first += MOST) work(first, std::integral_constant<int, MOST>{});
    for (; first < count; ++first) work(first, std::integral_constant<int, 1>{});
}

// scores (T, S), `slots` apart, of T vectors with S words.
template <int T, int S>
void dot_tile(Picked<const float> vectors, Dense<const float> words, float *scores, int64_t slots) {
    const float *own[T], *word[S], *next[S];
    for (int t = 0; t < T; ++t) own[t] = vectors[t];
    for (int s = 0; s < S; ++s) word[s] = words[s], next[s] = words[S + s];
    Vector sums[T][S] = {};
    int64_t d = 0;
    for (; d + LANES <= words.dim; d += LANES) {
        Vector read[S];
        for (int s = 0; s < S; ++s) {
            read[s] = at(word[s] + d);
            __builtin_prefetch(next[s] + d);
        }
        for (int t = 0; t < T; ++t) {
            const Vector vector = at(own[t] + d);
            for (int s = 0; s < S; ++s) sums[t][s] += vector * read[s];
        }
    }
    for (int t = 0; t < T; ++t)
        for (int s = 0; s < S; ++s) {
            float total = sum(sums[t][s]);
            for (int64_t rest = d; rest < words.dim; ++rest) total += own[t][rest] * word[s][rest];
            scores[t * slots + s] = total;
        }
}

void dots(Picked<const float> vectors, int64_t tokens, Dense<const float> words, int64_t size, float *scores,
          int64_t slots) {
    by_pieces_or_singly<DOT_WORDS>(size, [&](int64_t s, auto some_words) {
        by_pieces<DOT_TOKENS>(tokens, [&](int64_t t, auto some_tokens) {
            dot_tile<some_tokens(), some_words()>(vectors.from(t), words.from(s), scores + t * slots + s, slots);
        });
    });
}

// What becomes of sums: out =, out +=, or out = in memory without a place in any cache.
enum class To { SET, ADD, MEMORY };

// V vectors' worth of numbers from d on, of each of R out, become weights (R, count) of those of `count` rows.
template <int R, int V, To TO, class Out, class Rows>
void sum_tile(const float *weights, int64_t by_out, int64_t by_row, int64_t count, Rows rows, int64_t d, Out out) {
    Vector sums[R][V] = {};
    if constexpr (TO == To::ADD)
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sums[r][v] = at(out[r] + d + v * LANES);
    for (int64_t k = 0; k < count; ++k) {
        const float *row = rows[k] + d;
        Vector read[V];
        for (int v = 0; v < V; ++v) read[v] = at(row + v * LANES);
        for (int r = 0; r < R; ++r) {
            const float weight = weights[r * by_out + k * by_row];
            for (int v = 0; v < V; ++v) sums[r][v] += weight * read[v];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) {
            float *place = out[r] + d + v * LANES;
            if constexpr (TO == To::MEMORY)
                STORE_PAST_CACHE(place, sums[r][v]);
            else
                at(place) = sums[r][v];
        }
}

// `outs` out become weights (outs, count) of `count` rows.
// weights: that of out o and row k is at `o * by_out + k * by_row`.
template <To TO, class Out, class Rows>
void weighted_sums(const float *weights, int64_t by_out, int64_t by_row, int64_t outs, int64_t count, Rows rows, Out out) {
    by_pieces<SUM_ROWS>(outs, [&](int64_t o, auto some_outs) {
        by_pieces_or_singly<SUM_VECTORS>(rows.dim / LANES, [&](int64_t v, auto some_vectors) {
            sum_tile<some_outs(), some_vectors(), TO>(weights + o * by_out, by_out, by_row, count, rows, v * LANES,
                                                      out.from(o));
        });
    });
    for (int64_t o = 0; o < outs; ++o)
        for (int64_t d = rows.dim / LANES * LANES; d < rows.dim; ++d) {
            float total = TO == To::ADD ? out[o][d] : 0;
            for (int64_t k = 0; k < count; ++k) total += weights[o * by_out + k * by_row] * rows[k][d];
            out[o][d] = total;
        }
}

struct Piece {
    int64_t cluster, first, count;  // tokens or rows of words
};

std::vector<Piece> pieces_of_tokens(const Clusters &clusters) {
    std::vector<Piece> pieces;
    for (int64_t cluster = 0, first = 0; cluster < clusters.count; ++cluster)
        for (; first < clusters.end[cluster]; first += pieces.back().count)
            pieces.push_back({cluster, first, std::min<int64_t>(TOKENS, clusters.end[cluster] - first)});
    return pieces;
}

std::vector<Piece> pieces_of_words(const Clusters &clusters) {
    std::vector<Piece> pieces;
    for (int64_t cluster = 0; cluster < clusters.count; ++cluster)
        for (int64_t first = 0, size = clusters.size[cluster]; first < size; first += 2 * WORDS)
            pieces.push_back({cluster, first, std::min<int64_t>(2 * WORDS, size - first)});
    return pieces;
}

// work(number) for each number below `count`, by so many threads: OpenMP's, which a framework has already, or new ones.
template <class Work>
void share(int threads, int64_t count, Work work) {
    std::atomic<int64_t> next{0};
    const auto some = [&] {
        for (int64_t number; (number = next++) < count;) work(number);
        __builtin_ia32_sfence();  // what went past the caches is there before the threads meet
    };
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    some();
#else
    std::vector<std::thread> others;
    try {
        for (int64_t other = 1; other < std::min<int64_t>(threads, count); ++other) others.emplace_back(some);
    } catch (const std::system_error &) {  // the system has no more of them: those that there are do it
    }
    some();
    for (std::thread &other : others) other.join();
#endif
}

}  // namespace

void cluster_scores(int threads, const float *vectors, const int64_t *row, const float *words, const Clusters &clusters,
                    const float *bias, float *scores) {
    const std::vector<Piece> pieces = pieces_of_tokens(clusters);
    const int64_t dim = clusters.dim, slots = clusters.slots;
    share(threads, pieces.size(), [&](int64_t number) {
        const auto [cluster, first, count] = pieces[number];
        const int64_t start = clusters.start[cluster], size = clusters.size[cluster];
        float *own = scores + first * slots;
        dots({vectors, dim, row + first}, count, {words + start * dim, dim}, size, own, slots);
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
            const int64_t some = std::min(WORDS, size - s);
            if (s == 0)
                weighted_sums<To::SET>(weights, slots, 1, count, some, own, out);
            else
                weighted_sums<To::ADD>(weights + s, slots, 1, count, some, own.from(s), out);
        }
    };
    const auto by_words = [&](const Piece &piece) {
        const auto [cluster, first, count] = piece;
        const int64_t token = cluster ? clusters.end[cluster - 1] : 0, tokens = clusters.end[cluster] - token;
        const float *weights = dscores + token * slots + first;
        const Picked<const float> own{vectors, dim, row + token};  // where there is none, sums of nothing are zeros
        const Dense<float> out{dwords + (clusters.start[cluster] + first) * dim, dim};
        if (aligned)
            weighted_sums<To::MEMORY>(weights, 1, slots, count, tokens, own, out);
        else
            weighted_sums<To::SET>(weights, 1, slots, count, tokens, own, out);
    };
    share(threads, of_tokens.size() + of_words.size(), [&](int64_t number) {
        if (number < first_of_words)
            by_vectors(of_tokens[number]);
        else
            by_words(of_words[number - first_of_words]);
    });
}
