// The gradient of a product of vectors with words by the words, for few words. All arrays are float32 and dense.

#pragma once

#include <cstdint>

// dwords (count, dim), of tokens' vectors (tokens, dim) and the gradients by their scores, dscores (tokens, count).
void weight_gradient(int threads, const float *dscores, const float *vectors, int64_t tokens, int64_t count, int64_t dim,
                     float *dwords);
