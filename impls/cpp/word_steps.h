// Training of word vectors by one step of SGD after the other, as in word2vec (Mikolov et al. 2013).

#pragma once

#include <cstdint>

namespace vocabench {

// Examples, each of which predicts from the mean of input vectors. Its loss is the sum over a list of output vectors of
// -log sigma(sign * output . mean): the nodes on a path of a tree, or a word and the words sampled against it.
//
// inputs (count, width): the inputs of each example, at least one; negative where there is none. list (count,): the
// list of each example; negative for an example that is left out. row, sign (lists, depth): the outputs of each list,
// and 1 or -1; sign 0 where there is none.
struct WordExamples {
    int64_t count, width, lists, depth, dim;
    const int32_t *inputs, *list, *row, *sign;
};

// Vectors of words, and the sum of the mean squared gradients of each, above 0: steps are divided by its root (Duchi et
// al. 2011, Adagrad, with one sum for a vector). `squares` is null if all vectors have the same rate.
struct WordVectors {
    float *vectors, *squares;
};

// Takes a step for each example in turn, and returns the sum of their losses before their own steps. The rate falls
// linearly from `first_rate` to `last_rate`, which it would reach after the last example.
//
// Threads share the examples and change the same vectors without locks (Recht et al. 2011, "Hogwild"): with more than
// one thread, results differ from run to run.
double word_steps(int threads, const WordExamples &examples, float first_rate, float last_rate, WordVectors inputs,
                  WordVectors outputs);

}  // namespace vocabench
