"""Tests of peak memory in JAX, whose counter cannot be reset."""

import pytest

from vocabench.harness import layers
from vocabench.harness.measure.workload import batch, zipf_counts

pytest.importorskip("jax")

from vocabench.impls.on_jax import adapter, memory

VOCAB, TOKENS, DIM = 3000, 48, 8


def peak(method, work):
    layer = layers.create("jax", method, counts=zipf_counts(VOCAB), dim=DIM)
    inputs = batch(zipf_counts(VOCAB), tokens=TOKENS, dim=DIM, seed=0)
    return adapter.peak_counted_bytes("cpu", layer.prepare(work, inputs.hidden_ND, inputs.targets_N))


@pytest.mark.parametrize("work", ["layer", "layer_step", "log_probs"])
def test_peak_is_that_of_the_planned_program(work):
    """Full softmax needs at least the memory of its logits or probabilities."""
    logits = 4 * TOKENS * VOCAB
    assert logits <= peak("full_softmax", work) < 6 * logits
    if work != "log_probs":
        assert peak("sohsm", work) < logits


def test_only_calls_within_planned_bytes_count():
    assert memory.planned_bytes(lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        memory.planned_bytes(lambda: 1 / 0)
    assert peak("full_softmax", "layer") == peak("full_softmax", "layer")
