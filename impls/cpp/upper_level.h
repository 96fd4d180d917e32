// What a two-level layer computes from a hidden vector before it reads any word. All arrays are float32 and dense.

#pragma once

#include <cstdint>

namespace vocabench {

// Maps the product W h of a vector h to kept h + share max(W h, least).
struct Projection {
    float kept, share, least;
};

struct UpperLevel {
    int64_t dim, count;                                 // width of a vector; number of clusters C
    const float *cluster_projection, *word_projection;  // (dim, dim), or null if vectors are not projected
    Projection projection;
    const float *clusters, *bias;  // cluster vectors (C, dim); (C,) or null
};

// Computes log_cluster (N, C), log P(cluster) for N vectors (N, dim), with the cluster projection, and word_vectors (N,
// dim) with the word projection if there is one.
void upper_level(int threads, const UpperLevel &level, const float *vectors, int64_t count, float *log_cluster,
                 float *word_vectors);

}  // namespace vocabench
