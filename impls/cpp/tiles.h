// Products of vectors with the words of a cluster, each read where it lies, in tiles of sums that stay in registers.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cluster_products.h"

namespace {

#ifdef __AVX512F__  // 32 registers: the sums of a tile, and what a step reads
constexpr int LANES = 16, DOT_TOKENS = 4, DOT_WORDS = 6;
#else  // 16 registers
constexpr int LANES = 8, DOT_TOKENS = 3, DOT_WORDS = 4;
#endif
// Whose vectors stay in the cache next to a core while a cluster's words go by; side by side they are whole strips.
constexpr int64_t TOKENS = LANES == 16 ? 64 : 48;

constexpr int LINE = 16;  // numbers that a cache fetches together

using Vector = float __attribute__((vector_size(4 * LANES)));

// From and to memory that may lie anyhow.
Vector load(const float *place) {
    Vector vector;
    std::memcpy(&vector, place, sizeof vector);
    return vector;
}
void store(float *place, const Vector &vector) { std::memcpy(place, &vector, sizeof vector); }

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

// Sums of the numbers of four vectors, in a quarter of the steps that one by one they would take.
void store_sums(const Vector &a, const Vector &b, const Vector &c, const Vector &d, float *sums) {
#ifdef __AVX512F__
    const auto two = [](__m512 x, __m512 y) { return _mm512_unpacklo_ps(x, y) + _mm512_unpackhi_ps(x, y); };
    const __m512d ab = (__m512d)two((__m512)a, (__m512)b), cd = (__m512d)two((__m512)c, (__m512)d);
    const __m512 four = (__m512)_mm512_unpacklo_pd(ab, cd) + (__m512)_mm512_unpackhi_pd(ab, cd);
    const __m256 half = _mm512_castps512_ps256(four) + (__m256)_mm512_extractf64x4_pd((__m512d)four, 1);
#else
    const auto two = [](__m256 x, __m256 y) { return _mm256_unpacklo_ps(x, y) + _mm256_unpackhi_ps(x, y); };
    const __m256d ab = (__m256d)two((__m256)a, (__m256)b), cd = (__m256d)two((__m256)c, (__m256)d);
    const __m256 half = (__m256)_mm256_unpacklo_pd(ab, cd) + (__m256)_mm256_unpackhi_pd(ab, cd);
#endif
    _mm_storeu_ps(sums, _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
}

using Integers = int32_t __attribute__((vector_size(4 * LANES)));

// e to the x, for x <= 0, to a rounding or two: 2 to the nearest whole number of x / log 2, by a polynomial for the rest.
Vector exp(Vector x) {
    const Vector lowest = Vector{} - 87.0f;  // below it float32 has no normal numbers
    x = x < lowest ? lowest : x;
    const float magic = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number
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

// Of the lanes in which one is at least the other, a bit each.
unsigned where_at_least(const Vector &one, const Vector &other) {
#ifdef __AVX512F__
    return _mm512_cmp_ps_mask((__m512)one, (__m512)other, _CMP_GE_OQ);
#else
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)one, (__m256)other, _CMP_GE_OQ));
#endif
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

// The same for pieces of MOST, then of half as many, and so on: half the programs to compile.
template <int MOST, class Work>
void by_halves(int64_t count, Work work, int64_t first = 0) {
    for (; first + MOST <= count; first += MOST) work(first, std::integral_constant<int, MOST>{});
    if constexpr (MOST > 1) by_halves<MOST / 2>(count, work, first);
}

// The same for pieces of MOST, and of one where fewer are left.
template <int MOST, class Work>
void by_pieces_or_singly(int64_t count, Work work) {
    int64_t first = 0;
    for (; first + MOST <= count; first += MOST) work(first, std::integral_constant<int, MOST>{});
    for (; first < count; ++first) work(first, std::integral_constant<int, 1>{});
}

// work(constant) with the constant that `is` is.
template <class Work>
void with_constant(bool is, Work work) {
    if (is)
        work(std::true_type{});
    else
        work(std::false_type{});
}

// The next S words are fetched in the meantime, from `ahead` on a line of each for `every` that are multiplied.
template <int T, int S, class Vectors>
void dot_tile(Vectors vectors, Dense<const float> words, int64_t ahead, int64_t every, float *scores, int64_t slots) {
    const float *own[T], *word[S], *next[S];
    for (int t = 0; t < T; ++t) own[t] = vectors[t];
    for (int s = 0; s < S; ++s) word[s] = words[s], next[s] = words[S + s];
    constexpr int COUNT = T * S;
    Vector sums[COUNT] = {};
    int64_t d = 0, wanted = 0;
    for (; d + LANES <= words.dim; d += LANES) {
        if (d == wanted) {
            for (int s = 0; s < S; ++s) __builtin_prefetch(next[s] + ahead);
            ahead += LINE, wanted += every * LINE;
        }
        Vector read[S];
        for (int s = 0; s < S; ++s) read[s] = load(word[s] + d);
        for (int t = 0; t < T; ++t) {
            const Vector vector = load(own[t] + d);
            for (int s = 0; s < S; ++s) sums[t * S + s] += vector * read[s];
        }
    }
    float total[(COUNT + 3) / 4 * 4];
    for (int some = 0; some < COUNT; some += 4) {
        const auto sum = [&](int number) { return sums[std::min(some + number, COUNT - 1)]; };
        store_sums(sum(0), sum(1), sum(2), sum(3), total + some);
    }
    for (int t = 0; t < T; ++t)
        for (int s = 0; s < S; ++s) {
            float &score = scores[t * slots + s] = total[t * S + s];
            for (int64_t rest = d; rest < words.dim; ++rest) score += own[t][rest] * word[s][rest];
        }
}

// scores (tokens, size), `slots` apart, of vectors with words. Each tile of tokens fetches its share of the next words:
// all at once, they would keep it waiting for memory, and the others would wait for no more.
template <class Vectors>
void dots(Vectors vectors, int64_t tokens, Dense<const float> words, int64_t size, float *scores, int64_t slots) {
    const int64_t tiles = (tokens + DOT_TOKENS - 1) / DOT_TOKENS, lines = (words.dim / LINE + tiles - 1) / tiles;
    by_pieces_or_singly<DOT_WORDS>(size, [&](int64_t s, auto some_words) {
        by_pieces<DOT_TOKENS>(tokens, [&](int64_t t, auto some_tokens) {
            dot_tile<some_tokens(), some_words()>(vectors.from(t), words.from(s), t / DOT_TOKENS * lines * LINE, tiles,
                                                  scores + t * slots + s, slots);
        });
    });
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

}  // namespace
