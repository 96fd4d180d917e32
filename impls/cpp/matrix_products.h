// Products of float32 matrices, for a processor that has a unit for them. See `matrix_unit.h`.

#pragma once

#include <cstdint>

// Rows of numbers, of which products are made, each of one factor with each of the other: `count` rows of `depth`.
struct Factor {
    const float *first;
    int64_t count, depth;
    int64_t by_row, by_number;  // how far apart they are: one of both 1

    // Of a dense matrix the rows, or the columns.
    static Factor of(const float *first, int64_t rows, int64_t columns, bool by_columns) {
        return by_columns ? Factor{first, columns, rows, 1, columns} : Factor{first, rows, columns, columns, 1};
    }
    Factor rows(int64_t start, int64_t some) const { return {first + start * by_row, some, depth, by_row, by_number}; }
    Factor numbers(int64_t start, int64_t some) const {
        return {first + start * by_number, count, some, by_row, by_number};
    }
};

// out (left.count, right.count), the products of rows of the left, each with all of the right, of as many numbers.
void matrix_product(int threads, const Factor &left, const Factor &right, float *out);
