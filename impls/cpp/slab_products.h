// `cluster_products.h` for words in a slab (clusters, slots, dim), as frameworks with shapes that stand still have them,
// and whole numbers of 32 bits.

#pragma once

#include <algorithm>
#include <vector>

#include "cluster_products.h"

// What the products are given: of N tokens, sorted by cluster, the vectors (N, dim) of their rows, and the slab.
struct SlabTokens {
    const float *vectors;
    const int32_t *row;  // (N,)
    int64_t count;       // N; tokens beyond the last cluster's end are no cluster's
    const float *slab;
    const int32_t *size, *end;  // of each cluster
    int64_t clusters, slots, dim;
};

class SlabProducts {
  public:
    SlabProducts(int threads, const SlabTokens &given)
        : threads_(threads),
          given_(given),
          row_(given.row, given.row + given.count),
          start_(given.clusters),
          size_(given.size, given.size + given.clusters),
          clusters_{given.clusters, start_.data(), size_.data(), given.end, given.dim, given.slots},
          tokens_(given.end[given.clusters - 1]) {
        for (int64_t cluster = 0; cluster < given.clusters; ++cluster) start_[cluster] = cluster * given.slots;
    }

    // scores (N, slots), 0 of tokens that are no cluster's. bias (clusters, slots) or null.
    void scores(const float *bias, float *scores) const {
        cluster_scores(threads_, given_.vectors, row_.data(), given_.slab, clusters_, bias, scores);
        std::fill(scores + tokens_ * given_.slots, scores + given_.count * given_.slots, 0.0f);
    }

    // dvectors (N, dim) and dslab, 0 of tokens that are no cluster's and of slots that hold no word.
    void gradients(const float *dscores, float *dvectors, float *dslab) const {
        for (int64_t token = tokens_; token < given_.count; ++token)
            std::fill_n(dvectors + row_[token] * given_.dim, given_.dim, 0.0f);
        for (int64_t cluster = 0; cluster < given_.clusters; ++cluster) {
            const int64_t first = start_[cluster] + size_[cluster], last = start_[cluster] + given_.slots;
            std::fill(dslab + first * given_.dim, dslab + last * given_.dim, 0.0f);
        }
        cluster_gradients(threads_, given_.vectors, row_.data(), given_.slab, clusters_, dscores, dvectors, dslab);
    }

  private:
    int threads_;
    SlabTokens given_;
    std::vector<int64_t> row_, start_, size_;
    Clusters clusters_;
    int64_t tokens_;
};
