// See `matrix_products.h`.

#include "matrix_products.h"

#include "matrix_unit.h"
#include "threads.h"

namespace vocabench {

namespace {

constexpr int64_t MOST_PAIRS = 8;  // pairs of tiles of rows whose parts for DEPTH elements stay in the L2 cache
constexpr int64_t DEPTH = 512;     // elements of a row that are multiplied at a time

// Computes out (left.count, columns), added to its present contents if `add`.
void add_block(const Factor &left, const Parts &right, int64_t columns, bool add, float *out) {
    const Unit unit;
    Parts parts(left.count, left.depth);
    parts.read(left, Side::LEFT);
    multiply_all(parts, left.count, right, columns, add, out, columns);
}

}  // namespace

void matrix_product(int threads, const Factor &left, const Factor &right, float *out) {
    if (left.count == 0 || left.depth == 0 || right.count == 0)
        return (void)std::fill_n(out, left.count * right.count, 0.0f);
    // Blocks of rows of nearly equal size, the same number for each thread.
    const int64_t pairs = (left.count + 2 * TILE_SIDE - 1) / (2 * TILE_SIDE);
    const int64_t blocks = (pairs + MOST_PAIRS * threads - 1) / (MOST_PAIRS * threads) * threads;
    const int64_t height = (pairs + blocks - 1) / blocks * 2 * TILE_SIDE;
    Parts parts(right.count, std::min(right.depth, DEPTH));
    for (int64_t first = 0; first < left.depth; first += DEPTH) {
        const int64_t depth = std::min(DEPTH, left.depth - first);
        const Factor right_part = right.elements(first, depth);
        share_work(threads, parts.pieces(right_part),
                   [&](int64_t piece) { parts.read(right_part, Side::RIGHT, piece); });
        share_work(threads, (left.count + height - 1) / height, [&](int64_t block) {
            const int64_t row = block * height, rows = std::min(height, left.count - row);
            add_block(left.rows(row, rows).elements(first, depth), parts, right.count, first > 0,
                      out + row * right.count);
        });
    }
}

}  // namespace vocabench
