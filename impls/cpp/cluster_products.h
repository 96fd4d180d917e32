// Products of tokens with the words of their clusters. All arrays are float32 and dense.

#pragma once

#include <cstdint>

// C clusters of words, which lie one after the other among rows (F, dim), and the tokens of each.
struct Clusters {
    int64_t count;         // C
    const int64_t *start;  // (C,) the first row of each cluster's words
    const int64_t *size;   // (C,) its words
    const int32_t *end;    // (C,) one past the last of its tokens, which are sorted by cluster
    int64_t dim;           // numbers of a vector
    int64_t slots;         // of scores, the words of the largest cluster at least
};

// scores (N, slots) of N tokens with the words of their clusters; -inf beyond a cluster's size.
//
// vectors (R, dim): a token's is the one of its `row` (N,). words (F, dim). bias (F,): what a word's score gets on top,
// or null.
void cluster_scores(int threads, const float *vectors, const int64_t *row, const float *words, const Clusters &clusters,
                    const float *bias, float *scores);
