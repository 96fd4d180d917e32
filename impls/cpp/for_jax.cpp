// The kernels as custom calls of XLA.

#include <exception>
#include <new>
#include <utility>

#include "slab_kernels.h"
#include "xla/ffi/api/ffi.h"

namespace vocabench {

namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Integers = ffi::Buffer<ffi::S32>;
using Halves = ffi::Buffer<ffi::BF16>;
using FloatsOut = ffi::Result<Floats>;
using IntegersOut = ffi::Result<Integers>;
using HalvesOut = ffi::Result<Halves>;

template <class Number, class Buffer>
Array<Number> array(const Buffer &buffer) {
    const auto shape = buffer.dimensions();
    Array<Number> array(static_cast<Number *>(buffer.untyped_data()), buffer.size_bytes(), shape.size());
    for (size_t axis = 0; axis < std::min(shape.size(), array.sizes.size()); ++axis) array.sizes[axis] = shape[axis];
    return array;
}
Array<const float> in(const Floats &buffer) { return array<const float>(buffer); }
Array<const int32_t> in(const Integers &buffer) { return array<const int32_t>(buffer); }
Array<const Bfloat16> in(const Halves &buffer) { return array<const Bfloat16>(buffer); }
Array<float> out(FloatsOut &buffer) { return array<float>(*buffer); }
Array<int32_t> out(IntegersOut &buffer) { return array<int32_t>(*buffer); }
Array<Bfloat16> out(HalvesOut &buffer) { return array<Bfloat16>(*buffer); }

SlabKernels kernels(int threads, const Floats &slab, const Integers &ids_of) { return {threads, in(slab), in(ids_of)}; }

Tokens tokens(const Floats &vectors, const Integers &row, const Integers &end) {
    return {in(vectors), in(row), in(end), in(vectors).sizes[0]};
}

void scores(int32_t threads, Floats slab, Integers ids_of, Floats vectors, Integers row, Integers end, Floats bias,
            FloatsOut scores) {
    kernels(threads, slab, ids_of).scores(tokens(vectors, row, end), in(bias), out(scores));
}

// Computes gradients only if the outputs have space for them.
void losses(int32_t threads, Floats slab, Integers ids_of, Floats vectors, Integers row, Integers end, Integers slot,
            Floats bias, FloatsOut losses, FloatsOut excess, FloatsOut dvectors) {
    kernels(threads, slab, ids_of)
        .losses(tokens(vectors, row, end), in(slot), in(bias), out(losses), out(excess), out(dvectors));
}

void gradients(int32_t threads, Floats slab, Integers ids_of, Floats vectors, Integers row, Integers end, Floats excess,
               Floats weight, FloatsOut dslab, FloatsOut dbias) {
    kernels(threads, slab, ids_of).gradients(tokens(vectors, row, end), in(excess), in(weight), out(dslab), out(dbias));
}

LikeliestArrays<int32_t> likeliest_out(FloatsOut &values, IntegersOut &ids, FloatsOut &share) {
    return {out(values).sizes[1], out(values), out(ids), out(share)};
}

void likeliest(int32_t threads, Floats slab, Integers ids_of, Floats bias, Floats vectors, Floats log_cluster,
               FloatsOut values, IntegersOut ids, FloatsOut share) {
    const SlabKernels slab_kernels = kernels(threads, slab, ids_of);
    likeliest_words(threads, in(vectors).sizes[0], in(vectors), in(log_cluster), slab_kernels.words(in(bias)),
                    likeliest_out(values, ids, share));
}

void hidden_likeliest(int32_t threads, float kept, float share_of_projected, float least, Floats slab, Integers ids_of,
                      Floats bias, Floats hidden, Floats cluster_projection, Floats word_projection,
                      Floats cluster_weight, Floats cluster_bias, FloatsOut values, IntegersOut ids, FloatsOut share) {
    const SlabKernels slab_kernels = kernels(threads, slab, ids_of);
    const UpperLevelArrays level{slab_kernels.dim(),
                                 slab_kernels.count(),
                                 in(cluster_projection),
                                 in(word_projection),
                                 {kept, share_of_projected, least},
                                 in(cluster_weight),
                                 in(cluster_bias)};
    likeliest_of_hidden(threads, level, in(hidden), in(hidden).sizes[0], slab_kernels.words(in(bias)),
                        likeliest_out(values, ids, share));
}

PathArrays paths(int64_t dim, const Floats &vectors, const Integers &index, const Integers &sign,
                 const Integers &place) {
    return {in(vectors).sizes[0], dim, in(index).sizes[1], in(vectors), in(index), in(sign), in(place)};
}

void losses_along_paths(int32_t threads, Floats vectors, Integers index, Integers sign, Integers place, Floats nodes,
                        FloatsOut losses, FloatsOut dscores, FloatsOut dvectors) {
    const auto [count, dim, none] = in(nodes).sizes;
    path_losses(threads, paths(dim, vectors, index, sign, place), in(nodes), count, out(losses), out(dscores),
                out(dvectors));
}

void gradients_along_paths(int32_t threads, Floats vectors, Integers index, Integers sign, Integers place,
                           Floats dscores, FloatsOut dnodes) {
    const auto [count, dim, none] = out(dnodes).sizes;
    path_gradients(threads, paths(dim, vectors, index, sign, place), in(dscores), count, out(dnodes));
}

TreeArrays<int32_t> tree(const Floats &nodes, const Integers &children) {
    return {in(nodes).sizes[0], in(nodes).sizes[1], in(nodes), in(children)};
}

void leaves(int32_t threads, Floats nodes, Integers children, Floats vectors, FloatsOut values, IntegersOut ids,
            FloatsOut share) {
    likeliest_leaves(threads, tree(nodes, children), in(vectors), in(vectors).sizes[0],
                     likeliest_out(values, ids, share));
}

void beam(int32_t threads, int32_t width, Floats nodes, Integers children, Floats vectors, FloatsOut values,
          IntegersOut ids, FloatsOut share) {
    leaves_of_beam(threads, tree(nodes, children), in(vectors), in(vectors).sizes[0], width,
                   likeliest_out(values, ids, share));
}

template <class Number, class Words, class WordsOut>
void fused(int32_t threads, int32_t most, int32_t by_unit, Floats vectors, Words words, Floats bias, Integers target,
           Floats share, FloatsOut total, FloatsOut dvectors, WordsOut dwords, FloatsOut dbias) {
    const auto [vocab, dim, none] = in(words).sizes;
    const FusedArrays<Number> arrays{in(vectors).sizes[0], vocab,         dim,         most,
                                     in(vectors),          in(words),     in(bias),    in(share),
                                     out(total),           out(dvectors), out(dwords), out(dbias)};
    if (!fused_softmax(threads, arrays, in(target), by_unit)) throw std::out_of_range("a target is none of the words");
}

void product(int32_t threads, int32_t left_by_columns, int32_t right_by_columns, Floats left, Floats right,
             FloatsOut products) {
    matrix_product(threads, factor("left", in(left), left_by_columns), factor("right", in(right), right_by_columns),
                   out(products));
}

void word_gradient(int32_t threads, Floats dscores, Floats vectors, FloatsOut dwords) {
    const auto [count, dim, none] = out(dwords).sizes;
    weight_gradient(threads, in(dscores), in(vectors), in(vectors).sizes[0], count, dim, out(dwords));
}

void nucleus(int32_t threads, float temperature, float top_p, Floats log_probs, Floats uniforms, IntegersOut drawn) {
    const auto [rows, words, none] = in(log_probs).sizes;
    nucleus_words(threads, rows, words, in(log_probs), in(uniforms), temperature, top_p, out(drawn));
}

// Copies an array, unless XLA has given both the same memory.
void copy(const Floats &from, FloatsOut &to) {
    if (from.typed_data() != to->typed_data()) std::copy_n(from.typed_data(), from.element_count(), to->typed_data());
}

void steps_of_words(int32_t threads, Floats input_vectors, Floats output_vectors, Floats input_squares,
                    Floats output_squares, Integers inputs, Integers list, Integers row, Integers sign, Floats rates,
                    FloatsOut new_inputs, FloatsOut new_outputs, FloatsOut new_input_squares,
                    FloatsOut new_output_squares, FloatsOut loss) {
    copy(input_vectors, new_inputs);
    copy(output_vectors, new_outputs);
    copy(input_squares, new_input_squares);
    copy(output_squares, new_output_squares);
    const auto [count, width, none] = in(inputs).sizes;
    const auto [lists, depth, nothing] = in(row).sizes;
    word_steps(threads, {count, width, lists, depth, out(new_inputs).sizes[1], out(new_inputs).sizes[0],
                         out(new_outputs).sizes[0], in(inputs), in(list), in(row), in(sign), in(rates), out(new_inputs),
                         out(new_outputs), out(new_input_squares), out(new_output_squares), out(loss)});
}

// Wraps a function for XLA: exceptions become errors.
template <class... Args>
auto handled(void (*compute)(Args...)) {
    return [compute](Args... args) {
        try {
            compute(std::move(args)...);
            return ffi::Error::Success();
        } catch (const BadArgument &error) {
            return ffi::Error(ffi::ErrorCode::kInvalidArgument, error.what());
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
template <class Words>
auto bound_to_fused() {
    return bound()
        .Attr<int32_t>("most")
        .Attr<int32_t>("by_unit")
        .Arg<Floats>()
        .template Arg<Words>()
        .template Arg<Floats>()
        .template Arg<Integers>()
        .template Arg<Floats>()
        .template Ret<Floats>()
        .template Ret<Floats>()
        .template Ret<Words>()
        .template Ret<Floats>();
}
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
XLA_FFI_DEFINE_HANDLER_SYMBOL(fused_softmax_of_xla, handled(fused<float, Floats, FloatsOut>), bound_to_fused<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fused_bfloat16_of_xla, handled(fused<Bfloat16, Halves, HalvesOut>),
                              bound_to_fused<Halves>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(matrix_product_of_xla, handled(product),
                              bound()
                                  .Attr<int32_t>("left_by_columns")
                                  .Attr<int32_t>("right_by_columns")
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(weight_gradient_of_xla, handled(word_gradient),
                              bound().Arg<Floats>().Arg<Floats>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    nucleus_words_of_xla, handled(nucleus),
    bound().Attr<float>("temperature").Attr<float>("top_p").Arg<Floats>().Arg<Floats>().Ret<Integers>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(word_steps_of_xla, handled(steps_of_words),
                              bound()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Integers>()
                                  .Arg<Integers>()
                                  .Arg<Integers>()
                                  .Arg<Integers>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>());
#pragma GCC visibility pop

}  // namespace vocabench
