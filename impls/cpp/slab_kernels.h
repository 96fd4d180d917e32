// `cluster_products.h`, `cluster_losses.h` and `cluster_search.h` for words in a slab (clusters, slots, dim) and int32
// indices, which is the layout of frameworks with static shapes.

#pragma once

#include <algorithm>
#include <vector>

#include "cluster_losses.h"
#include "cluster_search.h"

namespace vocabench {

// Words by cluster and slot.
struct Slab {
    const float *words;
    const int32_t *ids;  // (clusters, slots) word ids; negative in empty slots, which come last
    int64_t clusters, slots, dim;

    int64_t size(int64_t cluster) const {
        const int32_t *first = ids + cluster * slots;
        return std::partition_point(first, first + slots, [](int32_t id) { return id >= 0; }) - first;
    }
};

// Tokens, sorted by cluster, and their vectors.
struct Tokens {
    const float *vectors;
    const int32_t *row;  // (count,) row of each token in `vectors`
    int64_t count;
    const int32_t *end;  // (clusters,) one past the last token of each cluster; tokens beyond belong to no cluster
};

class SlabKernels {
  public:
    SlabKernels(int threads, const Slab &slab)
        : threads_(threads), slab_(slab), start_(slab.clusters), size_(slab.clusters) {
        for (int64_t cluster = 0; cluster < slab.clusters; ++cluster) {
            start_[cluster] = cluster * slab.slots;
            size_[cluster] = slab.size(cluster);
        }
    }

    // scores (count, slots), 0 for tokens without a cluster. bias (clusters, slots) or null.
    void scores(const Tokens &tokens, const float *bias, float *scores) const {
        const std::vector<int64_t> row = rows(tokens);
        cluster_scores(threads_, tokens.vectors, row.data(), slab_.words, clusters(tokens.end), bias, scores);
        std::fill(scores + clustered(tokens) * slab_.slots, scores + tokens.count * slab_.slots, 0.0f);
    }

    // `cluster_losses`: losses (count,) and, unless null, excess (count, slots) and dvectors (count, dim). All are 0
    // for tokens without a cluster.
    void losses(const Tokens &tokens, const int32_t *slot, const float *bias, float *losses, float *excess,
                float *dvectors) const {
        const std::vector<int64_t> row = rows(tokens);
        cluster_losses(threads_, tokens.vectors, row.data(), slot, slab_.words, clusters(tokens.end), bias, losses,
                       excess, dvectors);
        const int64_t first = clustered(tokens);
        std::fill(losses + first, losses + tokens.count, 0.0f);
        if (!excess) return;
        std::fill(excess + first * slab_.slots, excess + tokens.count * slab_.slots, 0.0f);
        for (int64_t token = first; token < tokens.count; ++token)
            std::fill_n(dvectors + row[token] * slab_.dim, slab_.dim, 0.0f);
    }

    // dslab, and dbias (clusters, slots) or null. Both are 0 in empty slots.
    void gradients(const Tokens &tokens, const float *excess, const float *weight, float *dslab, float *dbias) const {
        const std::vector<int64_t> row = rows(tokens);
        for (int64_t cluster = 0; cluster < slab_.clusters; ++cluster) {
            const int64_t first = start_[cluster] + size_[cluster], last = start_[cluster] + slab_.slots;
            std::fill(dslab + first * slab_.dim, dslab + last * slab_.dim, 0.0f);
            if (dbias) std::fill(dbias + first, dbias + last, 0.0f);
        }
        cluster_gradients(threads_, tokens.vectors, row.data(), clusters(tokens.end), excess, weight, dslab, dbias);
    }

    // The words as `likeliest_words` takes them. bias (clusters, slots) or null.
    ClusteredWords<int32_t> words(const float *bias) const { return {slab_.words, bias, slab_.ids, clusters(nullptr)}; }

  private:
    Clusters clusters(const int32_t *end) const {
        return {slab_.clusters, start_.data(), size_.data(), end, slab_.dim, slab_.slots};
    }
    int64_t clustered(const Tokens &tokens) const { return tokens.end[slab_.clusters - 1]; }
    static std::vector<int64_t> rows(const Tokens &tokens) { return {tokens.row, tokens.row + tokens.count}; }

    int threads_;
    Slab slab_;
    std::vector<int64_t> start_, size_;
};

}  // namespace vocabench
