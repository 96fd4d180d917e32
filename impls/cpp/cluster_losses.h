// Losses of words among those of their clusters, and the gradients of these. All arrays are float32 and dense.

#pragma once

#include <cstdint>

#include "cluster_products.h"

// losses (N,): of N tokens -log P of the word in `slot` (N,) among those of its cluster; vectors, row, words and bias as
// of `cluster_scores`. Where they are asked for, and neither is null, excess (N, slots), the gradients of the losses by
// the scores, which are P, less 1 for the word itself and 0 beyond a cluster's size; and dvectors (R, dim), those by the
// vectors, each of which is one token's at most. What is no token's is left as it is.
void cluster_losses(int threads, const float *vectors, const int64_t *row, const int32_t *slot, const float *words,
                    const Clusters &clusters, const float *bias, float *losses, float *excess, float *dvectors);

// dwords (F, dim) and dbias (F,) or null, the gradients by the words of the sum of losses, each times its weight (N,).
// What is no cluster's is left as it is.
void cluster_gradients(int threads, const float *vectors, const int64_t *row, const Clusters &clusters,
                       const float *excess, const float *weight, float *dwords, float *dbias);
