"""Fused softmax over many blocks, where the conformance suite's vocabularies fit in one."""

import weakref

import numpy as np
import pytest

from harness import agreement, layers, registry
from harness.workload import batch, zipf_counts
from impls.structures import blocks

FRAMEWORKS = [f for f in registry.installed_frameworks() if f != "numpy" and "fused_softmax" in registry.methods(f)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("vocab", [91, 97])  # a multiple of the width, and not
def test_many_blocks_agree_with_the_definition(framework, vocab, monkeypatch):
    form = next(iter(blocks.FORMS))
    monkeypatch.setitem(blocks.FORMS, form, 300)
    assert blocks.width(41, vocab, form) == 7
    for dtype in ("float32", "float64", "bfloat16"):
        layer = layers.create(framework, "fused_softmax", counts=zipf_counts(vocab), dim=11, seed=3, dtype=dtype)
        inputs = batch(layer.spec.counts, tokens=41, dim=11, seed=3)
        found = [*agreement.check_layer(layer, inputs, k=20), agreement.check_ties(layer, inputs, k=20)]
        assert [str(c) for c in found if not c.agrees] == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_logits_far_apart_across_blocks(framework, monkeypatch):
    """The running maximum moves from block to block by more than an exponential can hold."""
    monkeypatch.setitem(blocks.FORMS, next(iter(blocks.FORMS)), 200)
    layer = layers.create(framework, "fused_softmax", counts=zipf_counts(60), dim=5, seed=1)
    layer.load(
        {"weight": np.zeros((60, 5)), "bias": np.linspace(-500, 500, 60)[np.random.default_rng(0).permutation(60)]}
    )
    inputs = batch(layer.spec.counts, tokens=23, dim=5, seed=1)
    assert [str(c) for c in agreement.check_layer(layer, inputs, k=9) if not c.agrees] == []


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs PyTorch")
def test_one_block_is_in_memory_at_a_time(monkeypatch):
    from impls.on_torch import _products

    monkeypatch.setitem(blocks.FORMS, next(iter(blocks.FORMS)), 300)
    made, alive, linear = [], [], _products.linear

    def counted(*inputs):
        alive.append(sum(block() is not None for block in made))
        logits_NB = linear(*inputs)
        made.append(weakref.ref(logits_NB))
        return logits_NB

    monkeypatch.setattr(_products, "linear", counted)
    layer = layers.create("torch", "fused_softmax", counts=zipf_counts(97), dim=11, seed=3)
    inputs = batch(layer.spec.counts, tokens=41, dim=11, seed=3)
    layer.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    assert alive == [0] * 2 * 14  # forward and backward
