// Products of float32 matrices by a processor's unit for matrices of bfloat16, Intel's AMX, to float32's own precision.
//
// A float32 is the sum of three bfloat16, each what rounding leaves of the ones before: 8 bits of its 24 each. Of the
// nine products of two such sums six are made, and the unit adds them up in float32: the other three are two roundings of
// a product at most, a fifth of one as a rule. Six times the work, at sixteen times the speed of the vector units.
//
// Where there is no such unit the same numbers are made one by one: for tests, not to be fast.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "matrix_products.h"
#include "tiles.h"

#if defined(__AMX_BF16__) && defined(__AVX512F__)
#define HAS_MATRIX_UNIT
#endif

namespace {

constexpr int64_t SIDE = 16;        // rows and columns of what the unit makes at a time
constexpr int64_t STEP = 32;        // numbers of a row that it multiplies at a time
constexpr int64_t PARTS = 3;        // that a float32 is the sum of
constexpr int64_t LINE_BYTES = 64;  // that a cache fetches together

// Pairs of bfloat16: in a left factor's a row each, in a right one's a column. A pair's numbers are SIDE apart.
struct alignas(64) Tile {
    uint32_t pair[SIDE][SIDE];
};

using Sixteen = float __attribute__((vector_size(64)));
using Bits = uint32_t __attribute__((vector_size(64)));

// To bfloat16, halves away from zero; what is no number stays none.
Sixteen rounded(Sixteen numbers) {
    const Bits is_number = (Bits)(numbers == numbers);
    return (Sixteen)(((Bits)numbers + (is_number & 0x8000u)) & 0xffff0000u);
}

// Of two times SIDE numbers the parts, a pair each.
void split(Sixteen one, Sixteen other, Tile *tile, int64_t line) {
    for (int64_t part = 0; part < PARTS; ++part) {
        const Sixteen first = rounded(one), second = rounded(other);
        const Bits pairs = ((Bits)first >> 16) | (Bits)second;
        std::memcpy(tile[part].pair[line], &pairs, sizeof pairs);
        one -= first, other -= second;
    }
}

Sixteen load_some(const float *from, int64_t numbers) {
    Sixteen found = {};
    if (numbers >= SIDE)
        std::memcpy(&found, from, sizeof found);
    else if (numbers > 0)
        std::memcpy(&found, from, numbers * sizeof(float));
    return found;
}

#ifdef HAS_MATRIX_UNIT
void transpose(Tile &tile) {
    __m512i from[SIDE], to[SIDE];
    for (int row = 0; row < SIDE; ++row) from[row] = _mm512_load_si512(tile.pair[row]);
    for (int row = 0; row < SIDE; row += 2) {
        to[row] = _mm512_unpacklo_epi32(from[row], from[row + 1]);
        to[row + 1] = _mm512_unpackhi_epi32(from[row], from[row + 1]);
    }
    for (int row = 0; row < SIDE; row += 4)
        for (int half = 0; half < 2; ++half) {
            from[row + 2 * half] = _mm512_unpacklo_epi64(to[row + half], to[row + half + 2]);
            from[row + 2 * half + 1] = _mm512_unpackhi_epi64(to[row + half], to[row + half + 2]);
        }
    // Each has four rows of the columns `column`, and of those 4, 8 and 12 further on.
    for (int column = 0; column < 4; ++column) {
        const auto ones = [&](int row) { return _mm512_shuffle_i32x4(from[row], from[row + 4], 0x88); };
        const auto others = [&](int row) { return _mm512_shuffle_i32x4(from[row], from[row + 4], 0xdd); };
        const auto store = [&](int row, __m512i pairs) { _mm512_store_si512(tile.pair[row], pairs); };
        const __m512i even = ones(column), even_below = ones(column + 8);
        const __m512i odd = others(column), odd_below = others(column + 8);
        store(column, _mm512_shuffle_i32x4(even, even_below, 0x88));
        store(column + 4, _mm512_shuffle_i32x4(odd, odd_below, 0x88));
        store(column + 8, _mm512_shuffle_i32x4(even, even_below, 0xdd));
        store(column + 12, _mm512_shuffle_i32x4(odd, odd_below, 0xdd));
    }
}
#else
void transpose(Tile &tile) {
    for (int row = 0; row < SIDE; ++row)
        for (int column = 0; column < row; ++column) std::swap(tile.pair[row][column], tile.pair[column][row]);
}
#endif

// Where the tiles of some steps begin, and those of the next rows.
struct Run {
    const Tile *tile;
    int64_t between;
};

// Lines of memory that are wanted next: with each step some are fetched, to the cache next to a core.
struct Ahead {
    const char *first;
    int64_t lines;  // with a step

