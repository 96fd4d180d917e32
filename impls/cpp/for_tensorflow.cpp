// The kernels as operations of TensorFlow. Loading the library registers them.

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "slab_kernels.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_tensor.h"

namespace vocabench {

namespace {

template <class Resource, void (*FREE)(Resource *)>
struct Free {
    void operator()(Resource *resource) const { FREE(resource); }
};
using Status = std::unique_ptr<TF_Status, Free<TF_Status, TF_DeleteStatus>>;
using Tensor = std::unique_ptr<TF_Tensor, Free<TF_Tensor, TF_DeleteTensor>>;

// An error whose description is already in a status.
struct StatusSet : std::exception {};

void check(const TF_Status *status) {
    if (TF_GetCode(status) != TF_OK) throw StatusSet();
}

// Runs call(status) and reports its failure to TensorFlow by `report`.
template <class Context, class Call>
void attempt(Context *context, void (*report)(Context *, TF_Status *), Call call) {
    const Status status(TF_NewStatus());
    try {
        return call(status.get());
    } catch (const StatusSet &) {
    } catch (const BadArgument &error) {
        TF_SetStatus(status.get(), TF_INVALID_ARGUMENT, error.what());
    } catch (const std::bad_alloc &) {
        TF_SetStatus(status.get(), TF_RESOURCE_EXHAUSTED, "no memory for the C++ kernels");
    } catch (const std::exception &error) {
        TF_SetStatus(status.get(), TF_INTERNAL, error.what());
    }
    report(context, status.get());
}

template <class Number>
constexpr TF_DataType TYPE = TF_FLOAT;
template <>
constexpr TF_DataType TYPE<int32_t> = TF_INT32;
template <>
constexpr TF_DataType TYPE<Bfloat16> = TF_BFLOAT16;

// One execution of an operation: its inputs, and outputs that TensorFlow allocates.
class Execution {
  public:
    Execution(TF_OpKernelContext *context, TF_Status *status) : context_(context), status_(status) {
        for (int index = 0; index < TF_NumInputs(context); ++index) {
            TF_Tensor *input = nullptr;
            TF_GetInput(context, index, &input, status);
            inputs_.at(index).reset(input);
            check(status);
        }
    }

    template <class Number>
    Array<const Number> array(int input) const {
        const TF_Tensor *tensor = inputs_.at(input).get();
        const auto *data = static_cast<const Number *>(TF_TensorData(tensor));
        Array<const Number> array(data, TF_TensorByteSize(tensor), TF_NumDims(tensor));
        for (int axis = 0; axis < std::min(array.rank, array.MOST_AXES); ++axis)
            array.sizes[axis] = TF_Dim(tensor, axis);
        return array;
    }
    Array<const float> floats(int input) const { return array<float>(input); }
    Array<const int32_t> integers(int input) const { return array<int32_t>(input); }

    template <class Number>
    Array<Number> output(int index, std::initializer_list<int64_t> shape) {
        int64_t bytes = sizeof(Number);
        for (int64_t size : shape) {
            require_at_least("size of an output", size, 0);
            if (__builtin_mul_overflow(bytes, size, &bytes)) throw std::bad_alloc();
        }
        outputs_.at(index).reset(
            TF_AllocateOutput(context_, index, TYPE<Number>, shape.begin(), shape.size(), bytes, status_));
        check(status_);
        Array<Number> array(static_cast<Number *>(TF_TensorData(outputs_.at(index).get())), bytes, shape.size());
        std::copy(shape.begin(), shape.end(), array.sizes.begin());
        return array;
    }

    [[noreturn]] void fail(TF_Code code, const char *message) const {
        TF_SetStatus(status_, code, message);
        throw StatusSet();
    }

    // The first two inputs of all operations on a slab: the slab, and the word id of each slot.
    SlabKernels kernels(int threads) const { return {threads, floats(0), integers(1)}; }

    // The next three inputs of operations with tokens.
    Tokens tokens() const { return {floats(2), integers(3), integers(4), floats(2).sizes[0]}; }

    // The first four inputs of operations on paths.
    PathArrays paths(int64_t dim) const {
        const Array<const int32_t> index = integers(1);
        return {floats(0).sizes[0], dim, index.sizes[1], floats(0), index, integers(2), integers(3)};
    }

    // The first two inputs of operations on a tree.
    TreeArrays<int32_t> tree() const {
        const Array<const float> nodes = floats(0);
        return {nodes.sizes[0], nodes.sizes[1], nodes, integers(1)};
    }

