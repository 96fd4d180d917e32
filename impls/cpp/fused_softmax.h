// The loss of full softmax and its gradients, whose logits never exist whole. All arrays are float32 and dense.

#pragma once

#include <cstdint>

// N vectors (N, dim); the word that each should lead to, and what each loss counts for, (N,).
struct Examples {
    int64_t count, dim;
    const float *vectors;
    const int64_t *target;
    const float *share;
};

// total: the sum of the negative log-likelihoods in nats, each times its share; and its gradients by the vectors
// (N, dim), the words (V, dim) and their bias (V,). dim: a multiple of the numbers of a register, 16 at most.
//
// False, and nothing of these, where a target is none of the words.
//
// most: examples whose numbers for all words are in memory at a time.
// by_unit: whether products are made by a unit for matrices, as `matrix_unit.h` has it.
bool fused_softmax(int threads, const Examples &examples, int64_t vocab, int64_t most, bool by_unit, const float *words,
                   const float *bias, float *total, float *dvectors, float *dwords, float *dbias);
