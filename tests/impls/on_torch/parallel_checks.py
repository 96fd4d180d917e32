"""Checks of layers whose words are split over ranks. Each process of a group runs all of them, and keeps the failures.

python -m tests.impls.on_torch.parallel_checks RANK RANKS FOLDER
"""

from __future__ import annotations

import copy
import json
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed

import vocabench
import vocabench.torch
from vocabench.harness import layers
from vocabench.impls.errors import BadInput
from vocabench.impls.on_torch import adapter
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.parallel import native
from vocabench.impls.on_torch.parallel.layer import ParallelLayer

VOCAB, DIM, TOKENS = 61, 16, 24  # 61 words divide over no number of ranks
COUNTS = np.round(2000 / np.arange(1, VOCAB + 1)).astype(int)
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "full_softmax": [{}, {"bias": False}],
    "inplace_softmax": [{}, {"bias": False}],
    "fused_softmax": [{}, {"bias": False}],
    "sohsm": [
        {"interval": 0},
        {"interval": 0, "projection": "none", "bias": True},
        {"interval": 0, "projection": "cluster_residual", "bias": True},
    ],
    "huffman": [{}],
}
SOFTMAXES = ("full_softmax", "inplace_softmax", "fused_softmax")
# What rounds differently with several ranks: sums over words and over ranks.
CLOSE: dict[torch.dtype, dict[str, Any]] = {
    torch.float64: {"atol": 1e-10, "rtol": 1e-8},
    torch.float32: {"atol": 2e-5, "rtol": 1e-4},
    torch.bfloat16: {"atol": 2e-2, "rtol": 2e-2},
}

checks: dict[str, Callable[[Any], None]] = {}


