// Products of float32 matrices on a bfloat16 matrix unit (Intel AMX), with float32 precision.
//
// A float32 is split into three bfloat16 parts. Each part is what rounding leaves of the previous ones, and holds 8 of
// the 24 bits. Of the nine products of two such sums, the six largest are computed and accumulated in float32. The
// other three are at most two roundings of a product, and typically a fifth of one. This is six times the work at
// sixteen times the throughput of the vector units.
//
// Without a matrix unit the same values are computed in plain C++. That version is for tests and is slow.

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

namespace vocabench {

constexpr int64_t TILE_SIDE = 16;   // rows and columns of an output tile
constexpr int64_t STEP = 32;        // elements of a row that one instruction multiplies
constexpr int64_t PARTS = 3;        // bfloat16 parts of a float32
constexpr int64_t LINE_BYTES = 64;  // bytes per cache line

// Pairs of bfloat16. Each row of `pair` is a row of a left factor or a column of a right one. The elements of a pair
// are TILE_SIDE apart in the factor.
struct alignas(64) Tile {
    uint32_t pair[TILE_SIDE][TILE_SIDE];
};

using Sixteen = float __attribute__((vector_size(64)));
using Bits = uint32_t __attribute__((vector_size(64)));

// Rounds to bfloat16, halves away from zero. NaN stays NaN.
static Sixteen rounded(Sixteen values) {
    const Bits is_number = (Bits)(values == values);
    return (Sixteen)(((Bits)values + (is_number & 0x8000u)) & 0xffff0000u);
}

// Splits the elements of `low` and `high` into their parts and stores them as pairs in a line of PARTS tiles.
static void split(Sixteen low, Sixteen high, Tile *tile, int64_t line) {
    for (int64_t part = 0; part < PARTS; ++part) {
        const Sixteen first = rounded(low), second = rounded(high);
        const Bits pairs = ((Bits)first >> 16) | (Bits)second;
        std::memcpy(tile[part].pair[line], &pairs, sizeof pairs);
        low -= first, high -= second;
    }
}

// Loads up to TILE_SIDE elements, with zeros beyond `count`.
static Sixteen load_padded(const float *from, int64_t count) {
    Sixteen values = {};
    if (count >= TILE_SIDE)
        std::memcpy(&values, from, sizeof values);
    else if (count > 0)
        std::memcpy(&values, from, count * sizeof(float));
    return values;
}

#ifdef HAS_MATRIX_UNIT
static void transpose(Tile &tile) {
    __m512i from[TILE_SIDE], to[TILE_SIDE];
    for (int row = 0; row < TILE_SIDE; ++row) from[row] = _mm512_load_si512(tile.pair[row]);
    for (int row = 0; row < TILE_SIDE; row += 2) {
        to[row] = _mm512_unpacklo_epi32(from[row], from[row + 1]);
        to[row + 1] = _mm512_unpackhi_epi32(from[row], from[row + 1]);
    }
    for (int row = 0; row < TILE_SIDE; row += 4)
        for (int half = 0; half < 2; ++half) {
            from[row + 2 * half] = _mm512_unpacklo_epi64(to[row + half], to[row + half + 2]);
            from[row + 2 * half + 1] = _mm512_unpackhi_epi64(to[row + half], to[row + half + 2]);
        }
    // Each register now holds four rows of the columns `column`, `column` + 4, + 8 and + 12.
    for (int column = 0; column < 4; ++column) {
        const auto even_lanes = [&](int row) { return _mm512_shuffle_i32x4(from[row], from[row + 4], 0x88); };
        const auto odd_lanes = [&](int row) { return _mm512_shuffle_i32x4(from[row], from[row + 4], 0xdd); };
        const auto store = [&](int row, __m512i pairs) { _mm512_store_si512(tile.pair[row], pairs); };
        const __m512i even = even_lanes(column), even_below = even_lanes(column + 8);
        const __m512i odd = odd_lanes(column), odd_below = odd_lanes(column + 8);
        store(column, _mm512_shuffle_i32x4(even, even_below, 0x88));
        store(column + 4, _mm512_shuffle_i32x4(odd, odd_below, 0x88));
        store(column + 8, _mm512_shuffle_i32x4(even, even_below, 0xdd));
        store(column + 12, _mm512_shuffle_i32x4(odd, odd_below, 0xdd));
    }
}
#else
static void transpose(Tile &tile) {
    for (int row = 0; row < TILE_SIDE; ++row)
        for (int column = 0; column < row; ++column) std::swap(tile.pair[row][column], tile.pair[column][row]);
}
#endif

// The tiles of one block of rows: the first tile, and the distance to the first tile of the next block.
struct TileRow {
    const Tile *tile;
    int64_t next_row;
};

// Cache lines to prefetch into the L2 cache, `lines` of them with each step.
struct Prefetch {
    const char *first;
    int64_t lines;

