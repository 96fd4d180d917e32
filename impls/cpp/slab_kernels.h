// `cluster_products.h`, `cluster_losses.h` and `cluster_search.h` for words in a slab (clusters, slots, dim) and int32
// indices, which is the layout of frameworks with static shapes. All arguments are checked.

#pragma once

#include <algorithm>
#include <vector>

#include "entry_points.h"

namespace vocabench {

using Tokens = TokenArrays<int32_t>;

class SlabKernels {
  public:
    // slab (clusters, slots, dim): words by cluster and slot. ids (clusters, slots): word ids; negative in empty slots,
    // which come last.
    SlabKernels(int threads, const Array<const float> &slab, const Array<const int32_t> &ids)
        : threads_(threads), slab_(slab), ids_(ids), start_(slab.sizes[0]), size_(slab.sizes[0]) {
        require_threads(threads);
        require_shape("slab", slab, {count(), slots(), dim()});
        require_between("clusters", count(), 1, MOST_CLUSTERS);
        require_shape("ids", ids, {count(), slots()});
        for (int64_t cluster = 0; cluster < count(); ++cluster) {
            const int32_t *first = ids.data + cluster * slots();
            const auto is_word = [](int32_t id) { return id >= 0; };
            start_[cluster] = cluster * slots();
            size_[cluster] = std::partition_point(first, first + slots(), is_word) - first;
        }
    }

    int64_t count() const { return slab_.sizes[0]; }
    int64_t slots() const { return slab_.sizes[1]; }
    int64_t dim() const { return slab_.sizes[2]; }

    // scores (count, slots), 0 for tokens without a cluster, which come last. bias (clusters, slots) or absent.
    void scores(const Tokens &tokens, const Array<const float> &bias, const Array<float> &scores) const {
        check(tokens);
        require_shape_if_any("bias", bias, {count(), slots()});
        require_shape("scores", scores, {tokens.count(), slots()});
        const std::vector<int64_t> row = rows(tokens);
        cluster_scores(threads_, tokens.vectors.data, row.data(), slab_.data, clusters(tokens), bias.or_null(),
                       scores.data);
        std::fill(scores.data + clustered(tokens) * slots(), scores.data + tokens.count() * slots(), 0.0f);
    }

    // `cluster_losses`: losses (count,), and excess (count, slots) and dvectors (rows, dim) if these have rows. All are
    // 0 for tokens without a cluster.
    void losses(const Tokens &tokens, const Array<const int32_t> &slot, const Array<const float> &bias,
                const Array<float> &losses, const Array<float> &excess, const Array<float> &dvectors) const {
        check(tokens);
        const bool gradients = excess.sizes[0] || dvectors.sizes[0];
        require_shape("slot", slot, {tokens.count()});
        require_shape_if_any("bias", bias, {count(), slots()});
        require_shape("losses", losses, {tokens.count()});
        require_shape("excess", excess, {gradients ? tokens.count() : 0, slots()});
        require_shape("dvectors", dvectors, {gradients ? tokens.rows : 0, dim()});
        const std::vector<int64_t> row = rows(tokens);
        cluster_losses(threads_, tokens.vectors.data, row.data(), slot.data, slab_.data, clusters(tokens),
                       bias.or_null(), losses.data, gradients ? excess.data : nullptr, dvectors.data);
        const int64_t first = clustered(tokens);
        std::fill(losses.data + first, losses.data + tokens.count(), 0.0f);
        if (!gradients) return;
        std::fill(excess.data + first * slots(), excess.data + tokens.count() * slots(), 0.0f);
        for (int64_t token = first; token < tokens.count(); ++token)
            std::fill_n(dvectors.data + row[token] * dim(), dim(), 0.0f);
    }

    // dslab, and dbias (clusters, slots) or absent. Both are 0 in empty slots.
    void gradients(const Tokens &tokens, const Array<const float> &excess, const Array<const float> &weight,
                   const Array<float> &dslab, const Array<float> &dbias) const {
        check(tokens);
        require_shape("excess", excess, {tokens.count(), slots()});
        require_shape("weight", weight, {tokens.count()});
        require_shape("dslab", dslab, {count(), slots(), dim()});
        require_shape_if_any("dbias", dbias, {count(), slots()});
        const std::vector<int64_t> row = rows(tokens);
        for (int64_t cluster = 0; cluster < count(); ++cluster) {
            const int64_t first = start_[cluster] + size_[cluster], last = start_[cluster] + slots();
            std::fill(dslab.data + first * dim(), dslab.data + last * dim(), 0.0f);
            if (dbias.or_null()) std::fill(dbias.data + first, dbias.data + last, 0.0f);
        }
        cluster_gradients(threads_, tokens.vectors.data, row.data(), clusters(tokens), excess.data, weight.data,
                          dslab.data, dbias.or_null());
    }

    // The words as `likeliest_words` takes them. bias (clusters, slots) or absent.
    ClusteredWords<int32_t> words(const Array<const float> &bias) const {
        require_shape_if_any("bias", bias, {count(), slots()});
        return {slab_.data, bias.or_null(), ids_.data, {count(), start_.data(), size_.data(), nullptr, dim(), slots()}};
    }

  private:
    void check(const Tokens &tokens) const { tokens.check(count(), dim()); }
    Clusters clusters(const Tokens &tokens) const {
        return {count(), start_.data(), size_.data(), tokens.end.data, dim(), slots()};
    }
    int64_t clustered(const Tokens &tokens) const { return tokens.end.data[count() - 1]; }
    static std::vector<int64_t> rows(const Tokens &tokens) {
        return {tokens.row.data, tokens.row.data + tokens.count()};
    }

    int threads_;
    Array<const float> slab_;
    Array<const int32_t> ids_;
    std::vector<int64_t> start_, size_;
};

}  // namespace vocabench
