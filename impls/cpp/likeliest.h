// Where a search writes what it has found.

#pragma once

#include <cstdint>

// values, ids (N, k): log P(word) and number of the k likeliest words of each vector, best first, equals by number.
// share (N,): of the clusters, or the nodes of a tree, that were looked at for them. Where what is given is no numbers,
// share is 0, values are no numbers and ids the first ones.
//
// Id: int32_t or int64_t.
template <class Id>
struct Likeliest {
    int64_t k;
    float *values;
    Id *ids;
    float *share;

    Likeliest from(int64_t vector) const { return {k, values + vector * k, ids + vector * k, share + vector}; }
};
