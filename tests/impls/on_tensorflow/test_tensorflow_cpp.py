"""The C++ kernels of TensorFlow's two-level layers: the same numbers as its own products, traced and not."""

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
from vocabench.impls.cpp import CPP

tf = pytest.importorskip("tensorflow")

from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.two_level import cluster_softmax

if not cpp_kernels.known("float32"):
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)


def _given() -> tuple[Any, Any]:
    """Vectors, a slab, biases, the word in each slot, and a cluster and a slot for each of 15 tokens."""
    rng, size_C = np.random.default_rng(0), np.array([6, 1, 3, 2])
    word_CS = np.where(np.arange(6) < size_C[:, None], 1, -1)
    cluster_N = rng.integers(0, 3, 15)  # the last cluster has no token
    slot_N = rng.integers(0, size_C[cluster_N])
    holds_CS = word_CS >= 0
    slab_CSD, bias_CS = rng.normal(size=(4, 6, 10)) * holds_CS[:, :, None], rng.normal(size=(4, 6)) * holds_CS
    trained = [tf.constant(array, tf.float32) for array in (rng.normal(size=(15, 10)), slab_CSD, bias_CS)]
    return trained, [tf.constant(array, tf.int32) for array in (word_CS, cluster_N, slot_N)]


@pytest.mark.parametrize("traced", [False, True])
def test_gradients_are_those_of_tiles(traced):
    trained, fixed = _given()
    weight_N = tf.linspace(0.5, 2.0, 15)

    def loss_and_gradients(form):
        with tf.GradientTape() as tape:
            tape.watch(trained)
            loss = tf.reduce_sum(weight_N * cluster_softmax.in_cluster_nll(*trained, *fixed, form=form))
        return loss, *tape.gradient(loss, trained)

    found, expected = (
        (tf.function(loss_and_gradients) if traced else loss_and_gradients)(form)
        for form in (CPP, cluster_softmax.TILES)
    )
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)
    assert not found[2].numpy()[3].any()


def test_pairs_in_any_order():
    trained, fixed = _given()
    word_CS = fixed[0]
    row_P, cluster_P = tf.constant([3, 0, 3, 7, 1]), tf.constant([2, 0, 0, 2, 3])
    found_PS = cluster_softmax.log_by_kernels(*trained, word_CS=word_CS, row_P=row_P, cluster_P=cluster_P)
    expected_PS = tf.nn.log_softmax(
        cluster_softmax.pair_scores(*trained, word_CS=word_CS, row_P=row_P, cluster_P=cluster_P)
    )
    holds_PS = tf.gather(word_CS, cluster_P).numpy() >= 0
    np.testing.assert_allclose(found_PS.numpy()[holds_PS], expected_PS.numpy()[holds_PS], rtol=1e-5, atol=1e-5)
    assert (found_PS.numpy()[~holds_PS] == -np.inf).all()


def test_other_precisions_and_devices_take_other_forms():
    for dtype in ("float64", "bfloat16"):
        assert CPP not in layers.forms("tensorflow", layers.spec("sohsm", counts=zipf_counts(50), dim=8, dtype=dtype))
    assert CPP not in layers.forms("tensorflow", layers.spec("sohsm", counts=zipf_counts(50), dim=8), "cuda")


def test_what_cannot_be_loaded_is_told_and_done_without(monkeypatch):
    def load(path):
        raise tf.errors.NotFoundError(None, None, "undefined symbol: TF_Anything\nmore")

    monkeypatch.setattr(tf, "load_op_library", load)
    monkeypatch.setattr(cpp, "_run", lambda *command: "")
    with pytest.warns(UserWarning, match=r"no C\+\+ kernels, .*: undefined symbol: TF_Anything$"):
        assert cpp.library.__wrapped__("for_tensorflow", load=cpp_kernels._load) is None