    void fetch(int64_t step) const {
        for (int64_t line = step * lines; line < (step + 1) * lines; ++line)
            __builtin_prefetch(first + line * LINE_BYTES, 0, 2);
    }
};

enum class Side { LEFT, RIGHT };

// The parts of a factor: for each block of TILE_SIDE rows, the tiles of one step after those of the previous step.
class Parts {
  public:
    Parts(int64_t rows, int64_t depth)
        : tiles_((rows + TILE_SIDE - 1) / TILE_SIDE),
          steps_((depth + STEP - 1) / STEP),
          tile_(new Tile[tiles_ * steps_ * PARTS]) {}

    int64_t steps() const { return steps_; }
    TileRow from(int64_t tile) const { return {at(tile, 0), steps_ * PARTS}; }
    // Number of pieces that `read` can process independently. Pieces follow the layout of the factor in memory.
    int64_t pieces(const Factor &factor) const { return factor.element_stride == 1 ? tiles_ : steps_; }

    // Reads one piece of a factor, with zeros beyond its last row or element.
    void read(const Factor &factor, Side side, int64_t piece) {
        if (factor.element_stride == 1)
            for (int64_t step = 0; step * STEP < factor.depth; ++step) read(factor, side, piece, step);
        else
            for (int64_t tile = 0; tile < tiles_; ++tile) read(factor, side, tile, piece);
    }

    void read(const Factor &factor, Side side) {
        for (int64_t piece = 0; piece < pieces(factor); ++piece) read(factor, side, piece);
    }

  private:
    Tile *at(int64_t tile, int64_t step) const { return tile_.get() + (tile * steps_ + step) * PARTS; }

    void read(const Factor &factor, Side side, int64_t tile, int64_t step) {
        const int64_t rows = factor.count - tile * TILE_SIDE, elements = factor.depth - step * STEP;
        const float *first = factor.first + tile * TILE_SIDE * factor.row_stride + step * STEP * factor.element_stride;
        Tile *to = at(tile, step);
        const bool by_rows = factor.element_stride == 1;
        for (int64_t line = 0; line < TILE_SIDE; ++line)
            if (by_rows) {
                const float *row = first + line * factor.row_stride;
                const int64_t count = line < rows ? elements : 0;
                split(load_padded(row, count), load_padded(row + TILE_SIDE, count - TILE_SIDE), to, line);
            } else {
                const auto load_column = [&](int64_t element) {
                    return load_padded(first + element * factor.element_stride, element < elements ? rows : 0);
                };
                split(load_column(line), load_column(line + TILE_SIDE), to, line);
            }
        if (by_rows != (side == Side::LEFT))
            for (int64_t part = 0; part < PARTS; ++part) transpose(to[part]);
    }

