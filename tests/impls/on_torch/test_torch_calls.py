"""The public calls of the native PyTorch layers: what they take, what they refuse, and padding."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.impls.on_torch.native_layers import (
    DIM,
    METHODS,
    VOCAB,
    batch,
    extra_of,
    gradients,
    in_all_forms,
    layer_of,
    of_all_distributions,
    of_all_methods,
)
from vocabench.harness import registry
from vocabench.impls.errors import BadInput
from vocabench.impls.on_torch import inputs

pytestmark = pytest.mark.many_cells

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


@of_all_methods
def test_calls_on_any_leading_axes_equal_the_flat_call(method):
    hidden, targets = batch(2, 3, 4)
    flat_ND, flat_N = hidden.reshape(-1, DIM), targets.reshape(-1)
    for layer in in_all_forms(method):
        extra, uniforms = extra_of(layer), torch.rand(2, 3, 4, layer.spec.draws)
        for reduction in ("mean", "sum"):
            expected = layer(flat_ND, flat_N, reduction=reduction, **extra)
            torch.testing.assert_close(layer(hidden, targets, reduction=reduction, **extra), expected)
        expected_N = layer(flat_ND, flat_N, reduction="none", **extra)
        torch.testing.assert_close(layer(hidden, targets, reduction="none", **extra), expected_N.view(2, 3, 4))
        for call, *arguments in (
            (layer.log_probs,), (layer.entropy,), (layer.topk, 5), (layer.search, 5), (layer.beam, 3, 7),
        ):  # fmt: skip
            results, expected = call(hidden, *arguments), call(flat_ND, *arguments)
            pairs = zip(results, expected, strict=True) if isinstance(results, tuple) else [(results, expected)]
            for result, flat in pairs:
                torch.testing.assert_close(result, flat.view(2, 3, 4, *flat.shape[1:]))
        torch.testing.assert_close(
            layer.target_log_probs(hidden, targets), layer.target_log_probs(flat_ND, flat_N).view(2, 3, 4)
        )
        parts = zip(layer.nll_parts(hidden, targets), layer.nll_parts(flat_ND, flat_N), strict=True)
        for part, flat in parts:
            torch.testing.assert_close(part, flat.view(2, 3, 4))
        drawn_N = layer.sample(flat_ND, uniforms.view(24, -1))
        assert layer.sample(hidden, uniforms).tolist() == drawn_N.view(2, 3, 4).tolist()


@of_all_methods
def test_a_single_vector_has_a_scalar_target(method):
    hidden, targets = batch(3)
    layer = layer_of(method)
    extra = extra_of(layer)
    losses_N = layer(hidden, targets, reduction="none", **extra)
    assert layer(hidden[1], targets[1], reduction="none", **extra).shape == ()
    torch.testing.assert_close(layer(hidden[1], targets[1], **extra), losses_N[1])
    assert layer.topk(hidden[1], 4)[1].tolist() == layer.topk(hidden, 4)[1][1].tolist()
    assert layer.sample(hidden[1]).shape == ()


@of_all_methods
def test_hidden_vectors_without_the_width_of_the_layer_or_a_target_each_are_refused(method):
    layer = layer_of(method)
    extra = extra_of(layer)
    hidden, targets = batch(24)
    for width in (DIM - 8, DIM + 8):
        wrong_ND = torch.zeros(24, width)
        for call in (
            lambda h=wrong_ND: layer(h, targets, **extra),
            lambda h=wrong_ND: layer.log_probs(h),
            lambda h=wrong_ND: layer.topk(h, 3),
            lambda h=wrong_ND: layer.beam(h, 3, 5),
            lambda h=wrong_ND: layer.sample(h),
            lambda h=wrong_ND: layer.entropy(h),
        ):
            with pytest.raises(BadInput, match=re.escape(f"hidden has shape (24, {width}): allowed: (..., {DIM})")):
                call()
    for wrong_N, leading in ((targets[:10], 24), (targets, 10), (targets.view(4, 6), 24)):
        with pytest.raises(BadInput, match="targets has shape"):
            layer(hidden[:leading], wrong_N, **extra)
        with pytest.raises(BadInput, match="targets has shape"):
            layer.target_log_probs(hidden[:leading], wrong_N)
    with pytest.raises(BadInput, match="hidden has dtype"):
        layer(hidden.long(), targets, **extra)
    for wrong in (targets.double(), targets.bool()):
        with pytest.raises(BadInput, match="targets has dtype"):
            layer(hidden, wrong, **extra)
    with pytest.raises(BadInput, match="hidden is a list"):
        layer(hidden.tolist(), targets, **extra)


@pytest.mark.parametrize("method", ["full_softmax", "huffman", "sohsm"])
def test_options_out_of_range_are_refused_by_name(method):
    layer: Any = layer_of(method)
    hidden, targets = batch(4)
    for name, value in (
        ("reduction", "avg"), ("ignore_index", 1.5), ("label_smoothing", 1.0), ("label_smoothing", True),
        ("z_loss", -1.0), ("softcap", 0.0), ("token_weight", 1.0), ("token_weight", torch.ones(3)),
        ("token_weight", torch.ones(4, dtype=torch.int64)),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=name):
            layer(hidden, targets, **{name: value})
    for k in (0, VOCAB + 1, 2.0, True):
        with pytest.raises(BadInput, match=f"k={k!r}"):
            layer.topk(hidden, k)
        with pytest.raises(BadInput, match=f"k={k!r}"):
            layer.beam(hidden, k, VOCAB)
    for width in (2, VOCAB + 1):
        with pytest.raises(BadInput, match=f"width={width}"):
            layer.beam(hidden, 3, width)
    draws = layer.spec.draws
    for uniforms in (torch.rand(4, draws + 1), torch.rand(3, draws), torch.ones(4, draws), -torch.rand(4, draws)):
        with pytest.raises(BadInput, match="uniforms"):
            layer.sample(hidden, uniforms)
    for name, value in (("temperature", 0.0), ("top_k", 0), ("top_p", 0.0), ("top_p", 1.1)):
        with pytest.raises(BadInput, match=name):
            layer.sample(hidden, **{name: value})


@of_all_methods
def test_unknown_keywords_are_refused_with_the_nearest_name(method):
    layer: Any = layer_of(method)
    hidden, targets = batch(4)
    with pytest.raises(TypeError, match="no 'ignore_idx': did you mean 'ignore_index'"):
        layer(hidden, targets, ignore_idx=0)
    with pytest.raises(TypeError, match="no 'reduce'"):
        layer(hidden, targets, reduce="none")


@of_all_methods
def test_targets_outside_the_vocabulary_are_refused_on_the_host(method):
    for layer in in_all_forms(method):
        for tokens in (5, 100):
            hidden, targets = batch(tokens)
            for outside in (-1, VOCAB, 2**40):
                targets[3] = outside
                with pytest.raises(BadInput, match=f"targets holds {outside}: allowed: word ids from 0 to 59"):
                    layer(hidden, targets, **extra_of(layer))
                with pytest.raises(BadInput, match=f"targets holds {outside}"):
                    layer.target_log_probs(hidden, targets)
                with pytest.raises(BadInput, match=f"targets holds {outside}"):
                    layer.nll_parts(hidden, targets)
            assert torch.isfinite(layer(hidden, targets, ignore_index=2**40, **extra_of(layer)))


@of_all_methods
def test_losses_of_targets_outside_the_vocabulary_are_nan_where_values_are_not_read(method, monkeypatch):
    """As on an accelerator, or in a traced function."""
    monkeypatch.setattr(inputs, "is_readable", lambda tensor: False)
    hidden, targets = batch(8)
    inside = targets.clone()
    targets[[2, 5]] = torch.tensor([-1, 2**40])
    inside[0] = targets[0] = -100
    for layer in in_all_forms(method):
        extra = extra_of(layer)
        losses_N = layer(hidden, targets, reduction="none", **extra)
        assert losses_N.isnan().tolist() == [position in (2, 5) for position in range(8)]
        assert losses_N[0] == 0
        assert layer(hidden, targets, **extra).isnan()
        assert layer(hidden, targets, reduction="sum", **extra).isnan()
        assert layer(hidden, inside, **extra).isfinite()
        log_probs_N = layer.target_log_probs(hidden, targets.masked_fill(targets == -100, 0))
        assert log_probs_N.isnan().sum() == 2


@pytest.mark.parametrize("method", ["full_softmax", "huffman", "sohsm"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_targets_of_all_integer_dtypes_are_the_same_words(method, dtype):
    layer, (hidden, targets) = layer_of(method), batch(40)
    expected = layer(hidden, targets)
    assert torch.equal(layer(hidden, targets.to(dtype)), expected)
    if dtype.is_signed:
        targets[::3] = -100
        assert torch.equal(layer(hidden, targets.to(dtype)), layer(hidden, targets))


@of_all_methods
def test_hidden_vectors_in_all_floating_dtypes_have_the_loss_of_float32(method):
    hidden, targets = batch(24)
    for layer in in_all_forms(method):
        extra = extra_of(layer)
        expected, entropy_N = float(layer(hidden, targets, **extra).detach()), layer.entropy(hidden).detach()
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            cast: torch.Tensor = hidden.to(dtype).requires_grad_()
            loss = layer(cast, targets, **extra)
            loss.backward()
            assert loss.dtype == torch.float32
            assert float(loss.detach()) == pytest.approx(expected, abs=0.01)
            assert cast.grad is not None
            assert cast.grad.dtype == dtype
            torch.testing.assert_close(layer.entropy(cast), entropy_N, atol=0.05, rtol=0)
            for values in (layer.log_probs(cast), layer.topk(cast, 3)[0], layer.beam(cast, 3, 9)[0]):
                assert values.dtype == torch.float32
            layer.sample(cast)


@of_all_methods
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_layers_that_were_cast_keep_their_loss(method, dtype):
    hidden, targets = batch(24)
    layer = layer_of(method)
    extra = extra_of(layer)
    expected = float(layer(hidden, targets, **extra).detach())
    layer.to(dtype)
    loss = layer(hidden, targets, **extra)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    assert float(loss.detach()) == pytest.approx(expected, abs=0.05)
    loss.backward()
    assert all(parameter.dtype == dtype for parameter in layer.parameters())
    sums_N = layer.log_probs(hidden).exp().sum(dim=1)
    torch.testing.assert_close(sums_N, torch.ones_like(sums_N), atol=0.02, rtol=0)
    assert layer.topk(hidden, 5)[1].shape == layer.beam(hidden, 5, 9)[1].shape == (24, 5)
    assert 0 <= int(layer.sample(hidden).min()) <= int(layer.sample(hidden).max()) < VOCAB


@of_all_methods
def test_no_tokens_have_a_loss_of_zero_and_empty_results(method):
    for layer in in_all_forms(method):
        extra = extra_of(layer)
        for shape in ((0, DIM), (3, 0, DIM), (0, 5, DIM)):
            hidden = torch.zeros(shape, requires_grad=True)
            targets = torch.zeros(shape[:-1], dtype=torch.int64)
            for reduction in ("mean", "sum"):
                loss = layer(hidden, targets, reduction=reduction, **extra)
                assert float(loss.detach()) == 0
                assert all((gradient == 0).all() for gradient in gradients(loss, hidden, layer))
            assert layer(hidden, targets, reduction="none", **extra).shape == shape[:-1]
            assert layer(hidden, targets, token_weight=torch.zeros(shape[:-1]), **extra) == 0
            assert layer.entropy(hidden).shape == layer.target_log_probs(hidden, targets).shape == shape[:-1]
            assert layer.log_probs(hidden).shape == (*shape[:-1], VOCAB)
            assert layer.sample(hidden).shape == layer.sample(hidden, top_k=3).shape == shape[:-1]
            for results in (layer.topk(hidden, 5), layer.beam(hidden, 5, 9), layer.search(hidden, 5)[:2]):
                assert [result.shape for result in results] == 2 * [(*shape[:-1], 5)]


@of_all_methods
@pytest.mark.parametrize("readable", [True, False], ids=["read", "traced"])
def test_padding_may_hold_nan_or_infinity(method, readable, monkeypatch):
    if not readable:
        monkeypatch.setattr(inputs, "is_readable", lambda tensor: False)
    hidden, targets = batch(12)
    targets[[0, 5, 11]] = -100
    spoiled = hidden.clone()
    spoiled[0], spoiled[5], spoiled[11, 3] = torch.nan, torch.inf, -torch.inf
    options = [{"reduction": "mean"}, {"token_weight": torch.rand(12).where(targets >= 0, torch.nan)}]
    if not registry.definition(method).train_only_loss:
        options.append({"label_smoothing": 0.1})
    for layer in in_all_forms(method):
        for chosen in options:
            expected, spoilt = (vectors.clone().requires_grad_() for vectors in (hidden, spoiled))
            losses = [layer(vectors, targets, **chosen, **extra_of(layer)) for vectors in (expected, spoilt)]
            torch.testing.assert_close(losses[1], losses[0])
            for actual, clean in zip(
                gradients(losses[1], spoilt, layer), gradients(losses[0], expected, layer), strict=True
            ):
                torch.testing.assert_close(actual, clean)
            losses_N = layer(spoilt, targets, reduction="none", **extra_of(layer))
            assert losses_N[[0, 5, 11]].tolist() == [0, 0, 0]


@of_all_methods
def test_vectors_with_gaps_in_memory_have_the_same_results(method):
    wide, targets = batch(12, 2)
    gaps, targets = wide[:, 1], targets[:, 1]
    assert not gaps.is_contiguous()
    for layer in in_all_forms(method):
        extra = extra_of(layer)
        torch.testing.assert_close(layer(gaps, targets, **extra), layer(gaps.clone(), targets.clone(), **extra))
        assert layer.topk(gaps, 4)[1].tolist() == layer.topk(gaps.clone(), 4)[1].tolist()
        uniforms = torch.rand(12, layer.spec.draws)
        assert layer.sample(gaps, uniforms).tolist() == layer.sample(gaps.clone(), uniforms).tolist()


@pytest.mark.parametrize("method", [m for m in METHODS if registry.definition(m).extra])
def test_a_generator_decides_on_the_sampled_words_that_are_left_out(method):
    layer, (hidden, targets) = layer_of(method, samples=5), batch(12)
    with torch.no_grad():
        next(layer.parameters()).normal_(generator=torch.Generator().manual_seed(0))
    losses = [layer(hidden, targets, generator=torch.Generator().manual_seed(seed)).tolist() for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    for wrong in (torch.tensor([VOCAB]), torch.tensor([-1]), torch.tensor([0.5]), torch.zeros(0, dtype=torch.int64)):
        with pytest.raises(BadInput, match="sampled_ids"):
            layer(hidden, targets, sampled_ids=wrong)


@of_all_methods
def test_activation_checkpointing_does_not_change_gradients(method):
    layer, (hidden, targets) = layer_of(method), batch(24)
    plain, kept = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    extra = extra_of(layer)
    layer(plain, targets, **extra).backward()
    loss = checkpoint(lambda vectors: layer(vectors, targets, **extra), kept, use_reentrant=False)
    loss.backward()  # type: ignore[union-attr]
    torch.testing.assert_close(kept.grad, plain.grad)


@of_all_distributions
def test_the_default_dtype_of_float64_changes_no_loss(method):
    hidden, targets = batch(6)
    expected = layer_of(method)(hidden, targets)
    torch.set_default_dtype(torch.float64)
    try:
        layer = layer_of(method)
        torch.testing.assert_close(layer(hidden, targets), expected)
        torch.testing.assert_close(layer_of(method, dtype="float64")(hidden, targets).float(), expected)
        layer.sample(hidden), layer.topk(hidden, 3), layer.beam(hidden, 3, 4), layer.entropy(hidden)
    finally:
        torch.set_default_dtype(torch.float32)


@of_all_distributions
def test_second_derivatives_are_right_or_raise(method):
    """A gradient penalty takes them, by `loss.backward(create_graph=True)`."""
    for layer in in_all_forms(method, dtype="float64"):
        hidden, targets = batch(12, dtype=torch.float64)
        hidden.requires_grad_()
        log_probs_N = layer.log_probs(hidden)[torch.arange(12), targets]
        penalties = []
        for loss in (layer(hidden, targets), -log_probs_N.mean()):
            (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
            try:
                penalties.append(torch.autograd.grad(gradient.square().sum(), hidden)[0])
            except RuntimeError as error:
                assert "second derivatives of this layer" in str(error)  # noqa: PT017
        for penalty in penalties[1:]:
            torch.testing.assert_close(penalty, penalties[0])