def check(function: Callable[[Any], None]) -> Callable[[Any], None]:
    checks[function.__name__] = function
    return function


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, DIM, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, VOCAB, (TOKENS,), generator=generator)
    targets[:4] = torch.tensor([0, VOCAB - 1, VOCAB // 2, 0])
    return hidden, targets


def pairs(group: Any, dtype: torch.dtype = torch.float64) -> list[tuple[OutputLayer, ParallelLayer]]:
    """Return each layer that can be split, whole and split, with all options."""
    name = str(dtype).removeprefix("torch.")
    made = []
    for method in native.methods():
        for options in OPTIONS[method]:
            spec = layers.spec(method, counts=COUNTS, dim=DIM, dtype=name, seed=3, **options)
            made.append((adapter.native(spec), native.parallel(spec, group, "cpu")))
    return made


def losses_and_gradients(layer: OutputLayer, hidden: Tensor, targets: Tensor, **options: Any) -> dict[str, Tensor]:
    """Return loss and gradients with respect to hidden vectors and canonical parameters."""
    layer.zero_grad()
    hidden = hidden.clone().requires_grad_()
    loss = layer(hidden, targets, **options)
    loss.sum().backward()
    grads = {name: parameter.grad for name, parameter in layer.named_parameters()}
    assert all(grad is not None for grad in grads.values())
    assert hidden.grad is not None
    return {"loss": loss.detach(), "hidden": hidden.grad, **layer.to_canonical(grads)}  # type: ignore[arg-type]


def assert_alike(whole: dict[str, Tensor], split: dict[str, Tensor], dtype: torch.dtype, what: str) -> None:
    assert whole.keys() == split.keys()
    for name in whole:
        torch.testing.assert_close(split[name], whole[name], **CLOSE[dtype], msg=lambda m, n=name: f"{what}: {n}: {m}")


@check
def losses_and_gradients_are_those_of_the_definition(group: Any) -> None:
    hidden, targets = batch()
    for _, split in pairs(group):
        spec = split.spec
        chosen: dict[str, Any] = dict(spec.options)
        oracle = vocabench.create("numpy", spec.method, counts=spec.counts, dim=DIM, seed=3, **chosen)
        loss, dhidden, grads = oracle.loss_and_grads(hidden.numpy(), targets.numpy())
        expected = {"loss": torch.tensor(loss, dtype=torch.float64), "hidden": torch.from_numpy(dhidden)}
        expected |= {name: torch.from_numpy(grad) for name, grad in grads.items()}
        assert_alike(expected, losses_and_gradients(split, hidden, targets), torch.float64, repr(split))


@check
def objectives_are_those_of_the_whole_layer(group: Any) -> None:
    hidden, targets = batch()
    targets[5:8] = -100
    weight = torch.rand(TOKENS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for whole, split in pairs(group):
        for options in (
            {"reduction": "none"},
            {"reduction": "sum", "label_smoothing": 0.1},
            {"token_weight": weight},
            *(
                ({"z_loss": 0.01, "label_smoothing": 0.1}, {"softcap": 2.0, "z_loss": 0.01, "label_smoothing": 0.1})
                if split.spec.method in SOFTMAXES
                else ()
            ),
        ):
            expected = losses_and_gradients(whole, hidden, targets, **options)
            found = losses_and_gradients(split, hidden, targets, **options)
            assert_alike(expected, found, torch.float64, f"{split!r} {options}")


@check
def every_precision_and_form_agrees(group: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        hidden, targets = batch(dtype)
        targets[5:8] = -100
        name = str(dtype).removeprefix("torch.")
        for method in native.methods():
            spec = layers.spec(method, counts=COUNTS, dim=DIM, dtype=name, seed=3, **OPTIONS[method][0])
            expected = losses_and_gradients(adapter.native(spec), hidden, targets)
            for form in ("", *(form.id for form in adapter.forms(spec, "cpu"))):
                split = native.parallel(replace(spec, form=form), group, "cpu")
                found = losses_and_gradients(split, hidden, targets)
                assert_alike(expected, found, dtype, f"{split!r} {form} {dtype}")


@check
def decoding_is_that_of_the_whole_layer(group: Any) -> None:
    hidden, targets = batch()
    uniforms = torch.Generator().manual_seed(2)
    for whole, split in pairs(group):
        what = repr(split)
        for k in (1, 5, 40, VOCAB):
            (values, ids), (own_values, own_ids) = whole.topk(hidden, k), split.topk(hidden, k)
            assert torch.equal(ids, own_ids), what
            torch.testing.assert_close(own_values, values, **CLOSE[torch.float64])
        drawn = torch.rand(TOKENS, whole.spec.draws, generator=uniforms, dtype=torch.float64)
        choices: list[dict[str, Any]] = [{}, {"temperature": 0.5}, {"top_k": 7, "temperature": 2.0}, {"top_p": 0.6}]
        for options in choices:
            sampled = split.sample(hidden, drawn, **options)
            assert torch.equal(sampled, whole.sample(hidden, drawn, **options)), (what, options)
        for call in (
            lambda layer: layer.log_probs(hidden),
            lambda layer: layer.target_log_probs(hidden, targets),
            lambda layer: layer.entropy(hidden),
        ):
            torch.testing.assert_close(call(split), call(whole), **CLOSE[torch.float64])
        if whole.spec.method in SOFTMAXES:
            for call in (
                lambda layer: layer.topk(hidden, 5, softcap=1.5),
                lambda layer: layer.entropy(hidden, softcap=1.5),
                lambda layer, drawn=drawn: layer.sample(hidden, drawn, softcap=1.5),
            ):
                torch.testing.assert_close(call(split), call(whole), **CLOSE[torch.float64])


@check
def ties_go_to_the_lower_id(group: Any) -> None:
    hidden, _ = batch()
    for whole, split in pairs(group):
        for layer in (whole, split):
            layer.load_canonical({name: torch.zeros(shape) for name, shape in layer.spec.parameter_shapes().items()})
        if whole.spec.method in SOFTMAXES:
            assert torch.equal(split.topk(hidden, 9)[1], torch.arange(9).expand(TOKENS, 9))
        for results in zip(split.topk(hidden, 9), whole.topk(hidden, 9), strict=True):
            torch.testing.assert_close(*results)


@check
def log_probabilities_and_entropies_are_differentiable(group: Any) -> None:
    hidden, _ = batch()
    for whole, split in pairs(group):
        found = []
        for layer in (whole, split):
            layer.zero_grad()
            leaf = hidden.clone().requires_grad_()
            log_probs = layer.log_probs(leaf)
            (log_probs[:, ::3].sum() + layer.entropy(leaf).sum()).backward()
            grads: dict[str, Any] = {name: parameter.grad for name, parameter in layer.named_parameters()}
            found.append({"hidden": leaf.grad, **layer.to_canonical(grads)})
        assert_alike(*found, torch.float64, repr(split))  # type: ignore[arg-type, call-arg]


@check
def training_goes_as_with_the_whole_layer(group: Any) -> None:
    hidden, targets = batch(torch.float32)
    for whole, split in pairs(group, torch.float32):
        losses = []
        for layer in (whole, split):
            torch.manual_seed(0)
            linear = torch.nn.Linear(DIM, DIM)
            optimizer = torch.optim.Adam([*linear.parameters(), *layer.parameters()], lr=0.02)
            for _ in range(20):
                optimizer.zero_grad()
                loss = layer(torch.tanh(linear(hidden)), targets)
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 1e-3 * losses[0], (repr(split), losses)


@check
def checkpoints_move_between_whole_and_split_layers(group: Any) -> None:
    hidden, targets = batch()
    for whole, split in pairs(group):
        state = {name: value.clone() for name, value in split.whole().state_dict().items()}
        assert state.keys() == whole.state_dict().keys()
        for name, value in whole.state_dict().items():
            assert torch.equal(state[name], value), (repr(split), name)
        with torch.no_grad():
            for parameter in whole.parameters():
                parameter.mul_(0.5)
        split.load_whole_state_dict(whole.state_dict())
        torch.testing.assert_close(split(hidden, targets), whole(hidden, targets))
        own = copy.deepcopy(split.state_dict())
        again = native.parallel(split.spec, group, "cpu")
        again.load_state_dict(own)
        torch.testing.assert_close(again(hidden, targets), whole(hidden, targets))
        torch.testing.assert_close(copy.deepcopy(split)(hidden, targets), whole(hidden, targets))
        own["part"] = torch.tensor([int(own["part"][0]), 7])
        refused(lambda own=own, again=again: again.load_state_dict(own), "of 7: allowed: that of rank")


@check
def each_rank_holds_its_part_only(group: Any) -> None:
    ranks = distributed.get_world_size(group)
    for whole, split in pairs(group):
        held, total = (sum(p.numel() for p in layer.parameters()) for layer in (split, whole))
        assert held < 0.75 * total if ranks == 2 else held < 0.6 * total, (repr(split), held, total)


@check
def bad_input_is_refused_in_one_line(group: Any) -> None:
    hidden, targets = batch()
    make = vocabench.torch.layer
    counts: dict[str, Any] = {"counts": COUNTS, "dim": DIM}
    named: dict[str, Any] = {"group": "tensor", **counts}
    refused(lambda: make("nce", group=group, **counts), "nce with a group: allowed: full_softmax")
    refused(lambda: make("full_softmax", **named), "group is a str: allowed: a ProcessGroup")
    rank = distributed.get_rank(group)
    refused(lambda: make("full_softmax", group=group, seed=rank, **counts), "the layer of rank 1 is not that of rank 0")
    few = {"counts": [1] * (distributed.get_world_size(group) - 1), "dim": 2}
    if len(few["counts"]) > 1:
        refused(lambda: make("full_softmax", group=group, **few), "words over 4 ranks: allowed: at least one word")
    layer = make("full_softmax", group=group, dtype="float64", **counts)
    assert isinstance(layer, ParallelLayer)
    refused(lambda: layer(hidden, targets + VOCAB), "allowed: word ids from 0 to 60")
    refused(lambda: layer.resize(COUNTS), "resize of full_softmax over")
    refused(lambda: layer.load_whole_state_dict({"weight": torch.zeros(3)}), "state of the whole layer")


def refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


def main(rank: int, ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/rendezvous"
    distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    failures = {}
    for name, function in checks.items():
        try:
            function(distributed.group.WORLD)
        except BaseException:
            failures[name] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(failures))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
