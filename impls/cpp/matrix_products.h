// Products of float32 matrices on processors with a matrix unit. See `matrix_unit.h`.

#pragma once

#include <cstdint>

namespace vocabench {

// One factor of a product: `count` rows of `depth` elements, each of which is multiplied with each row of the other
// factor.
struct Factor {
    const float *first;
    int64_t count, depth;
    int64_t row_stride, element_stride;  // one of both is 1

    // The rows or the columns of a dense matrix.
    static Factor of(const float *first, int64_t rows, int64_t columns, bool by_columns) {
        return by_columns ? Factor{first, columns, rows, 1, columns} : Factor{first, rows, columns, columns, 1};
    }
    Factor rows(int64_t start, int64_t size) const {
        return {first + start * row_stride, size, depth, row_stride, element_stride};
    }
    Factor elements(int64_t start, int64_t size) const {
        return {first + start * element_stride, count, size, row_stride, element_stride};
    }
};

// out (left.count, right.count): dot products of each row of the left with each row of the right, of equal depth.
void matrix_product(int threads, const Factor &left, const Factor &right, float *out);

}  // namespace vocabench
