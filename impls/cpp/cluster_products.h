// Dot products of tokens with the words of their clusters. All arrays are float32 and dense.

#pragma once

#include <cstdint>

namespace vocabench {

// Most clusters, so that int32 can count the pairs of a cluster and a vector that a search expands at a time.
constexpr int64_t MOST_CLUSTERS = (1 << 21) - 1;

// C clusters, at least one. The words of a cluster are consecutive rows of (F, dim), and its tokens are consecutive.
struct Clusters {
    int64_t count;         // C
    const int64_t *start;  // (C,) row of the first word of each cluster
    const int64_t *size;   // (C,) number of words of each cluster
    const int32_t *end;    // (C,) one past the last token of each cluster; tokens are sorted by cluster
    int64_t dim;           // width of a vector
    int64_t slots;         // scores per token, at least the size of the largest cluster
};

// scores (N, slots): dot products of N tokens with the words of their clusters; -inf beyond the size of a cluster.
//
// vectors (R, dim): the vector of a token is at its `row` (N,). words (F, dim). bias (F,): added to the score of a
// word, or null.
void cluster_scores(int threads, const float *vectors, const int64_t *row, const float *words, const Clusters &clusters,
                    const float *bias, float *scores);

}  // namespace vocabench