  private:
    TF_OpKernelContext *context_;
    TF_Status *status_;
    std::array<Tensor, 9> inputs_;  // as many as the operation with the most has
    std::array<Tensor, 5> outputs_;
};

struct Attributes {
    int32_t threads = 1, k = 0, most = 0, width = 0, left_by_columns = 0, right_by_columns = 0, by_unit = 0;
    Projection projection{};
    float temperature = 1, top_p = 1;
};

void *read_attributes(TF_OpKernelConstruction *construction) {
    auto attributes = std::make_unique<Attributes>();
    attempt(construction, TF_OpKernelConstruction_Failure, [&](TF_Status *status) {
        const auto read = [&](auto get, const char *name, auto *place) {  // each operation has some of the attributes
            const bool has = TF_OpKernelConstruction_HasAttr(construction, name, status);
            check(status);
            if (has) get(construction, name, place, status);
            check(status);
        };
        for (const auto &[name, place] : {std::pair{"threads", &attributes->threads},
                                          {"k", &attributes->k},
                                          {"most", &attributes->most},
                                          {"width", &attributes->width},
                                          {"left_by_columns", &attributes->left_by_columns},
                                          {"right_by_columns", &attributes->right_by_columns},
                                          {"by_unit", &attributes->by_unit}})
            read(TF_OpKernelConstruction_GetAttrInt32, name, place);
        auto &[kept, share, least] = attributes->projection;
        for (const auto &[name, place] : {std::pair{"kept", &kept},
                                          {"share", &share},
                                          {"least", &least},
                                          {"temperature", &attributes->temperature},
                                          {"top_p", &attributes->top_p}})
            read(TF_OpKernelConstruction_GetAttrFloat, name, place);
    });
    return attributes.release();
}

void delete_attributes(void *attributes) { delete static_cast<Attributes *>(attributes); }

// The function that TensorFlow calls to compute an operation.
template <void (*COMPUTE)(const Attributes &, Execution &)>
void run(void *attributes, TF_OpKernelContext *context) {
    attempt(context, TF_OpKernelContext_Failure, [&](TF_Status *status) {
        Execution execution(context, status);
        COMPUTE(*static_cast<const Attributes *>(attributes), execution);
    });
}

void scores(const Attributes &attributes, Execution &execution) {
    const SlabKernels kernels = execution.kernels(attributes.threads);
    const Tokens tokens = execution.tokens();
    kernels.scores(tokens, execution.floats(5), execution.output<float>(0, {tokens.count(), kernels.slots()}));
}

void losses(const Attributes &attributes, Execution &execution) {
    const SlabKernels kernels = execution.kernels(attributes.threads);
    const Tokens tokens = execution.tokens();
    const Array<float> losses = execution.output<float>(0, {tokens.count()});
    const Array<float> excess = execution.output<float>(1, {tokens.count(), kernels.slots()});
    const Array<float> dvectors = execution.output<float>(2, {tokens.rows, kernels.dim()});
    kernels.losses(tokens, execution.integers(5), execution.floats(6), losses, excess, dvectors);
}

void gradients(const Attributes &attributes, Execution &execution) {
    const SlabKernels kernels = execution.kernels(attributes.threads);
    const Array<float> dslab = execution.output<float>(0, {kernels.count(), kernels.slots(), kernels.dim()});
    const Array<float> dbias = execution.output<float>(1, {kernels.count(), kernels.slots()});
    kernels.gradients(execution.tokens(), execution.floats(5), execution.floats(6), dslab, dbias);
}

LikeliestArrays<int32_t> likeliest_out(Execution &execution, int64_t rows, int64_t k) {
    require_at_least("k", k, 1);
    const Array<float> values = execution.output<float>(0, {rows, k});
    const Array<int32_t> ids = execution.output<int32_t>(1, {rows, k});
    return {k, values, ids, execution.output<float>(2, {rows})};
}

void likeliest(const Attributes &attributes, Execution &execution) {
    const SlabKernels kernels = execution.kernels(attributes.threads);
    const Array<const float> vectors = execution.floats(3);
    const int64_t rows = vectors.sizes[0];
    likeliest_words(attributes.threads, rows, vectors, execution.floats(4), kernels.words(execution.floats(2)),
                    likeliest_out(execution, rows, attributes.k));
}

void hidden_likeliest(const Attributes &attributes, Execution &execution) {
    const SlabKernels kernels = execution.kernels(attributes.threads);
    const Array<const float> hidden = execution.floats(3);
    const int64_t rows = hidden.sizes[0];
    const UpperLevelArrays level{kernels.dim(),         kernels.count(),     execution.floats(4), execution.floats(5),
                                 attributes.projection, execution.floats(6), execution.floats(7)};
    likeliest_of_hidden(attributes.threads, level, hidden, rows, kernels.words(execution.floats(2)),
                        likeliest_out(execution, rows, attributes.k));
}

void losses_along_paths(const Attributes &attributes, Execution &execution) {
    const Array<const float> nodes = execution.floats(4);
    const PathArrays paths = execution.paths(nodes.sizes[1]);
    const Array<float> losses = execution.output<float>(0, {paths.count});
    const Array<float> dscores = execution.output<float>(1, {paths.count, paths.depth});
    const Array<float> dvectors = execution.output<float>(2, {paths.count, paths.dim});
    path_losses(attributes.threads, paths, nodes, nodes.sizes[0], losses, dscores, dvectors);
}

void gradients_along_paths(const Attributes &attributes, Execution &execution) {
    const PathArrays paths = execution.paths(execution.floats(0).sizes[1]);
    require_shape("nodes", execution.integers(5), {});
    const int64_t nodes = *execution.integers(5).data;
    path_gradients(attributes.threads, paths, execution.floats(4), nodes,
                   execution.output<float>(0, {nodes, paths.dim}));
}

void leaves(const Attributes &attributes, Execution &execution) {
    const Array<const float> vectors = execution.floats(2);
    const int64_t rows = vectors.sizes[0];
    likeliest_leaves(attributes.threads, execution.tree(), vectors, rows, likeliest_out(execution, rows, attributes.k));
}

void beam(const Attributes &attributes, Execution &execution) {
    const Array<const float> vectors = execution.floats(2);
    const int64_t rows = vectors.sizes[0];
    leaves_of_beam(attributes.threads, execution.tree(), vectors, rows, attributes.width,
                   likeliest_out(execution, rows, attributes.k));
}

template <class Number>
void fused(const Attributes &attributes, Execution &execution) {
    const Array<const float> vectors = execution.floats(0);
    const Array<const Number> words = execution.array<Number>(1);
    const auto [vocab, dim, none] = words.sizes;
    const int64_t count = vectors.sizes[0];
    const Array<float> total = execution.output<float>(0, {});
    const Array<float> dvectors = execution.output<float>(1, {count, dim});
    const Array<Number> dwords = execution.output<Number>(2, {vocab, dim});
    const Array<float> dbias = execution.output<float>(3, {vocab});
    const FusedArrays<Number> arrays{
        count,    vocab,  dim,  attributes.most, vectors, words, execution.floats(2), execution.floats(4), total,
        dvectors, dwords, dbias};
    if (!fused_softmax(attributes.threads, arrays, execution.integers(3), attributes.by_unit))
        execution.fail(TF_OUT_OF_RANGE, "a target is none of the words");
}

void product(const Attributes &attributes, Execution &execution) {
    const Factor left = factor("left", execution.floats(0), attributes.left_by_columns);
    const Factor right = factor("right", execution.floats(1), attributes.right_by_columns);
    matrix_product(attributes.threads, left, right, execution.output<float>(0, {left.count, right.count}));
}

void nucleus(const Attributes &attributes, Execution &execution) {
    const Array<const float> log_probs = execution.floats(0);
    const auto [rows, words, none] = log_probs.sizes;
    nucleus_words(attributes.threads, rows, words, log_probs, execution.floats(1), attributes.temperature,
                  attributes.top_p, execution.output<int32_t>(0, {rows}));
}

// Copies an input into an output of its shape, which the caller changes.
Array<float> copied(Execution &execution, int input, int output) {
    const Array<const float> from = execution.floats(input);
    const Array<float> to = from.rank == 1 ? execution.output<float>(output, {from.sizes[0]})
                                           : execution.output<float>(output, {from.sizes[0], from.sizes[1]});
    std::copy_n(from.data, from.elements(), to.data);
    return to;
}

void steps_of_words(const Attributes &attributes, Execution &execution) {
    const Array<float> input_vectors = copied(execution, 0, 0), output_vectors = copied(execution, 1, 1);
    const Array<float> input_squares = copied(execution, 2, 2), output_squares = copied(execution, 3, 3);
    const auto [count, width, none] = execution.integers(4).sizes;
    const auto [lists, depth, nothing] = execution.integers(6).sizes;
    word_steps(attributes.threads, {count, width, lists, depth, input_vectors.sizes[1], input_vectors.sizes[0],
                                    output_vectors.sizes[0], execution.integers(4), execution.integers(5),
                                    execution.integers(6), execution.integers(7), execution.floats(8), input_vectors,
                                    output_vectors, input_squares, output_squares, execution.output<float>(4, {})});
}

void any_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
    TF_ShapeInferenceContextSetUnknownShape(context, status);
}

using Names = std::initializer_list<const char *>;

std::string refused;  // TensorFlow's message about the first operation that it did not register

void add(const char *name, Names attributes, Names inputs, Names outputs,
         void (*compute)(void *, TF_OpKernelContext *)) {
    const Status status(TF_NewStatus());
    TF_OpDefinitionBuilder *operation = TF_NewOpDefinitionBuilder(name);
    for (const char *attribute : attributes) TF_OpDefinitionBuilderAddAttr(operation, attribute);
    for (const char *input : inputs) TF_OpDefinitionBuilderAddInput(operation, input);
    for (const char *output : outputs) TF_OpDefinitionBuilderAddOutput(operation, output);
    TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, any_shape);
    TF_RegisterOpDefinition(operation, status.get());
    if (TF_GetCode(status.get()) == TF_OK)
        TF_RegisterKernelBuilder(name, TF_NewKernelBuilder(name, "CPU", read_attributes, compute, delete_attributes),
                                 status.get());
    if (TF_GetCode(status.get()) != TF_OK && refused.empty()) refused = TF_Message(status.get());
}

