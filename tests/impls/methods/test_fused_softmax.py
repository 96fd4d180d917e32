"""Fused softmax over many blocks, where the conformance suite's vocabularies fit in one."""

import dataclasses
import weakref
from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls import cpp
from vocabench.impls.cpp import CPP
from vocabench.impls.structures import blocks

pytestmark = pytest.mark.many_cells

FRAMEWORKS = [f for f in registry.installed_frameworks() if f != "numpy" and "fused_softmax" in registry.methods(f)]


@pytest.fixture(params=["words", "tokens", "cpp"])
def form(request, monkeypatch):
    """A form by blocks of words, one by blocks of tokens, and our kernels, of 300 logits, and of few words in what
    blocks of tokens do by blocks of words."""
    small_forms = tuple(dataclasses.replace(form, size=300) for form in blocks.WORD_FORMS)
    monkeypatch.setattr(blocks, "WORD_FORMS", small_forms)
    monkeypatch.setattr(blocks, "_LOGITS_BY_TOKENS", dict.fromkeys(blocks._LOGITS_BY_TOKENS, 300))
    for framework in {"tensorflow", "jax"} & set(FRAMEWORKS):
        monkeypatch.setattr(f"vocabench.impls.on_{framework}.methods.fused_softmax._WORDS", 16)
    return {"words": small_forms[0], "tokens": blocks.TOKEN_FORM, "cpp": CPP}[request.param]


def made(framework, form, **given):
    spec = layers.spec("fused_softmax", **given)
    if form == CPP and form not in layers.forms(framework, spec):
        pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler")
    return layers.from_spec(framework, dataclasses.replace(spec, form=form.id))


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("vocab", [91, 97])  # a multiple of the width, and not
def test_many_blocks_agree_with_the_definition(framework, vocab, form):
    assert blocks.width(41, vocab, form) == 7
    by_tokens = blocks.are_of_tokens(form)
    assert not by_tokens or blocks.of_tokens(41, vocab, form) == 3
    dtypes = ["float32", "float64", "bfloat16"]
    if by_tokens:
        dtypes.remove("float64" if form == CPP else "bfloat16")
    if vocab % 7 == 0:
        dtypes = ["float32"]  # compiling takes most of the time
    dim = 48 if form == CPP else 11
    for dtype in dtypes:
        layer = made(framework, form, counts=zipf_counts(vocab), dim=dim, seed=3, dtype=dtype)
        inputs = batch(layer.spec.counts, tokens=41, dim=dim, seed=3)
        found = [*agreement.check_layer(layer, inputs, k=20), agreement.check_ties(layer, inputs, k=20)]
        assert [str(c) for c in found if not c.agrees] == []


@pytest.mark.parametrize(
    ("framework", "by_unit"), [*((f, False) for f in FRAMEWORKS), *((f, True) for f in FRAMEWORKS if f == "torch")]
)
@pytest.mark.parametrize("form", ["cpp"], indirect=True)
def test_gradients_in_bfloat16_are_those_of_float32_rounded_once(framework, by_unit, form, monkeypatch):
    """Each sum is float32, also over several blocks of tokens, on vector units and on the matrix unit."""
    monkeypatch.setattr(cpp, "fuses_by_unit", lambda *sizes: by_unit)
    given = {"counts": zipf_counts(97), "dim": 48, "seed": 3}
    half, single = (made(framework, form, dtype=dtype, **given) for dtype in ("bfloat16", "float32"))
    single.load(half.parameters())
    inputs = batch(zipf_counts(97), tokens=41, dim=48, seed=3)
    hidden_ND = np.round(inputs.hidden_ND * 64) / 64  # bfloat16 represents these numbers
    loss, dhidden_ND, grads = half.loss_and_grads(hidden_ND, inputs.targets_N)
    expected_loss, expected_dhidden_ND, expected = single.loss_and_grads(hidden_ND, inputs.targets_N)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    for ours, theirs in ((dhidden_ND, expected_dhidden_ND), *((grads[name], expected[name]) for name in expected)):
        np.testing.assert_allclose(ours, theirs, rtol=2.0**-8, atol=1e-7)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_logits_far_apart_across_blocks(framework, form):
    """The running maximum moves from block to block by more than an exponential can hold."""
    vocab, dim = (200, 16) if form == CPP else (60, 5)
    layer = made(framework, form, counts=zipf_counts(vocab), dim=dim, seed=1)
    bias_V = np.linspace(-500, 500, vocab)[np.random.default_rng(0).permutation(vocab)]
    layer.load({"weight": np.zeros((vocab, dim)), "bias": bias_V})
    inputs = batch(layer.spec.counts, tokens=23, dim=dim, seed=1)
    assert [str(c) for c in agreement.check_layer(layer, inputs, k=9) if not c.agrees] == []


