// The loss of full softmax and its gradients, without the whole array of logits. All arrays are float32 and dense.

#pragma once

#include <cstdint>

namespace vocabench {

// N hidden vectors (N, dim), their target words (N,), and the weight `share` of each loss (N,).
struct Examples {
    int64_t count, dim;
    const float *vectors;
    const int64_t *target;
    const float *share;
};

// Computes total, the sum of the negative log-likelihoods in nats, each times its share, and its gradients with respect
// to the vectors (N, dim), the words (V, dim) and the biases (V,). dim must be a multiple of 16.
//
// Returns false and computes nothing if a target is not a word.
//
// most: examples whose values for all words are in memory at a time.
// by_unit: whether to use the matrix unit, as in `matrix_unit.h`.
bool fused_softmax(int threads, const Examples &examples, int64_t vocab, int64_t most, bool by_unit, const float *words,
                   const float *bias, float *total, float *dvectors, float *dwords, float *dbias);

}  // namespace vocabench
