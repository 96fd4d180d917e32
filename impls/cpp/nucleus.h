// Draws words from the likeliest ones (nucleus sampling, Holtzman et al. 2020). All arrays are dense.

#pragma once

#include <cstdint>

namespace vocabench {

// Draws a word for each row of log-probabilities (rows, words), into drawn (rows,), from the fewest likeliest words
// whose probabilities sum to at least `top_p`.
//
// The words are in the order of their log-probabilities, highest first, equal ones by id. A uniform number (rows,)
// draws the first word at which the sum of the probabilities exceeds this share of their sum over the kept words. For a
// row that contains NaN, or no finite number, the word is 0.
//
// temperature: above 0; probabilities are proportional to e^(log-probability / temperature).
// top_p: above 0, at most 1.
// Id: int32_t or int64_t.
template <class Id>
void nucleus_words(int threads, int64_t rows, int64_t words, const float *log_probs, const float *uniforms,
                   float temperature, float top_p, Id *drawn);

}  // namespace vocabench
