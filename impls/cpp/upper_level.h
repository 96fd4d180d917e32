// What a two-level layer makes of a hidden vector before it reads any word. All arrays are float32 and dense.

#pragma once

#include <cstdint>

// What a projection W makes of a vector h: kept h + share max(W h, least).
struct Projection {
    float kept, share, least;
};

struct UpperLevel {
    int64_t dim, count;                                 // numbers of a vector; C clusters
    const float *cluster_projection, *word_projection;  // (dim, dim) or null, where vectors stay as they are
    Projection projection;
    const float *clusters, *bias;  // vectors (C, dim); (C,) or null
};

// log_cluster (N, C): log P(cluster) of N vectors (N, dim), as the cluster projection makes them. word_vectors (N, dim):
// as the word projection does, where there is one.
void upper_level(int threads, const UpperLevel &level, const float *vectors, int64_t count, float *log_cluster,
                 float *word_vectors);
