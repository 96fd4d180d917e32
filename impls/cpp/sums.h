// Weighted sums of vectors, computed in register tiles.

#pragma once

#include "tiles.h"

namespace vocabench {

#ifdef __AVX512F__
constexpr int SUM_ROWS = 6, SUM_VECTORS = 4;
#else
constexpr int SUM_ROWS = 6, SUM_VECTORS = 2;
#endif

// Stores a vector without a place in any cache. `place` must be aligned to a vector.
static void store_past_caches(float *place, const Vector &vector) {
#if __has_builtin(__builtin_nontemporal_store)
    __builtin_nontemporal_store(vector, reinterpret_cast<Vector *>(place));
#elif defined(__AVX512F__)
    __builtin_ia32_movntps512(place, vector);
#else
    __builtin_ia32_movntps256(place, vector);
#endif
}

// What happens with a sum: out = sum, out += sum, or out = sum written past the caches.
enum class To { SET, ADD, MEMORY };

// Computes V vectors of elements, starting at element d, of each of R outputs: the sums of `count` rows with weights
// (R, count).
//
// AHEAD: the weights of an output are contiguous and come from memory; those of the next R outputs are prefetched.
template <int R, int V, To TO, bool AHEAD = false, class Out, class Rows>
static void sum_tile(const float *weights, int64_t out_stride, int64_t row_stride, int64_t count, Rows rows, int64_t d,
                     Out out) {
    Vector sums[R][V] = {};
    if constexpr (TO == To::ADD)
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sums[r][v] = load(out[r] + d + v * LANES);
    for (int64_t k = 0; k < count; ++k) {
        const float *row = rows[k] + d;
        if constexpr (AHEAD)
            if (k % LINE == 0)
                for (int r = 0; r < R; ++r) __builtin_prefetch(weights + (R + r) * out_stride + k);
        Vector parts[V];
        for (int v = 0; v < V; ++v) parts[v] = load(row + v * LANES);
        for (int r = 0; r < R; ++r) {
            const float weight = weights[r * out_stride + k * row_stride];
            for (int v = 0; v < V; ++v) sums[r][v] += weight * parts[v];
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

// Computes V vectors of elements, starting at element d, of each of `outs` outputs: the sums of `count` rows with
// weights (outs, count). The weight of output o and row k is at `o * out_stride + k * row_stride`.
template <int V, To TO, bool AHEAD = false, class Out, class Rows>
static void strip_sums(const float *weights, int64_t out_stride, int64_t row_stride, int64_t outs, int64_t count,
                       Rows rows, int64_t d, Out out) {
    by_halves<SUM_ROWS>(outs, [&](int64_t o, auto out_count) {
        sum_tile<out_count(), V, TO, AHEAD>(weights + o * out_stride, out_stride, row_stride, count, rows, d,
                                            out.from(o));
    });
}

// Splits `vectors` vectors of elements into strips and calls work(first, size) with a constant size.
template <class Work>
static void by_strips(int64_t vectors, Work work) {
    by_pieces<SUM_VECTORS>(vectors, work);
}

// Computes the elements from d on, which are fewer than a vector.
template <To TO, class Out, class Rows>
static void rest_of_sums(const float *weights, int64_t out_stride, int64_t row_stride, int64_t outs, int64_t count,
                         Rows rows, int64_t d, Out out) {
    for (int64_t o = 0; o < outs; ++o)
        for (int64_t rest = d; rest < rows.dim; ++rest) {
            float total = TO == To::ADD ? out[o][rest] : 0;
            for (int64_t k = 0; k < count; ++k) total += weights[o * out_stride + k * row_stride] * rows[k][rest];
            out[o][rest] = total;
        }
}

// `strip_sums` for all elements, strip by strip: a strip of the rows stays in the L1 cache for all outputs. The rows
// `next` (ahead, dim) are used after this call and are prefetched.
template <To TO, class Out, class Rows>
static void weighted_sums(const float *weights, int64_t out_stride, int64_t row_stride, int64_t outs, int64_t count,
                          Rows rows, Out out, Rows next, int64_t ahead) {
    by_strips(rows.dim / LANES, [&](int64_t v, auto size) {
        for (int64_t k = 0; k < ahead; ++k)
            for (int place = 0; place < size() * LANES; place += LINE) __builtin_prefetch(next[k] + v * LANES + place);
        strip_sums<size(), TO>(weights, out_stride, row_stride, outs, count, rows, v * LANES, out);
    });
    rest_of_sums<TO>(weights, out_stride, row_stride, outs, count, rows, rows.dim / LANES * LANES, out);
}

// `strip_sums` for all elements, output by output, which is the order of memory. Strip by strip it takes twice as long.
template <To TO, class Out, class Rows>
static void weighted_sums_in_order(const float *weights, int64_t out_stride, int64_t row_stride, int64_t outs,
                                   int64_t count, Rows rows, Out out) {
    by_halves<SUM_ROWS>(outs, [&](int64_t o, auto out_count) {
        by_strips(rows.dim / LANES, [&](int64_t v, auto size) {
            const float *first = weights + o * out_stride;
            sum_tile<out_count(), size(), TO>(first, out_stride, row_stride, count, rows, v * LANES, out.from(o));
        });
    });
    rest_of_sums<TO>(weights, out_stride, row_stride, outs, count, rows, rows.dim / LANES * LANES, out);
}

}  // namespace vocabench