    void fetch(int64_t step) const {
        for (int64_t line = step * lines; line < (step + 1) * lines; ++line)
            __builtin_prefetch(first + line * LINE_BYTES, 0, 2);
    }
};

enum class Of { LEFT, RIGHT };

// Room for the parts of a factor: of SIDE rows those of one step after those of the other.
class Parts {
  public:
    Parts(int64_t rows, int64_t depth)
        : tiles_((rows + SIDE - 1) / SIDE), steps_((depth + STEP - 1) / STEP),
          tile_(new Tile[tiles_ * steps_ * PARTS]) {}

    int64_t steps() const { return steps_; }
    Run from(int64_t tile) const { return {at(tile, 0), steps_ * PARTS}; }
    // How many pieces `read` reads the factor in: as it lies in memory.
    int64_t pieces(const Factor &factor) const { return factor.by_number == 1 ? tiles_ : steps_; }

    // A piece, with zeros for what is beyond the last row or number.
    void read(const Factor &factor, Of side, int64_t piece) {
        if (factor.by_number == 1)
            for (int64_t step = 0; step * STEP < factor.depth; ++step) read(factor, side, piece, step);
        else
            for (int64_t tile = 0; tile < tiles_; ++tile) read(factor, side, tile, piece);
    }

    void read(const Factor &factor, Of side) {
        for (int64_t piece = 0; piece < pieces(factor); ++piece) read(factor, side, piece);
    }

  private:
    Tile *at(int64_t tile, int64_t step) const { return tile_.get() + (tile * steps_ + step) * PARTS; }

    void read(const Factor &factor, Of side, int64_t tile, int64_t step) {
        const int64_t rows = factor.count - tile * SIDE, numbers = factor.depth - step * STEP;
        const float *first = factor.first + tile * SIDE * factor.by_row + step * STEP * factor.by_number;
        Tile *to = at(tile, step);
        const bool by_rows = factor.by_number == 1;
        for (int64_t line = 0; line < SIDE; ++line)
            if (by_rows) {
                const float *own = first + line * factor.by_row;
                const int64_t some = line < rows ? numbers : 0;
                split(load_some(own, some), load_some(own + SIDE, some - SIDE), to, line);
            } else {
                const auto line_of = [&](int64_t number) {
                    return load_some(first + number * factor.by_number, number < numbers ? rows : 0);
                };
                split(line_of(line), line_of(line + SIDE), to, line);
            }
        if (by_rows != (side == Of::LEFT))
            for (int64_t part = 0; part < PARTS; ++part) transpose(to[part]);
    }