    int64_t tiles_, steps_;
    std::unique_ptr<Tile[]> tile_;
};

#ifdef HAS_MATRIX_UNIT
// Compilers do not see that the tile instructions read memory. This forces earlier writes to be done.
static void force_writes(const void *place) { asm volatile("" ::"r"(place) : "memory"); }

// Configures the tile registers of this thread for its lifetime.
class Unit {
  public:
    Unit() {
        struct {
            uint8_t palette, start, reserved[14];
            uint16_t row_bytes[16];
            uint8_t rows[16];
        } config{1, 0, {}, {}, {}};
        for (int tile = 0; tile < 8; ++tile)
            config.row_bytes[tile] = sizeof(Tile) / TILE_SIDE, config.rows[tile] = TILE_SIDE;
        force_writes(&config);
        _tile_loadconfig(&config);
    }
    ~Unit() { _tile_release(); }
    Unit(const Unit &) = delete;
};

// Multiplies M tiles of rows of the left with N of the right: out (M TILE_SIDE, N TILE_SIDE), with rows `dim` apart,
// added to its present contents if ADD. Four registers hold sums, so that each tile that is read is used twice.
template <int M, int N, bool ADD>
static void multiply(TileRow left, TileRow right, int64_t steps, Prefetch prefetch, float *out, int64_t dim) {
    const Tile *a = left.tile, *b = right.tile, *a2 = a + left.next_row, *b2 = b + right.next_row;
    float *below = out + TILE_SIDE * dim;
    const int64_t bytes = dim * sizeof(float), line = sizeof(Tile) / TILE_SIDE;
    force_writes(out);
    if constexpr (ADD) {
        _tile_loadd(0, out, bytes);
        if constexpr (N == 2) _tile_loadd(1, out + TILE_SIDE, bytes);
        if constexpr (M == 2) _tile_loadd(2, below, bytes);
        if constexpr (M == 2 && N == 2) _tile_loadd(3, below + TILE_SIDE, bytes);
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
        prefetch.fetch(step);
        read_left(0), read_right(2), add();
        read_right(1), add();
        read_left(1), add();
        read_right(0), add();
        read_left(2), add();
        read_left(0), add();
        a += PARTS, b += PARTS, a2 += PARTS, b2 += PARTS;
    }
    _tile_stored(0, out, bytes);
    if constexpr (N == 2) _tile_stored(1, out + TILE_SIDE, bytes);
    if constexpr (M == 2) _tile_stored(2, below, bytes);
    if constexpr (M == 2 && N == 2) _tile_stored(3, below + TILE_SIDE, bytes);
}
#else
struct Unit {};

static float to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// One function for all sizes, since only tests call it and each copy takes a second to compile.
__attribute__((noinline)) static void multiply_plainly(int m_tiles, int n_tiles, bool add, TileRow left, TileRow right,
                                                       int64_t steps, float *out, int64_t dim) {
    constexpr std::pair<int, int> PAIRS[] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}};
    for (int64_t m = 0; m < m_tiles * TILE_SIDE; ++m)
        for (int64_t n = 0; n < n_tiles * TILE_SIDE; ++n) {
            float sum = add ? out[m * dim + n] : 0;
            const Tile *a = left.tile + m / TILE_SIDE * left.next_row;
            const Tile *b = right.tile + n / TILE_SIDE * right.next_row;
            for (int64_t step = 0; step < steps; ++step, a += PARTS, b += PARTS)
                for (const auto [left_part, right_part] : PAIRS) {
                    double added = 0;
                    for (int64_t pair = 0; pair < TILE_SIDE; ++pair) {
                        const uint32_t first = a[left_part].pair[m % TILE_SIDE][pair];
                        const uint32_t second = b[right_part].pair[pair][n % TILE_SIDE];
                        added += to_float(first << 16) * to_float(second << 16);
                        added += to_float(first & 0xffff0000u) * to_float(second & 0xffff0000u);
                    }
                    sum += static_cast<float>(added);
                }
            out[m * dim + n] = sum;
        }
}

template <int M, int N, bool ADD>
static void multiply(TileRow left, TileRow right, int64_t steps, Prefetch, float *out, int64_t dim) {
    multiply_plainly(M, N, ADD, left, right, steps, out, dim);
}
#endif

// Calls `multiply` for as many tiles as the remaining `rows` and `columns` need, at most two by two.
static void multiply_some(TileRow left, TileRow right, int64_t steps, Prefetch prefetch, bool add, float *out,
                          int64_t dim, int64_t rows, int64_t columns) {
    rows = std::min(rows, 2 * TILE_SIDE), columns = std::min(columns, 2 * TILE_SIDE);
    const auto call = [&](float *to, int64_t stride) {
        with_constant<2>((rows + TILE_SIDE - 1) / TILE_SIDE, [&](auto m) {
            with_constant<2>((columns + TILE_SIDE - 1) / TILE_SIDE, [&](auto n) {
                with_constant(add,
                              [&](auto adds) { multiply<m(), n(), adds()>(left, right, steps, prefetch, to, stride); });
            });
        });
    };
    if (rows % TILE_SIDE == 0 && columns % TILE_SIDE == 0) return call(out, dim);
    float buffer[2 * TILE_SIDE * 2 * TILE_SIDE] = {};
    if (add)
        for (int64_t m = 0; m < rows; ++m) std::copy_n(out + m * dim, columns, buffer + m * 2 * TILE_SIDE);
    call(buffer, 2 * TILE_SIDE);
    for (int64_t m = 0; m < rows; ++m) std::copy_n(buffer + m * 2 * TILE_SIDE, columns, out + m * dim);
}

// out (rows, columns), with rows `dim` apart: products of rows of the left with rows of the right over all steps of the
// left, added to its present contents if `add`. While two tiles of columns are multiplied with all rows, the next two
// are prefetched.
static void multiply_all(const Parts &left, int64_t rows, const Parts &right, int64_t columns, bool add, float *out,
                         int64_t dim) {
    const int64_t steps = left.steps(), pairs = (rows + 2 * TILE_SIDE - 1) / (2 * TILE_SIDE);
    const int64_t lines = (2 * PARTS * TILE_SIDE + pairs - 1) / pairs;
    for (int64_t column = 0; column < columns; column += 2 * TILE_SIDE) {
        Prefetch prefetch{reinterpret_cast<const char *>(right.from(column / TILE_SIDE + 2).tile), lines};
        for (int64_t row = 0; row < rows; row += 2 * TILE_SIDE, prefetch.first += steps * lines * LINE_BYTES)
            multiply_some(left.from(row / TILE_SIDE), right.from(column / TILE_SIDE), steps, prefetch, add,
                          out + row * dim + column, dim, rows - row, columns - column);
    }
}

}  // namespace vocabench
