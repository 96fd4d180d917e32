// The gradient of dot products with respect to the words, for few words. All arrays are float32 and dense.

#pragma once

#include <cstdint>

namespace vocabench {

// Computes dwords (count, dim) from the vectors (tokens, dim) and the gradients with respect to the scores, dscores
// (tokens, count).
void weight_gradient(int threads, const float *dscores, const float *vectors, int64_t tokens, int64_t count,
                     int64_t dim, float *dwords);

}  // namespace vocabench
