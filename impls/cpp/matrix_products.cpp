// See `matrix_products.h`.

#include "matrix_products.h"

#include "matrix_unit.h"
#include "threads.h"

namespace {

constexpr int64_t MOST = 8;     // pairs of tiles of rows, whose parts of some steps stay in the cache next to a core
constexpr int64_t DEPTH = 512;  // numbers of those steps

// out (left.count, columns), on top of what is there if `add`.
void add_block(const Factor &left, const Parts &right, int64_t columns, bool add, float *out) {
    const Unit unit;
    Parts parts(left.count, left.depth);
    parts.read(left, Of::LEFT);
    multiply_all(parts, left.count, right, columns, add, out, columns);
}

}  // namespace

void matrix_product(int threads, const Factor &left, const Factor &right, float *out) {
    if (left.count == 0 || left.depth == 0 || right.count == 0)
        return (void)std::fill_n(out, left.count * right.count, 0.0f);
    // Blocks of rows of about one size, as many for each thread.
    const int64_t pairs = (left.count + 2 * SIDE - 1) / (2 * SIDE);
    const int64_t blocks = (pairs + MOST * threads - 1) / (MOST * threads) * threads;
    const int64_t height = (pairs + blocks - 1) / blocks * 2 * SIDE;
    Parts parts(right.count, std::min(right.depth, DEPTH));
    for (int64_t first = 0; first < left.depth; first += DEPTH) {
        const int64_t depth = std::min(DEPTH, left.depth - first);
        const Factor of_right = right.numbers(first, depth);
        share_work(threads, parts.pieces(of_right), [&](int64_t piece) { parts.read(of_right, Of::RIGHT, piece); });
        share_work(threads, (left.count + height - 1) / height, [&](int64_t block) {
            const int64_t row = block * height, rows = std::min(height, left.count - row);
            add_block(left.rows(row, rows).numbers(first, depth), parts, right.count, first > 0, out + row * right.count);
        });
    }
}
