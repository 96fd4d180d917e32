// `slab_products.h` as operations of XLA.

#include "slab_products.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Integers = ffi::Buffer<ffi::S32>;
using FloatsOut = ffi::Result<Floats>;

namespace {

SlabProducts products(int threads, Floats &vectors, Integers &row, Floats &slab, Integers &size, Integers &end) {
    const auto shape = slab.dimensions();
    return {threads,
            {vectors.typed_data(), row.typed_data(), static_cast<int64_t>(row.element_count()), slab.typed_data(),
             size.typed_data(), end.typed_data(), shape[0], shape[1], shape[2]}};
}

ffi::Error scores(int32_t threads, Floats vectors, Integers row, Floats slab, Integers size, Integers end, Floats bias,
                  FloatsOut scores) {
    products(threads, vectors, row, slab, size, end)
        .scores(bias.element_count() ? bias.typed_data() : nullptr, scores->typed_data());
    return ffi::Error::Success();
}

ffi::Error gradients(int32_t threads, Floats vectors, Integers row, Floats slab, Integers size, Integers end,
                     Floats dscores, FloatsOut dvectors, FloatsOut dslab) {
    products(threads, vectors, row, slab, size, end)
        .gradients(dscores.typed_data(), dvectors->typed_data(), dslab->typed_data());
    return ffi::Error::Success();
}

auto given() {
    return ffi::Ffi::Bind().Attr<int32_t>("threads").Arg<Floats>().Arg<Integers>().Arg<Floats>().Arg<Integers>()
        .Arg<Integers>();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(cluster_scores_of_xla, scores, given().Arg<Floats>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(cluster_gradients_of_xla, gradients,
                              given().Arg<Floats>().Ret<Floats>().Ret<Floats>());
