// The likeliest words of a two-level layer, exactly, without all of its words. All arrays are dense.

#pragma once

#include <cstdint>

#include "cluster_products.h"
#include "likeliest.h"

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

template <class Id>
void likeliest_words(int threads, const Searched &searched, const ClusteredWords<Id> &words,
                     const Likeliest<Id> &found);
