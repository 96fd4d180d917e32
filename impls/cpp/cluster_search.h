// Exact search for the likeliest words of a two-level layer, without scoring all words. All arrays are dense.

#pragma once

#include <cstdint>
#include <numeric>

#include "cluster_products.h"
#include "likeliest.h"

namespace vocabench {

// The queries: N vectors (N, dim), and log P(cluster) for each, (N, C).
struct Searched {
    int64_t count;
    const float *vectors;
    const float *log_cluster;
};

// The words to search: words (F, dim), bias (F,) or null, ids_of (C, slots), as for `cluster_scores`. `clusters.end` is
// not read.
//
// Id: int32_t or int64_t.
template <class Id>
struct ClusteredWords {
    const float *words, *bias;
    const Id *ids_of;
    Clusters clusters;

    int64_t count() const { return std::accumulate(clusters.size, clusters.size + clusters.count, int64_t{0}); }
};

template <class Id>
void likeliest_words(int threads, const Searched &searched, const ClusteredWords<Id> &words,
                     const Likeliest<Id> &likeliest);

}  // namespace vocabench