def test_blocks_of_tokens_are_of_nearly_one_size_and_never_larger_than_the_form_says():
    form, size = blocks.TOKEN_FORM, blocks.TOKEN_FORM.size
    for tokens, vocab in ((1, 10), (2560, 44_000), (2560, 128_000), (100, 2 * size)):
        width = blocks.of_tokens(tokens, vocab, form)
        count = -(-tokens // width)
        assert width == 1 or width * vocab <= size
        assert count * width - tokens < count
    assert blocks.of_tokens(2560, 128_000, form) == 128  # twenty times, where nineteen are too few


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs PyTorch")
def test_what_counts_the_words_that_top_k_scores_does_it_by_blocks(monkeypatch):
    small_forms = tuple(dataclasses.replace(form, size=300) for form in blocks.WORD_FORMS)
    monkeypatch.setattr(blocks, "WORD_FORMS", small_forms)
    layer: Any = made("torch", small_forms[0], counts=zipf_counts(91), dim=11)
    monkeypatch.setattr(layer.native, "log_probs", lambda hidden_ND: pytest.fail("made every logit at once"))
    assert (layer.expanded_share(batch(layer.spec.counts, tokens=41, dim=11, seed=3).hidden_ND, 20) == 1).all()


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs PyTorch")
def test_gradients_made_in_the_forward_pass_of_any_loss_of_it_and_again(monkeypatch):
    """Cover a loss that is part of another one, with padding, and a second pass through the same graph."""
    import torch

    from vocabench.impls.on_torch import adapter

    monkeypatch.setitem(blocks._LOGITS_BY_TOKENS, blocks.TOKEN_FORM, 300)
    spec = layers.spec("fused_softmax", counts=zipf_counts(97), dim=11, seed=3, dtype="float64")
    by_tokens, by_words = (
        adapter.native(dataclasses.replace(spec, form=form.id)) for form in (blocks.TOKEN_FORM, blocks.WORD_FORMS[0])
    )
    inputs = batch(spec.counts, tokens=41, dim=11, seed=3)
    targets = torch.from_numpy(np.where(np.arange(41) % 5, inputs.targets_N, -100))
    found = []
    for layer in (by_tokens, by_words):
        hidden = torch.from_numpy(inputs.hidden_ND).requires_grad_()
        loss = 3 * layer(hidden, targets, reduction="sum") + layer(hidden, targets) ** 2
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([loss, hidden.grad, layer.weight.grad, layer.bias.grad])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs PyTorch")
@pytest.mark.parametrize("form", ["words", "tokens"], indirect=True)  # the C++ kernels allocate their own blocks
def test_one_block_is_in_memory_at_a_time(form, monkeypatch):
    from vocabench.impls.on_torch.ops import products

    logits, alive, linear = [], [], products.linear

    def counted(*inputs, **further):
        if len(inputs) < 3:  # a product of gradients, which has no bias
            return linear(*inputs, **further)
        alive.append(sum(block() is not None for block in logits))
        logits_NB = linear(*inputs, **further)
        logits.append(weakref.ref(logits_NB))
        return logits_NB

    monkeypatch.setattr(products, "linear", counted)
    layer = made("torch", form, counts=zipf_counts(97), dim=11, seed=3)
    inputs = batch(layer.spec.counts, tokens=41, dim=11, seed=3)
    layer.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    assert alive == [0] * (14 if blocks.are_of_tokens(form) else 2 * 14)  # forward, and backward
