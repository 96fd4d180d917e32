// Sums of vectors, each by its weight, in tiles that stay in registers.

#pragma once

#include "tiles.h"

namespace {

#ifdef __AVX512F__
constexpr int SUM_ROWS = 6, SUM_VECTORS = 4;
#else
constexpr int SUM_ROWS = 6, SUM_VECTORS = 2;
#endif

// place: of whole vectors' bytes.
void store_past_caches(float *place, const Vector &vector) {
#if __has_builtin(__builtin_nontemporal_store)
    __builtin_nontemporal_store(vector, reinterpret_cast<Vector *>(place));
#elif defined(__AVX512F__)
    __builtin_ia32_movntps512(place, vector);
#else
    __builtin_ia32_movntps256(place, vector);
#endif
}

// What becomes of sums: out =, out +=, or out = in memory without a place in any cache.
enum class To { SET, ADD, MEMORY };

// V vectors' worth of numbers from d on, of each of R out, become weights (R, count) of those of `count` rows.
// AHEAD: weights, an out's one after the other, come from memory, and those of the next R out are fetched meanwhile.
template <int R, int V, To TO, bool AHEAD = false, class Out, class Rows>
void sum_tile(const float *weights, int64_t by_out, int64_t by_row, int64_t count, Rows rows, int64_t d, Out out) {
    Vector sums[R][V] = {};
    if constexpr (TO == To::ADD)
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sums[r][v] = load(out[r] + d + v * LANES);
    for (int64_t k = 0; k < count; ++k) {
        const float *row = rows[k] + d;
        if constexpr (AHEAD)
            if (k % LINE == 0)
                for (int r = 0; r < R; ++r) __builtin_prefetch(weights + (R + r) * by_out + k);
        Vector read[V];
        for (int v = 0; v < V; ++v) read[v] = load(row + v * LANES);
        for (int r = 0; r < R; ++r) {
            const float weight = weights[r * by_out + k * by_row];
            for (int v = 0; v < V; ++v) sums[r][v] += weight * read[v];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) {
            float *place = out[r] + d + v * LANES;
            if constexpr (TO == To::MEMORY)
                store_past_caches(place, sums[r][v]);
            else
                store(place, sums[r][v]);
        }
}

// V vectors' worth of numbers from d on, of `outs` out, become weights (outs, count) of those of `count` rows.
// weights: that of out o and row k is at `o * by_out + k * by_row`.
template <int V, To TO, bool AHEAD = false, class Out, class Rows>
void strip_sums(const float *weights, int64_t by_out, int64_t by_row, int64_t outs, int64_t count, Rows rows, int64_t d,
                Out out) {
    by_halves<SUM_ROWS>(outs, [&](int64_t o, auto some_outs) {
        sum_tile<some_outs(), V, TO, AHEAD>(weights + o * by_out, by_out, by_row, count, rows, d, out.from(o));
    });
}

// work(first, constant) for strips of so many vectors' worth of numbers.
template <class Work>
void by_strips(int64_t vectors, Work work) {
    by_pieces<SUM_VECTORS>(vectors, work);
}

// The numbers from d on, which are too few for a vector.
template <To TO, class Out, class Rows>
void rest_of_sums(const float *weights, int64_t by_out, int64_t by_row, int64_t outs, int64_t count, Rows rows,
                  int64_t d, Out out) {
    for (int64_t o = 0; o < outs; ++o)
        for (int64_t rest = d; rest < rows.dim; ++rest) {
            float total = TO == To::ADD ? out[o][rest] : 0;
            for (int64_t k = 0; k < count; ++k) total += weights[o * by_out + k * by_row] * rows[k][rest];
            out[o][rest] = total;
        }
}

// As `strip_sums`, of all numbers: strip by strip, which stays in the nearest cache while all out go by. `next` (ahead,
// dim) are rows that are wanted after these, and fetched in the meantime.
template <To TO, class Out, class Rows>
void weighted_sums(const float *weights, int64_t by_out, int64_t by_row, int64_t outs, int64_t count, Rows rows,
                   Out out, Rows next, int64_t ahead) {
    by_strips(rows.dim / LANES, [&](int64_t v, auto some) {
        for (int64_t k = 0; k < ahead; ++k)
            for (int place = 0; place < some() * LANES; place += LINE) __builtin_prefetch(next[k] + v * LANES + place);
        strip_sums<some(), TO>(weights, by_out, by_row, outs, count, rows, v * LANES, out);
    });
    rest_of_sums<TO>(weights, by_out, by_row, outs, count, rows, rows.dim / LANES * LANES, out);
}

// As `strip_sums`, of all numbers: out by out, as memory takes them; strip by strip, it takes twice as long.
template <To TO, class Out, class Rows>
void weighted_sums_in_order(const float *weights, int64_t by_out, int64_t by_row, int64_t outs, int64_t count,
                            Rows rows, Out out) {
    by_halves<SUM_ROWS>(outs, [&](int64_t o, auto some_outs) {
        by_strips(rows.dim / LANES, [&](int64_t v, auto some) {
            const float *own = weights + o * by_out;
            sum_tile<some_outs(), some(), TO>(own, by_out, by_row, count, rows, v * LANES, out.from(o));
        });
    });
    rest_of_sums<TO>(weights, by_out, by_row, outs, count, rows, rows.dim / LANES * LANES, out);
}

}  // namespace
