// The search over both levels of a two-level layer.

#pragma once

#include <memory>

#include "cluster_search.h"
#include "upper_level.h"

namespace vocabench {

// `likeliest_words` for hidden vectors (count, dim), from which the upper level is computed first.
template <class Id>
void likeliest_of_hidden(int threads, const UpperLevel &level, const float *hidden, int64_t count,
                         const ClusteredWords<Id> &words, const Likeliest<Id> &likeliest) {
    const std::unique_ptr<float[]> log_cluster(new float[count * level.count]);
    const std::unique_ptr<float[]> projected(level.word_projection ? new float[count * level.dim] : nullptr);
    upper_level(threads, level, hidden, count, log_cluster.get(), projected.get());
    likeliest_words(threads, {count, projected ? projected.get() : hidden, log_cluster.get()}, words, likeliest);
}

}  // namespace vocabench
