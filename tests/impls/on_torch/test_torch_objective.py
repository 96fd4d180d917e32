"""Training objectives, entropies and sampling options of the native PyTorch layers, against their definitions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.impls.on_torch.native_layers import (
    VOCAB,
    batch,
    gradients,
    in_all_forms,
    layer_of,
    of_all_distributions,
    of_all_methods,
    of_all_softmaxes,
)
from vocabench.impls.on_torch import objectives
from vocabench.impls.on_torch.layer import OutputLayer

pytestmark = pytest.mark.many_cells

ROWS = torch.arange(12)


@pytest.fixture(params=[2**24, 300], ids=["whole", "blocks"])
def at_once(request, monkeypatch):
    """Compute all log-probabilities at once, or those of five tokens at a time."""
    monkeypatch.setattr(objectives, "_AT_ONCE", request.param)


def assert_same(loss: Tensor, expected: Tensor, hidden: Tensor, layer: OutputLayer, atol: float = 1e-10) -> None:
    torch.testing.assert_close(loss, expected, atol=atol, rtol=1e-6 if atol > 1e-7 else 1e-10)
    actual, truth = (gradients(value, hidden, layer) for value in (loss, expected))
    for one, other in zip(actual, truth, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=1e-4 if atol > 1e-7 else 1e-10)


@of_all_distributions
def test_label_smoothing_is_exact_over_words(method, at_once):
    for dtype, atol in (("float64", 1e-10), ("float32", 1e-5)):
        for layer in in_all_forms(method, dtype=dtype):
            hidden, targets = batch(12, dtype=getattr(torch, dtype))
            hidden.requires_grad_()
            log_probs_NV = layer.log_probs(hidden)
            expected_N = -0.8 * log_probs_NV[ROWS, targets] - 0.2 * log_probs_NV.mean(dim=1)
            assert_same(layer(hidden, targets, label_smoothing=0.2), expected_N.mean(), hidden, layer, atol)
            losses_N = layer(hidden, targets, label_smoothing=0.2, reduction="none")
            torch.testing.assert_close(losses_N, expected_N, atol=atol, rtol=1e-5)


@of_all_softmaxes
@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_z_loss_and_softcap_equal_their_definition(method, softcap, smoothing, at_once):
    layer = layer_of(method, dtype="float64")
    hidden, targets = batch(12, dtype=torch.float64)
    hidden.requires_grad_()
    logits_NV = layer._logits(hidden)
    torch.testing.assert_close(logits_NV.log_softmax(dim=1), layer.log_probs(hidden))
    if softcap is not None:
        logits_NV = softcap * torch.tanh(logits_NV / softcap)
    log_sum_N = logits_NV.logsumexp(dim=1)
    log_probs_NV = logits_NV - log_sum_N[:, None]
    expected_N = -(1 - smoothing) * log_probs_NV[ROWS, targets] - smoothing * log_probs_NV.mean(dim=1)
    expected_N = expected_N + 0.01 * log_sum_N**2
    loss = layer(hidden, targets, label_smoothing=smoothing, z_loss=0.01, softcap=softcap, reduction="sum")
    assert_same(loss, expected_N.sum(), hidden, layer)
    torch.testing.assert_close(layer.log_probs(hidden, softcap=softcap), log_probs_NV)
    torch.testing.assert_close(layer.target_log_probs(hidden, targets, softcap=softcap), log_probs_NV[ROWS, targets])
    values_NK, ids_NK = layer.topk(hidden, 4, softcap=softcap)
    assert ids_NK.tolist() == layer.topk(hidden, 4)[1].tolist()
    torch.testing.assert_close(values_NK, log_probs_NV.gather(1, ids_NK).detach())
    torch.testing.assert_close(layer.entropy(hidden, softcap=softcap), -(log_probs_NV.exp() * log_probs_NV).sum(dim=1))


@of_all_methods
def test_token_weights_weight_the_losses(method):
    layer = layer_of(method, dtype="float64")
    hidden, targets = batch(3, 4, dtype=torch.float64)
    hidden.requires_grad_()
    targets[1, 2] = -100
    rng = torch.Generator().manual_seed(0)
    weight = torch.rand(3, 4, generator=rng).requires_grad_()
    options = {"generator": torch.Generator()}
    losses = layer(hidden, targets, reduction="none", **_seeded(options))
    real = targets != -100
    weighted = losses * weight
    torch.testing.assert_close(
        layer(hidden, targets, token_weight=weight, reduction="none", **_seeded(options)), weighted
    )
    total = layer(hidden, targets, token_weight=weight, reduction="sum", **_seeded(options))
    expected = layer(hidden, targets, reduction="none", **_seeded(options)) * weight
    assert_same(total, expected.sum(), hidden, layer)
    mean = layer(hidden, targets, token_weight=weight, **_seeded(options))
    assert_same(mean, weighted.sum() / weight[real].sum(), hidden, layer)
    again = layer(hidden, targets, token_weight=weight, reduction="sum", **_seeded(options))
    torch.testing.assert_close(torch.autograd.grad(again, weight)[0], losses.float())
    nothing = layer(hidden, targets, token_weight=torch.zeros(3, 4), **_seeded(options))
    assert float(nothing.detach()) == 0
    assert all((gradient == 0).all() for gradient in gradients(nothing, hidden, layer))


def _seeded(options: dict[str, torch.Generator]) -> dict[str, torch.Generator]:
    options["generator"].manual_seed(0)
    return options


@of_all_methods
def test_the_entropy_is_that_of_the_log_probabilities(method, at_once):
    for layer in in_all_forms(method, dtype="float64"):
        hidden = batch(12, dtype=torch.float64)[0].requires_grad_()
        log_probs_NV = layer.log_probs(hidden)
        expected_N = -(log_probs_NV.exp() * log_probs_NV).sum(dim=1)
        assert_same(layer.entropy(hidden).sum(), expected_N.sum(), hidden, layer)


def by_numpy(log_probs_V, uniform, temperature, top_k, top_p) -> int:
    """Draw a word in float64, one after another."""
    p_V = np.exp((log_probs_V - log_probs_V.max()) / temperature)
    order = np.arange(len(p_V)) if top_k is top_p is None else np.lexsort((np.arange(len(p_V)), -p_V))
    order = order[:top_k]
    p_K = p_V[order] / p_V[order].sum()
    if top_p is not None:
        kept = next(count for count in range(1, len(p_K) + 1) if p_K[:count].sum() >= top_p or count == len(p_K))
        order, p_K = order[:kept], p_K[:kept] / p_K[:kept].sum()
    return int(order[min(np.searchsorted(np.cumsum(p_K), uniform, side="right"), len(order) - 1)])


@of_all_methods
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [choice for choice in itertools.product([1.0, 0.5, 3.0], [None, 7], [None, 0.6]) if choice != (1.0, None, None)],
)
def test_sampling_options_equal_a_reference(method, temperature, top_k, top_p, at_once):
    layer = layer_of(method, dtype="float64")
    hidden = batch(40, dtype=torch.float64)[0]
    uniforms = torch.rand(40, layer.spec.draws, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    options = temperature, top_k, top_p
    expected = [
        by_numpy(row, uniform, *options)
        for row, uniform in zip(layer.log_probs(hidden).detach().numpy(), uniforms[:, 0].numpy(), strict=True)
    ]
    assert layer.sample(hidden, uniforms, *options).tolist() == expected


def test_a_tiny_temperature_or_share_or_one_word_leaves_the_likeliest_word():
    layer: Any = layer_of("full_softmax")
    hidden = batch(20)[0]
    best_N = layer.topk(hidden, 1)[1][:, 0].tolist()
    for options in ({"temperature": 1e-300}, {"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-40, "top_p": 0.9}):
        assert layer.sample(hidden, **options).tolist() == best_N


def test_a_generator_decides_on_the_uniforms_that_are_left_out():
    layer, hidden = layer_of("huffman"), batch(200)[0]
    first, again, other = (layer.sample(hidden, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()
    assert int(first.max()) < VOCAB
