// `cluster_products.h` as operations of XLA, for words in a slab (clusters, slots, dim).

#include <algorithm>
#include <vector>

#include "cluster_products.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Integers = ffi::Buffer<ffi::S32>;
using FloatsOut = ffi::Result<Floats>;

namespace {

std::vector<int64_t> wide(const Integers &narrow) {
    return {narrow.typed_data(), narrow.typed_data() + narrow.element_count()};
}

// What the operations are given: slab (C, S, D), vectors (N, D), and int32 of the tokens, sorted by cluster, and of the
// clusters. Tokens beyond the last cluster's end are none's.
struct Given {
    std::vector<int64_t> row, start, size;
    Clusters clusters;
    int64_t tokens;  // that are some cluster's

    Given(const Integers &row, const Floats &slab, const Integers &size, const Integers &end)
        : row(wide(row)), start(size.element_count()), size(wide(size)) {
        const int64_t count = slab.dimensions()[0], slots = slab.dimensions()[1];
        for (int64_t cluster = 0; cluster < count; ++cluster) start[cluster] = cluster * slots;
        clusters = {count, start.data(), this->size.data(), end.typed_data(), slab.dimensions()[2], slots};
        tokens = clusters.end[count - 1];
    }
};

ffi::Error scores(int32_t threads, Floats vectors, Integers row, Floats slab, Integers size, Integers end, Floats bias,
                  FloatsOut scores) {
    const Given given(row, slab, size, end);
    cluster_scores(threads, vectors.typed_data(), given.row.data(), slab.typed_data(), given.clusters,
                   bias.element_count() ? bias.typed_data() : nullptr, scores->typed_data());
    std::fill(scores->typed_data() + given.tokens * given.clusters.slots,
              scores->typed_data() + scores->element_count(), 0.0f);
    return ffi::Error::Success();
}

ffi::Error gradients(int32_t threads, Floats vectors, Integers row, Floats slab, Integers size, Integers end,
                     Floats dscores, FloatsOut dvectors, FloatsOut dslab) {
    const Given given(row, slab, size, end);
    const int64_t dim = given.clusters.dim, slots = given.clusters.slots;
    for (size_t token = given.tokens; token < given.row.size(); ++token)
        std::fill_n(dvectors->typed_data() + given.row[token] * dim, dim, 0.0f);
    for (int64_t cluster = 0; cluster < given.clusters.count; ++cluster) {
        const int64_t size = given.size[cluster];
        std::fill_n(dslab->typed_data() + (cluster * slots + size) * dim, (slots - size) * dim, 0.0f);
    }
    cluster_gradients(threads, vectors.typed_data(), given.row.data(), slab.typed_data(), given.clusters,
                      dscores.typed_data(), dvectors->typed_data(), dslab->typed_data());
    return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(cluster_scores_of_xla, scores,
                              ffi::Ffi::Bind()
                                  .Attr<int32_t>("threads")
                                  .Arg<Floats>().Arg<Integers>().Arg<Floats>().Arg<Integers>().Arg<Integers>()
                                  .Arg<Floats>()
                                  .Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(cluster_gradients_of_xla, gradients,
                              ffi::Ffi::Bind()
                                  .Attr<int32_t>("threads")
                                  .Arg<Floats>().Arg<Integers>().Arg<Floats>().Arg<Integers>().Arg<Integers>()
                                  .Arg<Floats>()
                                  .Ret<Floats>().Ret<Floats>());
