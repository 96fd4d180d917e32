// The kernels as custom calls of XLA.

#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "fused_softmax.h"
#include "matrix_products.h"
#include "slab_kernels.h"
#include "tree_paths.h"
#include "tree_search.h"
#include "two_levels.h"
#include "weight_gradient.h"
#include "xla/ffi/api/ffi.h"

namespace vocabench {

namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Integers = ffi::Buffer<ffi::S32>;
using FloatsOut = ffi::Result<Floats>;
using IntegersOut = ffi::Result<Integers>;

SlabKernels kernels(int threads, Floats &slab, Integers &ids_of) {
    const auto shape = slab.dimensions();
    return {threads, {slab.typed_data(), ids_of.typed_data(), shape[0], shape[1], shape[2]}};
}

Tokens tokens(Floats &vectors, Integers &row, Integers &end) {
    return {vectors.typed_data(), row.typed_data(), static_cast<int64_t>(row.element_count()), end.typed_data()};
}

const float *or_null(Floats &bias) { return bias.element_count() ? bias.typed_data() : nullptr; }

void scores(int32_t threads, Floats slab, Integers ids_of, Floats vectors, Integers row, Integers end, Floats bias,
            FloatsOut scores) {
    kernels(threads, slab, ids_of).scores(tokens(vectors, row, end), or_null(bias), scores->typed_data());
}

// Computes gradients only if the outputs have space for them.
void losses(int32_t threads, Floats slab, Integers ids_of, Floats vectors, Integers row, Integers end, Integers slot,
            Floats bias, FloatsOut losses, FloatsOut excess, FloatsOut dvectors) {
    const bool gradients = excess->dimensions()[0] == row.dimensions()[0];
    kernels(threads, slab, ids_of)
        .losses(tokens(vectors, row, end), slot.typed_data(), or_null(bias), losses->typed_data(),
                gradients ? excess->typed_data() : nullptr, gradients ? dvectors->typed_data() : nullptr);
}

void gradients(int32_t threads, Floats slab, Integers ids_of, Floats vectors, Integers row, Integers end, Floats excess,
               Floats weight, FloatsOut dslab, FloatsOut dbias) {
    float *dbias_or_null = dbias->element_count() ? dbias->typed_data() : nullptr;
    kernels(threads, slab, ids_of)
        .gradients(tokens(vectors, row, end), excess.typed_data(), weight.typed_data(), dslab->typed_data(),
                   dbias_or_null);
}

Likeliest<int32_t> likeliest_out(FloatsOut &values, IntegersOut &ids, FloatsOut &share) {
    return {values->dimensions()[1], values->typed_data(), ids->typed_data(), share->typed_data()};
}

void likeliest(int32_t threads, Floats slab, Integers ids_of, Floats bias, Floats vectors, Floats log_cluster,
               FloatsOut values, IntegersOut ids, FloatsOut share) {
    const Searched searched{vectors.dimensions()[0], vectors.typed_data(), log_cluster.typed_data()};
    likeliest_words(threads, searched, kernels(threads, slab, ids_of).words(or_null(bias)),
                    likeliest_out(values, ids, share));
}

void hidden_likeliest(int32_t threads, float kept, float share_of_projected, float least, Floats slab, Integers ids_of,
                      Floats bias, Floats hidden, Floats cluster_projection, Floats word_projection,
                      Floats cluster_weight, Floats cluster_bias, FloatsOut values, IntegersOut ids, FloatsOut share) {
    const auto shape = cluster_weight.dimensions();
    const UpperLevel level{shape[1],
                           shape[0],
                           or_null(cluster_projection),
                           or_null(word_projection),
                           {kept, share_of_projected, least},
                           cluster_weight.typed_data(),
                           or_null(cluster_bias)};
    likeliest_of_hidden(threads, level, hidden.typed_data(), hidden.dimensions()[0],
                        kernels(threads, slab, ids_of).words(or_null(bias)), likeliest_out(values, ids, share));
}

Paths paths(Floats &vectors, Integers &index, Integers &sign, Integers &place) {
    const auto shape = index.dimensions();
    const int64_t dim = vectors.dimensions()[1];
    return {shape[0], dim, shape[1], vectors.typed_data(), index.typed_data(), sign.typed_data(), place.typed_data()};
}

void losses_along_paths(int32_t threads, Floats vectors, Integers index, Integers sign, Integers place, Floats nodes,
                        FloatsOut losses, FloatsOut dscores, FloatsOut dvectors) {
    path_losses(threads, paths(vectors, index, sign, place), nodes.typed_data(), losses->typed_data(),
                dscores->typed_data(), dvectors->typed_data());
}

void gradients_along_paths(int32_t threads, Floats vectors, Integers index, Integers sign, Integers place,
                           Floats dscores, FloatsOut dnodes) {
    path_gradients(threads, paths(vectors, index, sign, place), dscores.typed_data(), dnodes->dimensions()[0],
                   dnodes->typed_data());
}

Tree<int32_t> tree(Floats &nodes, Integers &children) {
    const auto shape = nodes.dimensions();
    return {shape[0], shape[1], nodes.typed_data(), children.typed_data()};
}

void leaves(int32_t threads, Floats nodes, Integers children, Floats vectors, FloatsOut values, IntegersOut ids,
            FloatsOut share) {
    likeliest_leaves(threads, tree(nodes, children), vectors.typed_data(), vectors.dimensions()[0],
                     likeliest_out(values, ids, share));
}

void beam(int32_t threads, int32_t width, Floats nodes, Integers children, Floats vectors, FloatsOut values,
          IntegersOut ids, FloatsOut share) {
    leaves_of_beam(threads, tree(nodes, children), vectors.typed_data(), vectors.dimensions()[0], width,
                   likeliest_out(values, ids, share));
}

void fused(int32_t threads, int32_t most, int32_t by_unit, Floats vectors, Floats words, Floats bias, Integers target,
           Floats share, FloatsOut total, FloatsOut dvectors, FloatsOut dwords, FloatsOut dbias) {
    const auto shape = vectors.dimensions();
    const std::vector<int64_t> targets(target.typed_data(), target.typed_data() + shape[0]);
    const Examples examples{shape[0], shape[1], vectors.typed_data(), targets.data(), share.typed_data()};
    if (!fused_softmax(threads, examples, words.dimensions()[0], most, by_unit, words.typed_data(), bias.typed_data(),
                       total->typed_data(), dvectors->typed_data(), dwords->typed_data(), dbias->typed_data()))
        throw std::out_of_range("a target is none of the words");
}

void product(int32_t threads, int32_t left_by_columns, int32_t right_by_columns, Floats left, Floats right,
             FloatsOut out) {
    const auto factor = [](Floats &matrix, int32_t by_columns) {
        return Factor::of(matrix.typed_data(), matrix.dimensions()[0], matrix.dimensions()[1], by_columns);
    };
    matrix_product(threads, factor(left, left_by_columns), factor(right, right_by_columns), out->typed_data());
}

void word_gradient(int32_t threads, Floats dscores, Floats vectors, FloatsOut dwords) {
    const auto shape = vectors.dimensions();
    weight_gradient(threads, dscores.typed_data(), vectors.typed_data(), shape[0], dscores.dimensions()[1], shape[1],
                    dwords->typed_data());
}

// Wraps a function for XLA: exceptions become errors.
template <class... Args>
auto handled(void (*compute)(Args...)) {
    return [compute](Args... args) {
        try {
            compute(std::move(args)...);
            return ffi::Error::Success();
        } catch (const std::bad_alloc &) {
            return ffi::Error(ffi::ErrorCode::kResourceExhausted, "no memory for the C++ kernels");
        } catch (const std::out_of_range &error) {
            return ffi::Error(ffi::ErrorCode::kOutOfRange, error.what());
        } catch (const std::exception &error) {
            return ffi::Error(ffi::ErrorCode::kInternal, error.what());
        }
    };
}

auto bound() { return ffi::Ffi::Bind().Attr<int32_t>("threads"); }
auto bound_to_tokens() { return bound().Arg<Floats>().Arg<Integers>().Arg<Floats>().Arg<Integers>().Arg<Integers>(); }
auto bound_to_paths() { return bound().Arg<Floats>().Arg<Integers>().Arg<Integers>().Arg<Integers>().Arg<Floats>(); }

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(cluster_scores_of_xla, handled(scores), bound_to_tokens().Arg<Floats>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    cluster_losses_of_xla, handled(losses),
    bound_to_tokens().Arg<Integers>().Arg<Floats>().Ret<Floats>().Ret<Floats>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(cluster_gradients_of_xla, handled(gradients),
                              bound_to_tokens().Arg<Floats>().Arg<Floats>().Ret<Floats>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(likeliest_words_of_xla, handled(likeliest),
                              bound()
                                  .Arg<Floats>()
                                  .Arg<Integers>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Integers>()
                                  .Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(likeliest_of_hidden_of_xla, handled(hidden_likeliest),
                              bound()
                                  .Attr<float>("kept")
                                  .Attr<float>("share")
                                  .Attr<float>("least")
                                  .Arg<Floats>()
                                  .Arg<Integers>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Integers>()
                                  .Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(path_losses_of_xla, handled(losses_along_paths),
                              bound_to_paths().Ret<Floats>().Ret<Floats>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(path_gradients_of_xla, handled(gradients_along_paths), bound_to_paths().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    likeliest_leaves_of_xla, handled(leaves),
    bound().Arg<Floats>().Arg<Integers>().Arg<Floats>().Ret<Floats>().Ret<Integers>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(leaves_of_beam_of_xla, handled(beam),
                              bound()
                                  .Attr<int32_t>("width")
                                  .Arg<Floats>()
                                  .Arg<Integers>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Integers>()
                                  .Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fused_softmax_of_xla, handled(fused),
                              bound()
                                  .Attr<int32_t>("most")
                                  .Attr<int32_t>("by_unit")
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Integers>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(matrix_product_of_xla, handled(product),
                              bound()
                                  .Attr<int32_t>("left_by_columns")
                                  .Attr<int32_t>("right_by_columns")
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(weight_gradient_of_xla, handled(word_gradient),
                              bound().Arg<Floats>().Arg<Floats>().Ret<Floats>());
#pragma GCC visibility pop

}  // namespace vocabench
