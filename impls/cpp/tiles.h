// SIMD vectors, and dot products of vectors with words, computed in register tiles.
//
// Functions in the headers of the kernels are static. Each source has a copy of its own, which the compiler can inline
// and specialize even if it is large.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cluster_products.h"

namespace vocabench {

#ifdef __AVX512F__  // 32 registers hold the sums of a tile and the operands of one step
constexpr int LANES = 16, DOT_TOKENS = 4, DOT_WORDS = 6;
#else  // 16 registers
constexpr int LANES = 8, DOT_TOKENS = 3, DOT_WORDS = 4;
#endif
// Tokens whose vectors stay in the L2 cache while the words of a cluster are read. Side by side they fill whole strips.
constexpr int64_t TOKENS = LANES == 16 ? 64 : 48;

constexpr int LINE = 16;  // floats per cache line

using Vector = float __attribute__((vector_size(4 * LANES)));

// Unaligned load and store.
static Vector load(const float *place) {
    Vector vector;
    std::memcpy(&vector, place, sizeof vector);
    return vector;
}
static void store(float *place, const Vector &vector) { std::memcpy(place, &vector, sizeof vector); }

static float sum(const Vector &vector) {
    if constexpr (LANES == 16) {
        using Half = float __attribute__((vector_size(32)));
        Half low, high;
        std::memcpy(&low, &vector, sizeof low);
        std::memcpy(&high, reinterpret_cast<const float *>(&vector) + 8, sizeof high);
        low += high;
        return ((low[0] + low[4]) + (low[1] + low[5])) + ((low[2] + low[6]) + (low[3] + low[7]));
    } else {
        return ((vector[0] + vector[4]) + (vector[1] + vector[5])) +
               ((vector[2] + vector[6]) + (vector[3] + vector[7]));
    }
}

// Store the sums of four vectors, in a quarter of the instructions that four separate sums take.
static void store_sums(const Vector &a, const Vector &b, const Vector &c, const Vector &d, float *sums) {
#ifdef __AVX512F__
    const auto add_pairs = [](__m512 x, __m512 y) { return _mm512_unpacklo_ps(x, y) + _mm512_unpackhi_ps(x, y); };
    const __m512d ab = (__m512d)add_pairs((__m512)a, (__m512)b), cd = (__m512d)add_pairs((__m512)c, (__m512)d);
    const __m512 four = (__m512)_mm512_unpacklo_pd(ab, cd) + (__m512)_mm512_unpackhi_pd(ab, cd);
    const __m256 half = _mm512_castps512_ps256(four) + (__m256)_mm512_extractf64x4_pd((__m512d)four, 1);
#else
    const auto add_pairs = [](__m256 x, __m256 y) { return _mm256_unpacklo_ps(x, y) + _mm256_unpackhi_ps(x, y); };
    const __m256d ab = (__m256d)add_pairs((__m256)a, (__m256)b), cd = (__m256d)add_pairs((__m256)c, (__m256)d);
    const __m256 half = (__m256)_mm256_unpacklo_pd(ab, cd) + (__m256)_mm256_unpackhi_pd(ab, cd);
#endif
    _mm_storeu_ps(sums, _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
}

using Integers = int32_t __attribute__((vector_size(4 * LANES)));

// e^x for x <= 0, accurate to one or two roundings: 2 to the nearest integer of x / log 2, times a polynomial.
static Vector exp(Vector x) {
    const Vector lowest = Vector{} - 87.0f;  // results below are denormal
    x = x < lowest ? lowest : x;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const Vector shifted = x * 1.44269504f + magic, whole = shifted - magic;
    const Vector rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    Vector sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    return (Vector)((Integers)sum + ((Integers)shifted << 23));
}

// Bit mask of the lanes in which `left` is at least `right`.
static unsigned where_at_least(const Vector &left, const Vector &right) {
#ifdef __AVX512F__
    return _mm512_cmp_ps_mask((__m512)left, (__m512)right, _CMP_GE_OQ);
#else
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)left, (__m256)right, _CMP_GE_OQ));
#endif
}

// Rows of `dim` elements, stored one after the other.
template <class Number>
struct Dense {
    Number *first;
    int64_t dim;
    Number *operator[](int64_t row) const { return first + row * dim; }
    Dense from(int64_t row) const { return {first + row * dim, dim}; }
};

// Rows of `dim` elements, selected by index.
template <class Number>
struct Picked {
    Number *first;
    int64_t dim;
    const int64_t *index;
    Number *operator[](int64_t row) const { return first + index[row] * dim; }
    Picked from(int64_t row) const { return {first, dim, index + row}; }
};

// Call work(constant) with `number`, which is between 1 and MOST, as a compile-time constant.
template <int MOST, class Work>
static void with_constant(int64_t number, Work work) {
    if (number == MOST) {
        work(std::integral_constant<int, MOST>{});
    } else if constexpr (MOST > 1) {
        with_constant<MOST - 1>(number, work);
    }
}

