"""Tests of the parts of the recognizer that only JAX has, and of its precision."""

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.models.recognizer import RecognizerConfig
from vocabench.impls.on_numpy.models import _ctc
from vocabench.impls.optimizers import Optimizer

if "jax" not in registry.installed_frameworks():
    pytest.skip("JAX is not installed", allow_module_level=True)

import jax
import jax.numpy as jnp

from vocabench.impls.on_jax.models._ctc import ctc_nll
from vocabench.impls.on_jax.models._depthwise import depthwise

VOCAB, END = 13, 3
TARGETS_BT = np.array([[6, 4, 4, END], [12, END, -1, -1]])


def model_of(framework, dtype="float64"):
    spec = layers.spec("full_softmax", counts=zipf_counts(VOCAB), dim=8, dtype=dtype)
    config = RecognizerConfig(
        end=END, dim=8, mels=11, channels=6, heads=2, feed_forward=12, kernel=3, encoder_layers=1, decoder_layers=1,
        ctc_weight=0.3, optimizer=Optimizer(name="adam"), warmup=2,
    )  # fmt: skip
    return layers.create_network(framework, spec, config)


def utterances():
    features_BFM = np.random.default_rng(0).normal(size=(2, 30, 11))
    features_BFM[1, 19:] = 0
    return features_BFM, np.array([30, 19])


def assert_slope(function, arrays):
    """Assert that the gradient along a random direction is the central difference."""
    rng = np.random.default_rng(1)
    directions = [rng.normal(size=array.shape) for array in arrays]
    grads = jax.grad(function, argnums=tuple(range(len(arrays))))(*arrays)
    along = sum(float((grad * direction).sum()) for grad, direction in zip(grads, directions, strict=True))
    compiled, ends = jax.jit(function), []
    for reach in (1e-6, -1e-6):
        moved = [array + reach * direction for array, direction in zip(arrays, directions, strict=True)]
        ends.append(float(compiled(*moved)))
    assert along == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)


@pytest.mark.parametrize("taps", [1, 3, 19])
def test_depthwise_convolution_agrees_with_numpy(taps):
    """There may be more taps than frames, and more than are unrolled."""
    rng = np.random.default_rng(0)
    x_BSD, weight_DK = rng.normal(size=(2, 7, 3)), rng.normal(size=(3, taps))
    padded_BPD = np.pad(x_BSD, ((0, 0), (taps // 2, taps // 2), (0, 0)))
    windows_BSDK = np.lib.stride_tricks.sliding_window_view(padded_BPD, taps, axis=1)
    with jax.enable_x64(True):
        np.testing.assert_allclose(depthwise(x_BSD, weight_DK), (windows_BSDK * weight_DK).sum(axis=3), atol=1e-12)
        assert_slope(lambda x, weight: (depthwise(x, weight) ** 2).sum(), (x_BSD, weight_DK))


@pytest.mark.lengthy
def test_ctc_agrees_with_the_definition():
    """Utterances differ in length. Some have equal labels, no labels or too few frames."""
    rng = np.random.default_rng(0)
    logits_BSC = rng.normal(size=(5, 6, 4))
    frames_B, lengths_B = np.array([6, 4, 3, 5, 1]), np.array([3, 2, 3, 0, 1])
    labels_BT = np.array([[1, 1, 0], [2, 0, 0], [2, 2, 2], [0, 0, 0], [1, 1, 1]])
    log_probs_BSC = logits_BSC - np.log(np.exp(logits_BSC).sum(axis=2, keepdims=True))
    expected = [
        _ctc.nll(log_probs_SC[:frames], labels_T[:length])
        for log_probs_SC, frames, labels_T, length in zip(log_probs_BSC, frames_B, labels_BT, lengths_B, strict=True)
    ]
    assert np.isinf(expected).tolist() == [False, False, True, False, False]
    with jax.enable_x64(True):
        inputs = jnp.asarray(frames_B), jnp.asarray(labels_BT), jnp.asarray(lengths_B)

        def total(logits_BSC):
            return ctc_nll(logits_BSC, *inputs).sum()

        nll_B = jax.jit(ctc_nll)(logits_BSC, *inputs)
        np.testing.assert_allclose(nll_B, np.where(np.isinf(expected), 0, expected), atol=1e-12)
        assert_slope(total, (logits_BSC,))
        grad_BSC = np.asarray(jax.grad(total)(logits_BSC))
    real_BS = np.arange(6) < frames_B[:, None]
    real_BS[2] = False
    assert (np.abs(grad_BSC).max(axis=2) > 0).tolist() == real_BS.tolist()


@pytest.mark.lengthy
@pytest.mark.many_cells
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_lower_precisions_agree_with_the_definition(dtype, error):
    """The loss and the log-probabilities of first units agree, and parameters keep their dtype in training."""
    ours, oracle = model_of("jax", dtype), model_of("numpy")
    assert float(ours.step(*utterances(), TARGETS_BT)) == pytest.approx(
        oracle.loss(*utterances(), TARGETS_BT), rel=error
    )
    assert {str(value.dtype) for value in ours.params.values()} == {dtype}
    ours.load(oracle.parameters())
    values = []
    for model in (ours, oracle):
        model.listen(*utterances(), 2)
        values.append(model.prime(np.full((2, 1), END), VOCAB)[0])
    np.testing.assert_allclose(values[0], values[1], rtol=error)


def test_no_unit_follows_the_longest_transcript():
    model = model_of("jax")
    model.listen(*utterances(), 2)
    ids_B1 = model.prime(np.full((2, 1), END), 1)[1]
    model.extend(np.arange(2), ids_B1[:, 0], 1)
    with pytest.raises(BadInput, match="a unit after 2: allowed: up to the 2 that `listen` was told of"):
        model.extend(np.arange(2), ids_B1[:, 0], 1)
