// `slab_kernels.h`, `two_levels.h`, `tree_paths.h`, `tree_search.h`, `fused_softmax.h` and `matrix_products.h` as
// operations of TensorFlow, which are there once this is loaded.

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "fused_softmax.h"
#include "matrix_products.h"
#include "slab_kernels.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_tensor.h"
#include "tree_paths.h"
#include "tree_search.h"
#include "two_levels.h"

namespace {

template <class Owned, void (*FREE)(Owned *)>
struct Free {
    void operator()(Owned *owned) const { FREE(owned); }
};
using Status = std::unique_ptr<TF_Status, Free<TF_Status, TF_DeleteStatus>>;
using Tensor = std::unique_ptr<TF_Tensor, Free<TF_Tensor, TF_DeleteTensor>>;

// What failed, where a status tells why.
struct Told : std::exception {};

void check(const TF_Status *status) {
    if (TF_GetCode(status) != TF_OK) throw Told();
}

// call(status), of whose failure TensorFlow is told by `tell`.
template <class Context, class Call>
void attempt(Context *context, void (*tell)(Context *, TF_Status *), Call call) {
    const Status status(TF_NewStatus());
    try {
        return call(status.get());
    } catch (const Told &) {
    } catch (const std::bad_alloc &) {
        TF_SetStatus(status.get(), TF_RESOURCE_EXHAUSTED, "no memory for the C++ kernels");
    } catch (const std::exception &error) {
        TF_SetStatus(status.get(), TF_INTERNAL, error.what());
    }
    tell(context, status.get());
}

// One run of an operation: its inputs, and outputs in TensorFlow's own memory.
class Run {
  public:
    Run(TF_OpKernelContext *context, TF_Status *status) : context_(context), status_(status) {
        for (int number = 0; number < TF_NumInputs(context); ++number) {
            TF_Tensor *input = nullptr;
            TF_GetInput(context, number, &input, status);
            inputs_[number].reset(input);
            check(status);
        }
    }

    template <class Number>
    const Number *data(int input) const {
        return static_cast<const Number *>(TF_TensorData(inputs_[input].get()));
    }

    int64_t size(int input, int axis) const { return TF_Dim(inputs_[input].get(), axis); }

    template <class Number>
    Number *output(int number, std::initializer_list<int64_t> shape) {
        static_assert(sizeof(Number) == 4);
        size_t bytes = sizeof(Number);
        for (int64_t size : shape) bytes *= size;
        const TF_DataType type = std::is_same_v<Number, float> ? TF_FLOAT : TF_INT32;
        outputs_[number].reset(
            TF_AllocateOutput(context_, number, type, shape.begin(), shape.size(), bytes, status_));
        check(status_);
        return static_cast<Number *>(TF_TensorData(outputs_[number].get()));
    }

    [[noreturn]] void fail(TF_Code code, const char *why) const {
        TF_SetStatus(status_, code, why);
        throw Told();
    }

    // The first two inputs are the slab and the number of the word in each slot, of all operations on a slab.
    SlabKernels kernels(int threads) const {
        return {threads, {data<float>(0), data<int32_t>(1), size(0, 0), size(0, 1), size(0, 2)}};
    }

    // The next three of those with tokens.
    Tokens tokens() const { return {data<float>(2), data<int32_t>(3), size(3, 0), data<int32_t>(4)}; }

    // The first four inputs of operations on paths.
    Paths paths() const {
        return {size(1, 0), size(0, 1), size(1, 1), data<float>(0), data<int32_t>(1), data<int32_t>(2), data<int32_t>(3)};
    }

    // The first two inputs of operations on a tree.
    Tree<int32_t> tree() const { return {size(0, 0), size(0, 1), data<float>(0), data<int32_t>(1)}; }

    const float *or_null(int input) const {
        return TF_TensorElementCount(inputs_[input].get()) ? data<float>(input) : nullptr;
    }

