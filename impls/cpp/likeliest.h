// Output arrays of a search for the likeliest words.

#pragma once

#include <cstdint>

namespace vocabench {

// values, ids (N, k): log P(word) and id of the k likeliest words for each vector, best first, equal values by id.
// share (N,): fraction of the clusters, or of the nodes of a tree, that the search computed. For a vector with NaN,
// share is 0, the values are NaN and the ids are the first k.
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

}  // namespace vocabench
