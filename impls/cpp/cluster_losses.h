// Losses of words within their clusters, and their gradients. All arrays are float32 and dense.

#pragma once

#include <cstdint>

#include "cluster_products.h"

namespace vocabench {

// Computes losses (N,): -log P of the word in `slot` (N,) within its cluster, for N tokens. vectors, row, words and
// bias are those of `cluster_scores`.
//
// Unless null (both or neither), also computes excess (N, slots), the gradients with respect to the scores: P, minus 1
// for the word itself, and 0 beyond the size of a cluster; and dvectors (R, dim), the gradients with respect to the
// vectors. A vector must belong to at most one token. Entries that belong to no token are left unchanged. If `slot` is
// not a word of the cluster, the loss is NaN and its gradients are 0.
void cluster_losses(int threads, const float *vectors, const int64_t *row, const int32_t *slot, const float *words,
                    const Clusters &clusters, const float *bias, float *losses, float *excess, float *dvectors);

// Computes dwords (F, dim) and dbias (F,), or null: gradients of the sum of losses, each times its weight (N,), with
// respect to the words. Entries that belong to no cluster are left unchanged.
void cluster_gradients(int threads, const float *vectors, const int64_t *row, const Clusters &clusters,
                       const float *excess, const float *weight, float *dwords, float *dbias);

}  // namespace vocabench