    int64_t tiles_, steps_;
    std::unique_ptr<Tile[]> tile_;
};

#ifdef HAS_MATRIX_UNIT
// What was written is in memory before the unit reads it, which compilers do not see.
void written(const void *place) { asm volatile("" ::"r"(place) : "memory"); }

// What a thread has of the unit, for as long as this is there.
class Unit {
  public:
    Unit() {
        struct {
            uint8_t palette, start, reserved[14];
            uint16_t bytes[16];  // of a row, of each register
            uint8_t rows[16];
        } config{1, 0, {}, {}, {}};
        for (int number = 0; number < 8; ++number) config.bytes[number] = sizeof(Tile) / SIDE, config.rows[number] = SIDE;
        written(&config);
        _tile_loadconfig(&config);
    }
    ~Unit() { _tile_release(); }
    Unit(const Unit &) = delete;
};

// out (M SIDE, N SIDE), whose rows are `dim` apart, of so many tiles of rows of the left with as many of the right; on top
// of what is there with ADD. Four registers hold sums, so that each tile that is read is multiplied twice.
template <int M, int N, bool ADD>
void multiply(Run left, Run right, int64_t steps, Ahead ahead, float *out, int64_t dim) {
    const Tile *a = left.tile, *b = right.tile, *a2 = a + left.between, *b2 = b + right.between;
    float *below = out + SIDE * dim;
    const int64_t bytes = dim * sizeof(float), line = sizeof(Tile) / SIDE;
    written(out);
    if constexpr (ADD) {
        _tile_loadd(0, out, bytes);
        if constexpr (N == 2) _tile_loadd(1, out + SIDE, bytes);
        if constexpr (M == 2) _tile_loadd(2, below, bytes);
        if constexpr (M == 2 && N == 2) _tile_loadd(3, below + SIDE, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    const auto read_left = [&](int64_t part) {
        _tile_loadd(4, a + part, line);
        if constexpr (M == 2) _tile_loadd(5, a2 + part, line);
    };
    const auto read_right = [&](int64_t part) {
        _tile_loadd(6, b + part, line);
        if constexpr (N == 2) _tile_loadd(7, b2 + part, line);
    };
    const auto add = [] {
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (N == 2) _tile_dpbf16ps(1, 4, 7);
        if constexpr (M == 2) _tile_dpbf16ps(2, 5, 6);
        if constexpr (M == 2 && N == 2) _tile_dpbf16ps(3, 5, 7);
    };
    for (int64_t step = 0; step < steps; ++step) {
        ahead.fetch(step);
        read_left(0), read_right(2), add();
        read_right(1), add();
        read_left(1), add();
        read_right(0), add();
        read_left(2), add();
        read_left(0), add();
        a += PARTS, b += PARTS, a2 += PARTS, b2 += PARTS;
    }
    _tile_stored(0, out, bytes);
    if constexpr (N == 2) _tile_stored(1, out + SIDE, bytes);
    if constexpr (M == 2) _tile_stored(2, below, bytes);
    if constexpr (M == 2 && N == 2) _tile_stored(3, below + SIDE, bytes);
}
#else
struct Unit {};

float number_of(uint32_t bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

template <int M, int N, bool ADD>
void multiply(Run left, Run right, int64_t steps, Ahead, float *out, int64_t dim) {
    constexpr std::pair<int, int> PAIRS[] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}};
    for (int64_t m = 0; m < M * SIDE; ++m)
        for (int64_t n = 0; n < N * SIDE; ++n) {
            float sum = ADD ? out[m * dim + n] : 0;
            const Tile *a = left.tile + m / SIDE * left.between, *b = right.tile + n / SIDE * right.between;
            for (int64_t step = 0; step < steps; ++step, a += PARTS, b += PARTS)
                for (const auto [one, other] : PAIRS) {
                    double added = 0;
                    for (int64_t pair = 0; pair < SIDE; ++pair) {
                        const uint32_t first = a[one].pair[m % SIDE][pair], second = b[other].pair[pair][n % SIDE];
                        added += number_of(first << 16) * number_of(second << 16);
                        added += number_of(first & 0xffff0000u) * number_of(second & 0xffff0000u);
                    }
                    sum += static_cast<float>(added);
                }
            out[m * dim + n] = sum;
        }
}
#endif

// As `multiply`, of as many tiles as `rows` and `columns` that out has left want, two at most; on top of it if `add`.
void multiply_some(Run left, Run right, int64_t steps, Ahead ahead, bool add, float *out, int64_t dim, int64_t rows,
                   int64_t columns) {
    rows = std::min(rows, 2 * SIDE), columns = std::min(columns, 2 * SIDE);
    const auto call = [&](float *to, int64_t apart) {
        with_constant<2>((rows + SIDE - 1) / SIDE, [&](auto m) {
            with_constant<2>((columns + SIDE - 1) / SIDE, [&](auto n) {
                with_constant(add, [&](auto adds) { multiply<m(), n(), adds()>(left, right, steps, ahead, to, apart); });
            });
        });
    };
    if (rows % SIDE == 0 && columns % SIDE == 0) return call(out, dim);
    float own[2 * SIDE * 2 * SIDE] = {};
    if (add)
        for (int64_t m = 0; m < rows; ++m) std::copy_n(out + m * dim, columns, own + m * 2 * SIDE);
    call(own, 2 * SIDE);
    for (int64_t m = 0; m < rows; ++m) std::copy_n(own + m * 2 * SIDE, columns, out + m * dim);
}

// out (rows, columns), whose rows are `dim` apart: of the left's rows with the right's, all steps that the left has; on
// top of what is there if `add`. While two tiles of columns meet all rows the next two are fetched.
void multiply_all(const Parts &left, int64_t rows, const Parts &right, int64_t columns, bool add, float *out,
                  int64_t dim) {
    const int64_t steps = left.steps(), pairs = (rows + 2 * SIDE - 1) / (2 * SIDE);
    const int64_t lines = (2 * PARTS * SIDE + pairs - 1) / pairs;
    for (int64_t column = 0; column < columns; column += 2 * SIDE) {
        Ahead ahead{reinterpret_cast<const char *>(right.from(column / SIDE + 2).tile), lines};
        for (int64_t row = 0; row < rows; row += 2 * SIDE, ahead.first += steps * lines * LINE_BYTES)
            multiply_some(left.from(row / SIDE), right.from(column / SIDE), steps, ahead, add, out + row * dim + column,
                          dim, rows - row, columns - column);
    }
}

}  // namespace
