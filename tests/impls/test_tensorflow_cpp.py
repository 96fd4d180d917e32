"""The C++ kernels of TensorFlow's two-level layers: the same numbers as its own products, traced and not."""

from typing import Any

import numpy as np
import pytest

from harness import layers
from harness.workload import zipf_counts
from impls import cpp
from impls.cpp import CPP

tf = pytest.importorskip("tensorflow")

from impls.on_tensorflow import _clusters, _cpp  # noqa: E402

if not _cpp.known("float32"):
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
            loss = tf.reduce_sum(weight_N * _clusters.in_cluster_nll(*trained, *fixed, form=form))
        return loss, *tape.gradient(loss, trained)

    found, expected = (
        (tf.function(loss_and_gradients) if traced else loss_and_gradients)(form) for form in (CPP, _clusters.TILES)
    )
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)
    assert not found[2].numpy()[3].any()


def test_pairs_in_any_order():
    trained, fixed = _given()
    word_CS = fixed[0]
    row_P, cluster_P = tf.constant([3, 0, 3, 7, 1]), tf.constant([2, 0, 0, 2, 3])
    found_PS = _clusters.log_by_kernels(*trained, word_CS=word_CS, row_P=row_P, cluster_P=cluster_P)
    expected_PS = tf.nn.log_softmax(_clusters.pair_scores(*trained, word_CS=word_CS, row_P=row_P, cluster_P=cluster_P))
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
    with pytest.warns(UserWarning, match=r"no C\+\+ kernels, .*: undefined symbol: TF_Anything$"):
        # Not those that this process has loaded already.
        assert cpp.library("for_tensorflow", ("-isystem", tf.sysconfig.get_include(), "-O1"), (), _cpp._load) is None


@pytest.mark.parametrize(("method", "options"), [("sohsm", {}), ("sohsm", {"bias": True}), ("huffman", {})])
@pytest.mark.parametrize("graph_first", [False, True])
def test_words_found_within_a_graph_are_those_found_without(method, options, graph_first):
    _cpp._nothing.cache_clear()  # so that the one that comes first makes it
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