  private:
    TF_OpKernelContext *context_;
    TF_Status *status_;
    Tensor inputs_[8], outputs_[4];
};

struct Attributes {
    int32_t threads = 1, k = 0, most = 0, width = 0, left_by_columns = 0, right_by_columns = 0, by_unit = 0;
    Projection projection{};
};

void *attributes_of(TF_OpKernelConstruction *construction) {
    auto found = std::make_unique<Attributes>();
    attempt(construction, TF_OpKernelConstruction_Failure, [&](TF_Status *status) {
        const auto read = [&](auto get, const char *name, auto *place) {  // an operation has no others than its own
            const bool has = TF_OpKernelConstruction_HasAttr(construction, name, status);
            check(status);
            if (has) get(construction, name, place, status);
            check(status);
        };
        for (const auto &[name, place] : {std::pair{"threads", &found->threads}, {"k", &found->k}, {"most", &found->most},
                                          {"width", &found->width}, {"left_by_columns", &found->left_by_columns},
                                          {"right_by_columns", &found->right_by_columns}, {"by_unit", &found->by_unit}})
            read(TF_OpKernelConstruction_GetAttrInt32, name, place);
        auto &[kept, share, least] = found->projection;
        for (const auto &[name, place] : {std::pair{"kept", &kept}, {"share", &share}, {"least", &least}})
            read(TF_OpKernelConstruction_GetAttrFloat, name, place);
    });
    return found.release();
}

void forget(void *attributes) { delete static_cast<Attributes *>(attributes); }

// What an operation does, as TensorFlow calls it.
template <void (*COMPUTE)(const Attributes &, Run &)>
void run(void *attributes, TF_OpKernelContext *context) {
    attempt(context, TF_OpKernelContext_Failure, [&](TF_Status *status) {
        Run run(context, status);
        COMPUTE(*static_cast<const Attributes *>(attributes), run);
    });
}

void scores(const Attributes &given, Run &run) {
    float *scores = run.output<float>(0, {run.size(3, 0), run.size(0, 1)});
    run.kernels(given.threads).scores(run.tokens(), run.or_null(5), scores);
}

void losses(const Attributes &given, Run &run) {
    float *losses = run.output<float>(0, {run.size(3, 0)});
    float *excess = run.output<float>(1, {run.size(3, 0), run.size(0, 1)});
    float *dvectors = run.output<float>(2, {run.size(2, 0), run.size(2, 1)});
    run.kernels(given.threads).losses(run.tokens(), run.data<int32_t>(5), run.or_null(6), losses, excess, dvectors);
}

void gradients(const Attributes &given, Run &run) {
    float *dslab = run.output<float>(0, {run.size(0, 0), run.size(0, 1), run.size(0, 2)});
    float *dbias = run.output<float>(1, {run.size(0, 0), run.size(0, 1)});
    run.kernels(given.threads).gradients(run.tokens(), run.data<float>(5), run.data<float>(6), dslab, dbias);
}

Likeliest<int32_t> found(Run &run, int64_t rows, int64_t k) {
    float *values = run.output<float>(0, {rows, k});
    int32_t *ids = run.output<int32_t>(1, {rows, k});
    return {k, values, ids, run.output<float>(2, {rows})};
}

void likeliest(const Attributes &given, Run &run) {
    const Searched searched{run.size(3, 0), run.data<float>(3), run.data<float>(4)};
    likeliest_words(given.threads, searched, run.kernels(given.threads).words(run.or_null(2)),
                    found(run, searched.count, given.k));
}

void of_hidden(const Attributes &given, Run &run) {
    const int64_t rows = run.size(3, 0);
    const UpperLevel level{run.size(6, 1), run.size(6, 0), run.or_null(4), run.or_null(5), given.projection,
                           run.data<float>(6), run.or_null(7)};
    likeliest_of_hidden(given.threads, level, run.data<float>(3), rows,
                        run.kernels(given.threads).words(run.or_null(2)), found(run, rows, given.k));
}

void losses_of_paths(const Attributes &given, Run &run) {
    const Paths paths = run.paths();
    float *losses = run.output<float>(0, {paths.count});
    float *dscores = run.output<float>(1, {paths.count, paths.depth});
    float *dvectors = run.output<float>(2, {paths.count, paths.dim});
    path_losses(given.threads, paths, run.data<float>(4), losses, dscores, dvectors);
}

void gradients_of_paths(const Attributes &given, Run &run) {
    const Paths paths = run.paths();
    const int64_t nodes = *run.data<int32_t>(5);
    path_gradients(given.threads, paths, run.data<float>(4), nodes, run.output<float>(0, {nodes, paths.dim}));
}

void leaves(const Attributes &given, Run &run) {
    const int64_t rows = run.size(2, 0);
    likeliest_leaves(given.threads, run.tree(), run.data<float>(2), rows, found(run, rows, given.k));
}

void beam(const Attributes &given, Run &run) {
    const int64_t rows = run.size(2, 0);
    leaves_of_beam(given.threads, run.tree(), run.data<float>(2), rows, given.width, found(run, rows, given.k));
}

void fused(const Attributes &given, Run &run) {
    const int64_t count = run.size(0, 0), vocab = run.size(1, 0);
    const std::vector<int64_t> words_of(run.data<int32_t>(3), run.data<int32_t>(3) + count);
    const Examples examples{count, run.size(0, 1), run.data<float>(0), words_of.data(), run.data<float>(4)};
    float *total = run.output<float>(0, {});
    float *dvectors = run.output<float>(1, {count, examples.dim});
    float *dwords = run.output<float>(2, {vocab, examples.dim});
    float *dbias = run.output<float>(3, {vocab});
    if (!fused_softmax(given.threads, examples, vocab, given.most, given.by_unit, run.data<float>(1), run.data<float>(2),
                       total, dvectors, dwords, dbias))
        run.fail(TF_OUT_OF_RANGE, "a target is none of the words");
}

void product(const Attributes &given, Run &run) {
    const auto factor = [&](int input, int32_t by_columns) {
        return Factor::of(run.data<float>(input), run.size(input, 0), run.size(input, 1), by_columns);
    };
    const Factor left = factor(0, given.left_by_columns), right = factor(1, given.right_by_columns);
    matrix_product(given.threads, left, right, run.output<float>(0, {left.count, right.count}));
}

void any_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
    TF_ShapeInferenceContextSetUnknownShape(context, status);
}