// Call work(constant) with `flag` as a compile-time constant.
template <class Work>
static void with_constant(bool flag, Work work) {
    if (flag)
        work(std::true_type{});
    else
        work(std::false_type{});
}

// Split `count` into pieces of MOST and a smaller last one, and call work(first, size) with a constant size.
template <int MOST, class Work>
static void by_pieces(int64_t count, Work work) {
    for (int64_t first = 0; first < count; first += MOST)
        with_constant<MOST>(std::min<int64_t>(MOST, count - first), [&](auto size) { work(first, size); });
}

// The same with pieces of MOST, then MOST / 2, and so on, which instantiates fewer sizes.
template <int MOST, class Work>
static void by_halves(int64_t count, Work work, int64_t first = 0) {
    for (; first + MOST <= count; first += MOST) work(first, std::integral_constant<int, MOST>{});
    if constexpr (MOST > 1) by_halves<MOST / 2>(count, work, first);
}

// The same with pieces of MOST, then of 1.
template <int MOST, class Work>
static void by_pieces_or_singly(int64_t count, Work work) {
    int64_t first = 0;
    for (; first + MOST <= count; first += MOST) work(first, std::integral_constant<int, MOST>{});
    for (; first < count; ++first) work(first, std::integral_constant<int, 1>{});
}

// Dot products of T vectors with S words. Meanwhile one cache line of each of the next S words is prefetched per
// `period` lines that are multiplied, starting at element `ahead`.
template <int T, int S, class Vectors>
static void dot_tile(Vectors vectors, Dense<const float> words, int64_t ahead, int64_t period, float *scores,
                     int64_t slots) {
    const float *vector[T], *word[S], *next[S];
    for (int t = 0; t < T; ++t) vector[t] = vectors[t];
    for (int s = 0; s < S; ++s) word[s] = words[s], next[s] = words[S + s];
    constexpr int COUNT = T * S;
    Vector sums[COUNT] = {};
    int64_t d = 0, next_prefetch = 0;
    for (; d + LANES <= words.dim; d += LANES) {
        if (d == next_prefetch) {
            for (int s = 0; s < S; ++s) __builtin_prefetch(next[s] + ahead);
            ahead += LINE, next_prefetch += period * LINE;
        }
        Vector word_part[S];
        for (int s = 0; s < S; ++s) word_part[s] = load(word[s] + d);
        for (int t = 0; t < T; ++t) {
            const Vector vector_part = load(vector[t] + d);
            for (int s = 0; s < S; ++s) sums[t * S + s] += vector_part * word_part[s];
        }
    }
    float totals[(COUNT + 3) / 4 * 4];
    for (int first = 0; first < COUNT; first += 4) {
        const auto sum = [&](int offset) { return sums[std::min(first + offset, COUNT - 1)]; };
        store_sums(sum(0), sum(1), sum(2), sum(3), totals + first);
    }
    for (int t = 0; t < T; ++t)
        for (int s = 0; s < S; ++s) {
            float &score = scores[t * slots + s] = totals[t * S + s];
            for (int64_t rest = d; rest < words.dim; ++rest) score += vector[t][rest] * word[s][rest];
        }
}

// scores (tokens, size), with rows `slots` apart: dot products of vectors with words. Each tile of tokens prefetches
// its share of the next words. If the first tile prefetched them all, it would stall on memory and the others would not
// overlap with any transfer.
template <class Vectors>
static void dots(Vectors vectors, int64_t tokens, Dense<const float> words, int64_t size, float *scores,
                 int64_t slots) {
    const int64_t tiles = (tokens + DOT_TOKENS - 1) / DOT_TOKENS, lines = (words.dim / LINE + tiles - 1) / tiles;
    by_pieces_or_singly<DOT_WORDS>(size, [&](int64_t s, auto word_count) {
        by_pieces<DOT_TOKENS>(tokens, [&](int64_t t, auto token_count) {
            dot_tile<token_count(), word_count()>(vectors.from(t), words.from(s), t / DOT_TOKENS * lines * LINE, tiles,
                                                  scores + t * slots + s, slots);
        });
    });
}

// A block of tokens or words of one cluster.
struct Piece {
    int64_t cluster, first, count;
};

static std::vector<Piece> pieces_of_tokens(const Clusters &clusters) {
    std::vector<Piece> pieces;
    for (int64_t cluster = 0, first = 0; cluster < clusters.count; ++cluster)
        for (; first < clusters.end[cluster]; first += pieces.back().count)
            pieces.push_back({cluster, first, std::min<int64_t>(TOKENS, clusters.end[cluster] - first)});
    return pieces;
}

}  // namespace vocabench
