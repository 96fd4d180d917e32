"""Parts of the recognizer that are specific to TensorFlow: CTC, one trace for all shapes, low precision."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.models.recognizer import RecognizerConfig
from vocabench.impls.on_numpy.models import _ctc as definition

if "tensorflow" not in registry.installed_frameworks():
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

from vocabench.impls.models.decoding import beam_search
from vocabench.impls.on_tensorflow.adapter import tf
from vocabench.impls.on_tensorflow.models import _ctc

VOCAB, END = 13, 3
TINY = RecognizerConfig(
    end=END, dim=8, mels=11, channels=3, heads=2, feed_forward=12, kernel=3, encoder_layers=2, decoder_layers=2
)


def batch_of(*frames_units, seed=0):
    rng = np.random.default_rng(seed)
    frames_B, units_B = np.array(frames_units).T
    features_BFM = rng.normal(size=(len(frames_B), frames_B.max(), 11))
    targets_BT = rng.integers(4, VOCAB, (len(frames_B), units_B.max()))
    place_T = np.arange(units_B.max())
    targets_BT[place_T == units_B[:, None] - 1] = END
    targets_BT[place_T >= units_B[:, None]] = -1
    return features_BFM, frames_B, targets_BT


BATCH = batch_of((40, 4), (31, 2), (22, 1))


def model_of(dtype="float32", **changes):
    spec = layers.spec("full_softmax", counts=zipf_counts(VOCAB), dim=8, dtype=dtype)
    return layers.create_network("tensorflow", spec, replace(TINY, **changes))


def test_ctc_and_its_gradient_agree_with_the_definition():
    """Cases: no labels, equal labels, just enough frames, one frame too few, and padding."""
    blank, labels_BL = 4, np.array([[0, 1, 2, 3], [9, 9, 9, 9], [1, 1, 1, 9], [1, 1, 1, 9], [2, 0, 9, 9], [3, 9, 9, 9]])
    lengths_B, frames_B = np.array([4, 0, 3, 3, 2, 1]), np.array([7, 6, 5, 4, 6, 1])
    scores_BSU = np.random.default_rng(0).normal(size=(6, 7, blank + 1))
    weight_B = np.arange(1.0, 7.0)

    def truth(scores_BSU):
        log_probs_BSU = scores_BSU - np.log(np.exp(scores_BSU).sum(axis=2, keepdims=True))
        utterances = zip(log_probs_BSU, frames_B, labels_BL, lengths_B, strict=True)
        return np.array([definition.nll(log_probs[:frames], ids[:size]) for log_probs, frames, ids, size in utterances])

    @tf.function
    def nll_and_gradient(scores_BSU):
        lengths = (tf.constant(array, tf.int32) for array in (frames_B, labels_BL, lengths_B))
        with tf.GradientTape() as tape:
            tape.watch(scores_BSU)
            nll_B = _ctc.nll(tf.nn.log_softmax(scores_BSU), *lengths)
            total = tf.reduce_sum(nll_B * weight_B)
        return nll_B, tape.gradient(total, scores_BSU)

    nll_B, gradient_BSU = nll_and_gradient(tf.constant(scores_BSU))
    expected_B = truth(scores_BSU)
    assert np.isinf(expected_B).tolist() == [False, False, False, True, False, False]
    np.testing.assert_allclose(nll_B, np.where(np.isinf(expected_B), 0, expected_B), rtol=1e-12)
    for place in np.ndindex(scores_BSU.shape):
        if place[0] == 3:
            assert gradient_BSU[place] == 0
            continue
        ends = []
        for change in (1e-5, -1e-5):
            scores_BSU[place] += change
            ends.append(truth(scores_BSU)[place[0]])
            scores_BSU[place] -= change
        slope = weight_B[place[0]] * (ends[0] - ends[1]) / 2e-5
        assert float(gradient_BSU[place]) == pytest.approx(slope, abs=1e-8), place


@pytest.mark.lengthy
def test_there_is_one_trace_for_all_shapes_rates_and_loads():
    model = model_of(ctc_weight=0.3)
    start = model.parameters()
    loss = float(model.step(*BATCH))
    for batch in (batch_of((53, 3), (9, 7)), batch_of((29, 2))):
        assert np.isfinite(float(model.step(*batch)))
        assert np.isfinite(model.evaluate(*batch))
        model.listen(*batch[:2], 6)
        beam_search(model, np.full((len(batch[0]), 1), END), 6, width=2)
    model.load(start)
    assert float(model.step(*BATCH)) == pytest.approx(loss, rel=1e-6)
    for traced in (model._step, model._evaluate, model._listen, model._next(2, None)):
        assert traced.experimental_get_tracing_count() == 1


@functools.cache
def in_float64():
    model = model_of("float64", ctc_weight=0.3)
    return model.evaluate(*BATCH), float(model.step(*BATCH))


@pytest.mark.lengthy
@pytest.mark.parametrize(("dtype", "rel"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_lower_precisions_agree_within_their_rounding(dtype, rel):
    narrow = model_of(dtype, ctc_weight=0.3)
    assert (narrow.evaluate(*BATCH), float(narrow.step(*BATCH))) == pytest.approx(in_float64(), rel=rel)
    assert all(np.isfinite(value).all() for value in narrow.parameters().values())
