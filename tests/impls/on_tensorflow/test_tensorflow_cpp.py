"""The C++ kernels of TensorFlow's layers agree with its own products, in graphs and executed eagerly."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls import cpp, cpus
from vocabench.impls.cpp import CPP, Interface, compilation

tf = pytest.importorskip("tensorflow")

from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.two_level import cluster_softmax

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)


def _inputs() -> tuple[Any, Any]:
    """Return vectors, a slab and biases, and the word in each slot, clusters and slots of 15 tokens."""
    rng, size_C = np.random.default_rng(0), np.array([6, 1, 3, 2])
    word_CS = np.where(np.arange(6) < size_C[:, None], 1, -1)
    cluster_N = rng.integers(0, 3, 15)  # the last cluster has no token
    slot_N = rng.integers(0, size_C[cluster_N])
    occupied_CS = word_CS >= 0
    slab_CSD, bias_CS = rng.normal(size=(4, 6, 10)) * occupied_CS[:, :, None], rng.normal(size=(4, 6)) * occupied_CS
    trained = [tf.constant(array, tf.float32) for array in (rng.normal(size=(15, 10)), slab_CSD, bias_CS)]
    return trained, [tf.constant(array, tf.int32) for array in (word_CS, cluster_N, slot_N)]


@pytest.mark.parametrize("traced", [False, True])
def test_kernels_have_the_gradients_of_tiles(traced):
    trained, fixed = _inputs()
    weight_N = tf.linspace(0.5, 2.0, 15)

    def loss_and_gradients(form):
        with tf.GradientTape() as tape:
            tape.watch(trained)
            loss = tf.reduce_sum(weight_N * cluster_softmax.in_cluster_nll(*trained, *fixed, form=form))
        return loss, *tape.gradient(loss, trained)

    results, expected = (
        (tf.function(loss_and_gradients) if traced else loss_and_gradients)(form)
        for form in (CPP, cluster_softmax.TILES)
    )
    for result, expected_result in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, expected_result, rtol=1e-4, atol=1e-5)
    assert not results[2].numpy()[3].any()


def test_scores_of_pairs_do_not_depend_on_their_order():
    trained, fixed = _inputs()
    word_CS = fixed[0]
    row_P, cluster_P = tf.constant([3, 0, 3, 7, 1]), tf.constant([2, 0, 0, 2, 3])
    log_PS = cluster_softmax.log_by_kernels(*trained, word_CS=word_CS, row_P=row_P, cluster_P=cluster_P)
    expected_PS = tf.nn.log_softmax(
        cluster_softmax.pair_scores(*trained, word_CS=word_CS, row_P=row_P, cluster_P=cluster_P)
    )
    occupied_PS = tf.gather(word_CS, cluster_P).numpy() >= 0
    np.testing.assert_allclose(log_PS.numpy()[occupied_PS], expected_PS.numpy()[occupied_PS], rtol=1e-5, atol=1e-5)
    assert (log_PS.numpy()[~occupied_PS] == -np.inf).all()


def test_other_precisions_and_devices_have_no_kernels():
    for dtype in ("float64", "bfloat16"):
        assert CPP not in layers.forms("tensorflow", layers.spec("sohsm", counts=zipf_counts(50), dim=8, dtype=dtype))
    assert CPP not in layers.forms("tensorflow", layers.spec("sohsm", counts=zipf_counts(50), dim=8), "cuda")


def test_a_library_that_cannot_be_loaded_is_replaced_with_a_warning(monkeypatch):
    def load(path):
        raise tf.errors.NotFoundError(None, None, "undefined symbol: TF_Anything\nmore")

    monkeypatch.setattr(tf, "load_op_library", load)
    monkeypatch.setattr(compilation, "run", lambda *command: "")
    with pytest.warns(UserWarning, match=r"no C\+\+ kernels, .*: undefined symbol: TF_Anything$"):
        assert cpp.library.__wrapped__(Interface("for_tensorflow"), cpp_kernels._load) is None


def test_operations_that_tensorflow_refuses_are_replaced_with_a_warning(monkeypatch):
    loaded = SimpleNamespace(refused_by_tensorflow=lambda: b"no such type: int")
    monkeypatch.setattr(tf, "load_op_library", lambda path: object())
    monkeypatch.setattr(cpp_kernels.ctypes, "CDLL", lambda path: loaded)
    monkeypatch.setattr(compilation, "run", lambda *command: "")
    with pytest.warns(UserWarning, match=r"no C\+\+ kernels, .*: no such type: int$"):
        assert cpp.library.__wrapped__(Interface("for_tensorflow"), cpp_kernels._load) is None


# TensorFlow's C interface, in which the function named by FAILS fails. The program prints the reported message.
REFUSING = """
#include <cstdio>
#include <cstdlib>
#include "for_tensorflow.cpp"

struct Answer {
    TF_Code code;
    std::string message;
};

