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

// What words are searched for. words (F, dim), bias (F,) or null, ids_of (C, slots): as of `cluster_scores`; of
// `clusters` no `end` is read.
//
// Id: int32_t or int64_t.
template <class Id>
struct ClusteredWords {
    const float *words, *bias;
    const Id *ids_of;
    Clusters clusters;
};

// values, ids (N, k): log P(word) and number of the k likeliest words of each vector, best first, equals by number.
// share (N,): of the clusters, that were looked through for them. Where what is given is no numbers, share is 0, values
// are no numbers and ids the first ones.
template <class Id>
struct Likeliest {
    int64_t k;
    float *values;
    Id *ids;
    float *share;

    Likeliest from(int64_t vector) const { return {k, values + vector * k, ids + vector * k, share + vector}; }
};

template <class Id>
void likeliest_words(int threads, const Searched &searched, const ClusteredWords<Id> &words,
                     const Likeliest<Id> &found);
