// The loss of full softmax and its gradients, without the whole array of logits. All arrays are dense, and float32 but
// for the words and their gradients, which may be bfloat16.

#pragma once

#include <cstdint>

#include "bfloat16.h"

namespace vocabench {

// N hidden vectors (N, dim), their target words (N,), and the weight `share` of each loss (N,).
struct Examples {
    int64_t count, dim;
    const float *vectors;
    const int64_t *target;
    const float *share;
};

// Words (V, dim) and the memory for their gradients: of the two pairs of pointers, one is null.
//
// In bfloat16, a tile of words is widened while it is in a cache, and all sums are float32. The gradients are rounded
// once, at the end. If the examples are more than one block, their sums take another array (V, dim) of float32.
struct FusedWords {
    const float *single;
    float *dsingle;
    const Bfloat16 *half;
    Bfloat16 *dhalf;
};

// Computes total, the sum of the negative log-likelihoods in nats, each times its share, and its gradients with respect
// to the vectors (N, dim), the words (V, dim) and the biases (V,). dim must be a multiple of 16.
//
// Returns false and computes nothing if a target is not a word.
//
// most: examples whose values for all words are in memory at a time.
// by_unit: whether to use the matrix unit, as in `matrix_unit.h`.
bool fused_softmax(int threads, const Examples &examples, int64_t vocab, int64_t most, bool by_unit,
                   const FusedWords &words, const float *bias, float *total, float *dvectors, float *dbias);

}  // namespace vocabench