using Names = std::initializer_list<const char *>;

std::string refused;  // why, of the first operation that TensorFlow has not taken

void add(const char *name, Names attributes, Names inputs, Names outputs, void (*compute)(void *, TF_OpKernelContext *)) {
    const Status status(TF_NewStatus());
    TF_OpDefinitionBuilder *operation = TF_NewOpDefinitionBuilder(name);
    for (const char *attribute : attributes) TF_OpDefinitionBuilderAddAttr(operation, attribute);
    for (const char *input : inputs) TF_OpDefinitionBuilderAddInput(operation, input);
    for (const char *output : outputs) TF_OpDefinitionBuilderAddOutput(operation, output);
    TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, any_shape);
    TF_RegisterOpDefinition(operation, status.get());
    if (TF_GetCode(status.get()) == TF_OK)
        TF_RegisterKernelBuilder(name, TF_NewKernelBuilder(name, "CPU", attributes_of, compute, forget), status.get());
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
        {"values: float", "ids: int32", "share_of_clusters: float"}, run<of_hidden>);
    add("VocabenchPathLosses", {"threads: int"},
        {"vectors: float", "index: int32", "sign: int32", "place: int32", "nodes: float"},
        {"losses: float", "dscores: float", "dvectors: float"}, run<losses_of_paths>);
    add("VocabenchPathGradients", {"threads: int"},
        {"vectors: float", "index: int32", "sign: int32", "place: int32", "dscores: float", "nodes: int32"},
        {"dnodes: float"}, run<gradients_of_paths>);
    add("VocabenchLikeliestLeaves", {"threads: int", "k: int"}, {"nodes: float", "children: int32", "vectors: float"},
        {"values: float", "ids: int32", "share_of_nodes: float"}, run<leaves>);
    add("VocabenchLeavesOfBeam", {"threads: int", "k: int", "width: int"},
        {"nodes: float", "children: int32", "vectors: float"},
        {"values: float", "ids: int32", "share_of_nodes: float"}, run<beam>);
    add("VocabenchFusedSoftmax", {"threads: int", "most: int", "by_unit: int"},
        {"vectors: float", "words: float", "bias: float", "target: int32", "share: float"},
        {"total: float", "dvectors: float", "dwords: float", "dbias: float"}, run<fused>);
    add("VocabenchMatrixProduct", {"threads: int", "left_by_columns: int", "right_by_columns: int"},
        {"left: float", "right: float"}, {"product: float"}, run<product>);
    return true;
}();

}  // namespace

// Empty where it has taken all.
extern "C" const char *refused_by_tensorflow() { return refused.c_str(); }