Answer *answer_of(const TF_Status *status) { return (Answer *)status; }
bool fails(const char *what) { return getenv("FAILS") == std::string(what); }
void answer(const char *what, TF_Status *status) { *answer_of(status) = {fails(what) ? TF_INTERNAL : TF_OK, what}; }

void *(*create)(TF_OpKernelConstruction *);
void (*compute)(void *, TF_OpKernelContext *);

TF_Status *TF_NewStatus() { return (TF_Status *)new Answer{TF_OK, ""}; }
void TF_DeleteStatus(TF_Status *status) { delete answer_of(status); }
TF_Code TF_GetCode(const TF_Status *status) { return answer_of(status)->code; }
const char *TF_Message(const TF_Status *status) { return answer_of(status)->message.c_str(); }

TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *) { return nullptr; }
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder *, const char *) {}
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *, const char *) {}
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *, const char *) {}
void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder *, void (*)(TF_ShapeInferenceContext *, TF_Status *)) {}
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *, TF_Status *status) { answer("operation", status); }
TF_KernelBuilder *TF_NewKernelBuilder(const char *, const char *, void *(*creates)(TF_OpKernelConstruction *),
                                      void (*computes)(void *, TF_OpKernelContext *), void (*)(void *)) {
    create = creates, compute = computes;
    return nullptr;
}
void TF_RegisterKernelBuilder(const char *, TF_KernelBuilder *, TF_Status *status) { answer("kernel", status); }

bool TF_OpKernelConstruction_HasAttr(TF_OpKernelConstruction *, const char *, TF_Status *status) {
    answer("question", status);
    return true;
}
void TF_OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction *, const char *, int32_t *, TF_Status *status) {
    answer("attribute", status);
}
void TF_OpKernelConstruction_GetAttrFloat(TF_OpKernelConstruction *, const char *, float *, TF_Status *status) {
    answer("number", status);
}
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction *, TF_Status *status) { puts(TF_Message(status)); }

int TF_NumInputs(TF_OpKernelContext *) { return 3; }
void TF_GetInput(TF_OpKernelContext *, int, TF_Tensor **, TF_Status *status) { answer("input", status); }
void TF_OpKernelContext_Failure(TF_OpKernelContext *, TF_Status *status) { puts(TF_Message(status)); }

int main() {
    using namespace vocabench;
    if (*refused_by_tensorflow()) return puts(refused_by_tensorflow()), 0;
    void *attributes = create(nullptr);
    if (fails("input")) compute(attributes, nullptr);
    delete_attributes(attributes);
}
"""


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusing")
    (folder / "program.cpp").write_text(REFUSING)
    headers = f"-I{Path(cpp.__file__).parent}", "-isystem", tf.sysconfig.get_include()
    unlinked = "-no-pie", "-Wl,--unresolved-symbols=ignore-all"  # the program does not get as far as the kernels
    command = str(cpp.compiler()), "-std=gnu++17", *headers, *unlinked, "program.cpp", "-o", "program"
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return folder / "program"


@pytest.mark.parametrize("fails", ["nothing", "operation", "kernel", "question", "attribute", "number", "input"])
def test_refusals_of_tensorflow_are_reported(refusing, fails):
    process = subprocess.run([refusing], env=os.environ | {"FAILS": fails}, check=True, capture_output=True, text=True)
    assert process.stdout == ("" if fails == "nothing" else f"{fails}\n")


@pytest.mark.parametrize(("method", "options"), [("sohsm", {}), ("sohsm", {"bias": True}), ("huffman", {})])
@pytest.mark.parametrize("graph_first", [False, True])
def test_search_has_the_same_results_in_a_graph_and_executed_eagerly(method, options, graph_first):
    cpp_kernels._empty.cache_clear()  # so that the first call creates it
    layer = layers.create("tensorflow", method, counts=zipf_counts(300), dim=16, seed=2, **options).native
    assert "search" in layer.one_operation
    hidden_ND = np.random.default_rng(0).normal(size=(5, 16))
    searches = [layer.search, tf.function(layer.search)]
    for dtype in (np.float32, np.float64):
        hidden = tf.constant(hidden_ND, dtype)
        results, others = (search(hidden, 7) for search in (searches[::-1] if graph_first else searches))
        for result, other in zip(results, others, strict=True):
            np.testing.assert_array_equal(result, other)
        np.testing.assert_array_equal(layer.topk(hidden_ND.astype(dtype), 7)[1], results[1])
    if "beam" in layer.one_operation:
        np.testing.assert_array_equal(layer.beam(hidden_ND, 7, 9)[1], tf.function(layer.beam)(hidden_ND, 7, 9)[1])


def test_kernels_use_as_many_threads_as_tensorflow(monkeypatch):
    monkeypatch.setattr(cpus, "usable", lambda: 3)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert cpp_kernels.threads.__wrapped__() == 3
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "5")
    assert cpp_kernels.threads.__wrapped__() == 5