def test_operations_that_tensorflow_refuses_are_told_and_done_without(monkeypatch):
    loaded = SimpleNamespace(refused_by_tensorflow=lambda: b"no such type: int")
    monkeypatch.setattr(tf, "load_op_library", lambda path: object())
    monkeypatch.setattr(cpp_kernels.ctypes, "CDLL", lambda path: loaded)
    monkeypatch.setattr(cpp, "_run", lambda *command: "")
    with pytest.warns(UserWarning, match=r"no C\+\+ kernels, .*: no such type: int$"):
        assert cpp.library.__wrapped__("for_tensorflow", load=cpp_kernels._load) is None


# TensorFlow's C interface, of which that fails which is named; what is told of it is printed.
REFUSING = """
#include <cstdio>
#include <cstdlib>
#include "for_tensorflow.cpp"

struct Said {
    TF_Code code;
    std::string why;
};

Said *said(const TF_Status *status) { return (Said *)status; }
bool fails(const char *what) { return getenv("FAILS") == std::string(what); }
void answer(const char *what, TF_Status *status) { *said(status) = {fails(what) ? TF_INTERNAL : TF_OK, what}; }

void *(*create)(TF_OpKernelConstruction *);
void (*compute)(void *, TF_OpKernelContext *);

TF_Status *TF_NewStatus() { return (TF_Status *)new Said{TF_OK, ""}; }
void TF_DeleteStatus(TF_Status *status) { delete said(status); }
TF_Code TF_GetCode(const TF_Status *status) { return said(status)->code; }
const char *TF_Message(const TF_Status *status) { return said(status)->why.c_str(); }

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
    if (*refused_by_tensorflow()) return puts(refused_by_tensorflow()), 0;
    void *attributes = create(nullptr);
    if (fails("input")) compute(attributes, nullptr);
    forget(attributes);
}
"""


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusing")
    (folder / "program.cpp").write_text(REFUSING)
    headers = f"-I{Path(cpp.__file__).parent}", "-isystem", tf.sysconfig.get_include()
    without = "-no-pie", "-Wl,--unresolved-symbols=ignore-all"  # the kernels, which nothing gets as far as
    command = str(cpp.compiler()), "-std=gnu++17", *headers, *without, "program.cpp", "-o", "program"
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return folder / "program"


@pytest.mark.parametrize("fails", ["nothing", "operation", "kernel", "question", "attribute", "number", "input"])
def test_what_tensorflow_refuses_is_told(refusing, fails):
    ran = subprocess.run([refusing], env=os.environ | {"FAILS": fails}, check=True, capture_output=True, text=True)
    assert ran.stdout == ("" if fails == "nothing" else f"{fails}\n")


@pytest.mark.parametrize(("method", "options"), [("sohsm", {}), ("sohsm", {"bias": True}), ("huffman", {})])
@pytest.mark.parametrize("graph_first", [False, True])
def test_words_found_within_a_graph_are_those_found_without(method, options, graph_first):
    cpp_kernels._nothing.cache_clear()  # so that the one that comes first makes it
    layer = layers.create("tensorflow", method, counts=zipf_counts(300), dim=16, seed=2, **options).native
    assert "search" in layer.one_operation
    hidden_ND = np.random.default_rng(0).normal(size=(5, 16))
    ways = [layer.search, tf.function(layer.search)]
    for kind in (np.float32, np.float64):
        given = tf.constant(hidden_ND, kind)
        found, other = (way(given, 7) for way in (ways[::-1] if graph_first else ways))
        for own, expected in zip(found, other, strict=True):
            np.testing.assert_array_equal(own, expected)
        np.testing.assert_array_equal(layer.topk(hidden_ND.astype(kind), 7)[1], found[1])
    if "beam" in layer.one_operation:
        np.testing.assert_array_equal(layer.beam(hidden_ND, 7, 9)[1], tf.function(layer.beam)(hidden_ND, 7, 9)[1])


def test_threads_are_as_many_as_tensorflows(monkeypatch):
    monkeypatch.setattr(cpus, "usable", lambda: 3)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert cpp_kernels.threads.__wrapped__() == 3
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "5")
    assert cpp_kernels.threads.__wrapped__() == 5