const bool added = [] {
    add("VocabenchClusterScores", {"threads: int"},
        {"slab: float", "ids_of: int32", "vectors: float", "row: int32", "end: int32", "bias: float"},
        {"scores: float"}, run<scores>);
    add("VocabenchClusterLosses", {"threads: int"},
        {"slab: float", "ids_of: int32", "vectors: float", "row: int32", "end: int32", "slot: int32", "bias: float"},
        {"losses: float", "excess: float", "dvectors: float"}, run<losses>);
    add("VocabenchClusterGradients", {"threads: int"},
        {"slab: float", "ids_of: int32", "vectors: float", "row: int32", "end: int32", "excess: float",
         "weight: float"},
        {"dslab: float", "dbias: float"}, run<gradients>);
    add("VocabenchLikeliestWords", {"threads: int", "k: int"},
        {"slab: float", "ids_of: int32", "bias: float", "vectors: float", "log_cluster: float"},
        {"values: float", "ids: int32", "share_of_clusters: float"}, run<likeliest>);
    add("VocabenchLikeliestOfHidden", {"threads: int", "k: int", "kept: float", "share: float", "least: float"},
        {"slab: float", "ids_of: int32", "bias: float", "hidden: float", "cluster_projection: float",
         "word_projection: float", "cluster_weight: float", "cluster_bias: float"},
        {"values: float", "ids: int32", "share_of_clusters: float"}, run<hidden_likeliest>);
    add("VocabenchPathLosses", {"threads: int"},
        {"vectors: float", "index: int32", "sign: int32", "place: int32", "nodes: float"},
        {"losses: float", "dscores: float", "dvectors: float"}, run<losses_along_paths>);
    add("VocabenchPathGradients", {"threads: int"},
        {"vectors: float", "index: int32", "sign: int32", "place: int32", "dscores: float", "nodes: int32"},
        {"dnodes: float"}, run<gradients_along_paths>);
    add("VocabenchLikeliestLeaves", {"threads: int", "k: int"}, {"nodes: float", "children: int32", "vectors: float"},
        {"values: float", "ids: int32", "share_of_nodes: float"}, run<leaves>);
    add("VocabenchLeavesOfBeam", {"threads: int", "k: int", "width: int"},
        {"nodes: float", "children: int32", "vectors: float"}, {"values: float", "ids: int32", "share_of_nodes: float"},
        run<beam>);
    add("VocabenchFusedSoftmax", {"threads: int", "most: int", "by_unit: int"},
        {"vectors: float", "words: float", "bias: float", "target: int32", "share: float"},
        {"total: float", "dvectors: float", "dwords: float", "dbias: float"}, run<fused<float>>);
    add("VocabenchFusedBfloat16", {"threads: int", "most: int", "by_unit: int"},
        {"vectors: float", "words: bfloat16", "bias: float", "target: int32", "share: float"},
        {"total: float", "dvectors: float", "dwords: bfloat16", "dbias: float"}, run<fused<Bfloat16>>);
    add("VocabenchMatrixProduct", {"threads: int", "left_by_columns: int", "right_by_columns: int"},
        {"left: float", "right: float"}, {"product: float"}, run<product>);
    add("VocabenchNucleusWords", {"threads: int", "temperature: float", "top_p: float"},
        {"log_probs: float", "uniforms: float"}, {"drawn: int32"}, run<nucleus>);
    add("VocabenchWordSteps", {"threads: int"},
        {"input_vectors: float", "output_vectors: float", "input_squares: float", "output_squares: float",
         "inputs: int32", "list: int32", "row: int32", "sign: int32", "rates: float"},
        {"new_input_vectors: float", "new_output_vectors: float", "new_input_squares: float",
         "new_output_squares: float", "loss: float"},
        run<steps_of_words>);
    return true;
}();

}  // namespace

#pragma GCC visibility push(default)
// Returns an empty string if all operations were registered.
extern "C" const char *refused_by_tensorflow() { return refused.c_str(); }
#pragma GCC visibility pop

}  // namespace vocabench
