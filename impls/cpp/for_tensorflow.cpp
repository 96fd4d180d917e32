// `slab_products.h` as operations of TensorFlow, which are there once this is loaded. They take float32 vectors, int32
// row, float32 slab, int32 size and end, and bias, which may be empty, or dscores.

#include <memory>

#include "slab_products.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_tensor.h"

namespace {

template <class Owned, void (*FREE)(Owned *)>
struct Free {
    void operator()(Owned *owned) const { FREE(owned); }
};
using Status = std::unique_ptr<TF_Status, Free<TF_Status, TF_DeleteStatus>>;
using Tensor = std::unique_ptr<TF_Tensor, Free<TF_Tensor, TF_DeleteTensor>>;

// One run of an operation: its inputs, and outputs in TensorFlow's own memory.
class Run {
  public:
    explicit Run(TF_OpKernelContext *context) : context_(context), status_(TF_NewStatus()) {
        for (int number = 0; number < 6; ++number) {
            TF_Tensor *input = nullptr;
            TF_GetInput(context, number, &input, status_.get());
            inputs_[number].reset(input);
        }
    }

    template <class Number>
    const Number *data(int input) const {
        return static_cast<const Number *>(TF_TensorData(inputs_[input].get()));
    }

    int64_t size(int input, int axis) const { return TF_Dim(inputs_[input].get(), axis); }

    // Null, and the run has failed, where there is no memory for it.
    float *output(int number, std::initializer_list<int64_t> shape) {
        size_t bytes = sizeof(float);
        for (int64_t size : shape) bytes *= size;
        outputs_[number].reset(
            TF_AllocateOutput(context_, number, TF_FLOAT, shape.begin(), shape.size(), bytes, status_.get()));
        if (TF_GetCode(status_.get()) == TF_OK) return static_cast<float *>(TF_TensorData(outputs_[number].get()));
        TF_OpKernelContext_Failure(context_, status_.get());
        return nullptr;
    }

    SlabProducts products(int threads) const {
        return {threads,
                {data<float>(0), data<int32_t>(1), size(1, 0), data<float>(2), data<int32_t>(3), data<int32_t>(4),
                 size(2, 0), size(2, 1), size(2, 2)}};
    }

    // The last input; null where it is empty.
    const float *last() const { return TF_TensorElementCount(inputs_[5].get()) ? data<float>(5) : nullptr; }

  private:
    TF_OpKernelContext *context_;
    Status status_;
    Tensor inputs_[6], outputs_[2];
};

void *threads_of(TF_OpKernelConstruction *construction) {
    const Status status(TF_NewStatus());
    auto threads = std::make_unique<int32_t>(1);
    TF_OpKernelConstruction_GetAttrInt32(construction, "threads", threads.get(), status.get());
    return threads.release();
}

void forget(void *threads) { delete static_cast<int32_t *>(threads); }

void scores(void *threads, TF_OpKernelContext *context) {
    Run run(context);
    if (float *scores = run.output(0, {run.size(1, 0), run.size(2, 1)}))
        run.products(*static_cast<int32_t *>(threads)).scores(run.last(), scores);
}

void gradients(void *threads, TF_OpKernelContext *context) {
    Run run(context);
    float *dvectors = run.output(0, {run.size(0, 0), run.size(0, 1)});
    float *dslab = dvectors ? run.output(1, {run.size(2, 0), run.size(2, 1), run.size(2, 2)}) : nullptr;
    if (dslab) run.products(*static_cast<int32_t *>(threads)).gradients(run.last(), dvectors, dslab);
}

void any_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
    TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void add(const char *name, std::initializer_list<const char *> last, std::initializer_list<const char *> outputs,
         void (*compute)(void *, TF_OpKernelContext *)) {
    const Status status(TF_NewStatus());
    TF_OpDefinitionBuilder *operation = TF_NewOpDefinitionBuilder(name);
    TF_OpDefinitionBuilderAddAttr(operation, "threads: int");
    for (const char *input : {"vectors: float", "row: int32", "slab: float", "size: int32", "end: int32"})
        TF_OpDefinitionBuilderAddInput(operation, input);
    for (const char *input : last) TF_OpDefinitionBuilderAddInput(operation, input);
    for (const char *output : outputs) TF_OpDefinitionBuilderAddOutput(operation, output);
    TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, any_shape);
    TF_RegisterOpDefinition(operation, status.get());
    TF_RegisterKernelBuilder(name, TF_NewKernelBuilder(name, "CPU", threads_of, compute, forget), status.get());
}

const bool added = [] {
    add("VocabenchClusterScores", {"bias: float"}, {"scores: float"}, scores);
    add("VocabenchClusterGradients", {"dscores: float"}, {"dvectors: float", "dslab: float"}, gradients);
    return true;
}();

}  // namespace
