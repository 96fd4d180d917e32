// The likeliest words of a two-level layer, exactly, without all of its words. All arrays are dense.

#pragma once

#include <cstdint>

#include "cluster_products.h"

// What is searched: N vectors (N, dim), and of each log P(cluster) (N, C).
struct Searched {
    int64_t count;
    const float *vectors;
    const float *log_cluster;
};

// values, ids (N, k): log P(word) and number of the k likeliest words of each vector, best first, equals by their number;
// expanded (N,): how many clusters were looked through for them. 0, values that are no numbers and the first ids where
// more than `most` would have had to be, or where what is given is no numbers.
//
// words (F, dim), bias (F,) or null, ids_of (C, slots): as of `cluster_scores`; of `clusters` no `end` is
// read.
//
// Id: int32_t or int64_t.
template <class Id>
void likeliest_words(int threads, const Searched &searched, const float *words, const float *bias, const Id *ids_of,
                     const Clusters &clusters, int64_t k, int64_t most, float *values, Id *ids, Id *expanded);
