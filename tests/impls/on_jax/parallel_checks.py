"""Checks of layers whose words are split over a mesh of four devices, in a process that has them.

XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.impls.on_jax.parallel_checks FILE
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import vocabench
import vocabench.jax
from vocabench.harness import layers
from vocabench.impls.errors import BadInput
from vocabench.impls.on_jax import adapter
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.pallas.support import KERNELS
from vocabench.impls.on_jax.parallel import native

VOCAB, DIM, TOKENS = 61, 16, 24  # 61 words divide over no number of devices
COUNTS = np.round(2000 / np.arange(1, VOCAB + 1)).astype(int)
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "full_softmax": [{}, {"bias": False}],
    "inplace_softmax": [{}],
    "fused_softmax": [{}],
    "sohsm": [{"interval": 0, "bias": True}, {"interval": 0, "projection": "none"}],
    "huffman": [{}],
}
SOFTMAXES = ("full_softmax", "inplace_softmax", "fused_softmax")
KINDS = ("full_softmax", "sohsm", "huffman")  # one method for each way to split words
CLOSE: dict[str, dict[str, Any]] = {
    "float32": {"atol": 2e-5, "rtol": 1e-4},
    "bfloat16": {"atol": 2e-2, "rtol": 2e-2},
}

checks: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    checks[function.__name__] = function
    return function


def mesh(parts: int, axis: str = "vocab") -> Mesh:
    return Mesh(np.array(jax.devices()[:parts]), (axis,))


def batch(dtype: str = "float32") -> tuple[jax.Array, np.ndarray]:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, VOCAB, TOKENS)
    targets[:4] = 0, VOCAB - 1, VOCAB // 2, 0
    return jnp.asarray(rng.standard_normal((TOKENS, DIM)), dtype), targets


def pairs(parts: int, methods: Sequence[str] = (), options: int = 1) -> list[tuple[OutputLayer, OutputLayer]]:
    """Return each layer that can be split, whole and split, with the first of its options. Each is compiled anew."""
    made = []
    for method in methods or native.methods():
        for chosen in OPTIONS[method][:options]:
            spec = layers.spec(method, counts=COUNTS, dim=DIM, seed=3, **chosen)
            made.append((adapter.native(spec), native.parallel(spec, mesh(parts))))
    return made


def losses_and_gradients(
    layer: OutputLayer, hidden: jax.Array, targets: np.ndarray, **options: Any
) -> dict[str, np.ndarray]:
    """Return loss and gradients with respect to hidden vectors and canonical parameters, of a compiled function."""
    params, structure = layer.init()

    def total(params: Any, hidden: Any) -> Any:
        loss = layer.loss(params, structure, hidden, targets, **options)
        return loss.sum(), loss

    ((_, loss), (dparams, dhidden)) = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(params, hidden)
    return as_numpy({"loss": loss, "hidden": dhidden, **layer.to_canonical(structure, dparams)})


def as_numpy(tree: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, np.float64) for name, value in tree.items()}


def assert_alike(whole: dict[str, np.ndarray], split: dict[str, np.ndarray], dtype: str, what: str) -> None:
    assert whole.keys() == split.keys()
    for name in whole:
        np.testing.assert_allclose(split[name], whole[name], **CLOSE[dtype], err_msg=f"{what}: {name}")


@check
def losses_and_gradients_are_those_of_the_definition() -> None:
    hidden, targets = batch()
    for parts, options in ((2, 1), (4, 2)):
        for _, split in pairs(parts, options=options):
            spec = split.spec
            chosen: dict[str, Any] = dict(spec.options)
            oracle = vocabench.create("numpy", spec.method, counts=spec.counts, dim=DIM, seed=3, **chosen)
            loss, dhidden, grads = oracle.loss_and_grads(np.asarray(hidden), targets)
            expected = as_numpy({"loss": loss, "hidden": dhidden, **grads})
            assert_alike(expected, losses_and_gradients(split, hidden, targets), "float32", repr(split))


@check
def objectives_are_those_of_the_whole_layer() -> None:
    hidden, targets = batch()
    targets[5:8] = -100
    weight = jnp.asarray(np.random.default_rng(1).random(TOKENS), jnp.float32)
    for whole, split in pairs(4, KINDS):
        for options in (
            {"reduction": "none", "label_smoothing": 0.1, "token_weight": weight},
            *(
                ({"z_loss": 0.01, "label_smoothing": 0.1}, {"softcap": 2.0, "z_loss": 0.01, "label_smoothing": 0.1})
                if split.spec.method in SOFTMAXES
                else ()
            ),
        ):
            expected = losses_and_gradients(whole, hidden, targets, **options)
            found = losses_and_gradients(split, hidden, targets, **options)
            assert_alike(expected, found, "float32", f"{split!r} {options}")


@check
def every_precision_and_form_agrees() -> None:
    for dtype in ("float32", "bfloat16"):
        hidden, targets = batch(dtype)
        targets[5:8] = -100
        for method in native.methods():
            spec = layers.spec(method, counts=COUNTS, dim=DIM, dtype=dtype, seed=3, **OPTIONS[method][0])
            expected = losses_and_gradients(adapter.native(spec), hidden, targets)
            forms = [form.id for form in adapter.forms(spec, "cpu")] if dtype == "float32" else [""]
            for form in forms or [""]:
                split = native.parallel(replace(spec, form=form), mesh(4))
                found = losses_and_gradients(split, hidden, targets)
                assert_alike(expected, found, dtype, f"{split!r} {form}")


@check
def kernels_are_lowered_for_gpus() -> None:
    """Pallas' interpreter cannot run inside of `jax.shard_map`, but its Triton backend needs no GPU to lower them."""
    hidden, targets = batch()
    for method, inner in (("sohsm", "_of_clusters"), ("huffman", "_of_tree")):
        ((_, split),) = pairs(4, (method,))
        split.form = getattr(split, inner).form = KERNELS
        params, structure = split.init()
        step = jax.jit(jax.value_and_grad(partial(split.loss, structure=structure, targets=targets)))
        text = step.trace(params, hidden=hidden).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("triton") > 1, repr(split)


@check
def decoding_is_that_of_the_whole_layer() -> None:
    hidden, targets = batch()
    for whole, split in pairs(4, KINDS):
        made, what = (whole.init(), split.init()), repr(split)
        drawn = np.random.default_rng(2).random((TOKENS, whole.spec.draws)).astype(np.float32)

        def both(call: Callable[..., Any], whole: Any = whole, split: Any = split, made: Any = made) -> Any:
            compiled = [jax.jit(partial(call, layer)) for layer in (whole, split)]
            return [jax.tree.map(np.asarray, f(*given, hidden)) for f, given in zip(compiled, made, strict=True)]

        for k in (5, VOCAB):
            (values, ids), (own_values, own_ids) = both(lambda layer, *given, k=k: layer.topk(*given, k))
            np.testing.assert_array_equal(ids, own_ids, what)
            np.testing.assert_allclose(own_values, values, **CLOSE["float32"])
        for options in ({}, {"top_k": 7, "temperature": 2.0}, {"top_p": 0.6}):
            expected, found = both(lambda layer, *given, o=options, drawn=drawn: layer.sample(*given, drawn, **o))
            np.testing.assert_array_equal(expected, found, f"{what} {options}")
        calls = [
            lambda layer, *given: layer.log_probs(*given),
            lambda layer, *given: layer.target_log_probs(*given, targets),
            lambda layer, *given: layer.entropy(*given),
        ]
        if whole.spec.method in SOFTMAXES:
            calls += [
                lambda layer, *given: layer.topk(*given, 5, softcap=1.5)[0],
                lambda layer, *given: layer.entropy(*given, softcap=1.5),
                lambda layer, *given, drawn=drawn: layer.sample(*given, drawn, softcap=1.5),
            ]
        for call in calls:
            expected, found = both(call)
            np.testing.assert_allclose(found, expected, **CLOSE["float32"], err_msg=what)


@check
def no_logits_cross_the_wire() -> None:
    """In the compiled training step, what devices exchange has the size of the tokens or of the hidden vectors."""
    hidden, targets = batch()
    for _, split in pairs(4, (*KINDS, "fused_softmax")):
        params, structure = split.init()
        step = jax.jit(jax.value_and_grad(lambda p, h, s=split, st=structure: s.loss(p, st, h, targets), (0, 1)))
        text = step.lower(params, hidden).compile().as_text()
        assert text is not None
        exchanges = [line for line in text.splitlines() if " all-reduce(" in line or " all-gather(" in line]
        assert exchanges, repr(split)
        assert not any("all-gather" in line or f",{VOCAB}" in line or ",64]" in line for line in exchanges), exchanges


@check
def each_device_holds_its_part_only() -> None:
    for _, split in pairs(4):
        params, _ = split.init()
        for name, value in params.items():
            if "projection" not in name and name != "shared_weight":
                assert value.addressable_shards[0].data.shape[0] == value.shape[0] // 4, (repr(split), name)


@check
def a_large_tree_is_that_of_the_whole_layer() -> None:
    """It has nodes that are neither shared nor among those of a device that a dense product scores."""
    counts = np.round(1e6 / np.arange(1, 3001)).astype(int)
    hidden, targets = batch()
    targets = np.where(np.arange(TOKENS) % 2, 3000 - 50 * np.arange(1, TOKENS + 1), targets)
    spec = layers.spec("huffman", counts=counts, dim=DIM, seed=3)
    whole = adapter.native(spec)
    expected = losses_and_gradients(whole, hidden, targets, label_smoothing=0.1)
    for form in adapter.forms(spec, "cpu")[:2]:
        split = native.parallel(replace(spec, form=form.id), mesh(4))
        found = losses_and_gradients(split, hidden, targets, label_smoothing=0.1)
        assert_alike(expected, found, "float32", f"{split!r} {form.id}")
    params, structure = split.init()
    held = sum(value.addressable_shards[0].data.size for value in params.values())
    assert held < 0.4 * sum(value.size for value in params.values())
    found_ids = jax.jit(partial(split.topk, k=200))(params, structure, hidden)[1]
    np.testing.assert_array_equal(found_ids, jax.jit(partial(whole.topk, k=200))(*whole.init(), hidden)[1])


@check
def training_goes_as_with_the_whole_layer() -> None:
    hidden, targets = batch()
    for whole, split in pairs(4, KINDS):
        losses = []
        for layer in (whole, split):
            params, structure = layer.init()

            @jax.jit
            def step(params: Any, layer: Any = layer, structure: Any = structure) -> Any:
                loss, gradients = jax.value_and_grad(layer.loss)(params, structure, hidden, targets)
                return loss, jax.tree.map(lambda value, gradient: value - gradient, params, gradients)

            for _ in range(10):
                loss, params = step(params)
            losses.append(float(loss))
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4, err_msg=repr(split))
        for name in params.keys() & {"shared_weight", "word_projection"}:
            first, *others = (np.asarray(shard.data) for shard in params[name].addressable_shards)
            assert first.shape == params[name].shape
            assert all(np.array_equal(first, other) for other in others), (repr(split), name)


@check
def log_probabilities_and_entropies_are_differentiable() -> None:
    hidden, _ = batch()
    for whole, split in pairs(4, KINDS):
        found = []
        for layer in (whole, split):
            params, structure = layer.init()

            def total(params: Any, hidden: Any, layer: Any = layer, structure: Any = structure) -> Any:
                chosen = layer.log_probs(params, structure, hidden)[:, ::3]
                return chosen.sum() + layer.entropy(params, structure, hidden).sum()

            dparams, dhidden = jax.jit(jax.grad(total, (0, 1)))(params, hidden)
            found.append(as_numpy({"hidden": dhidden, **layer.to_canonical(structure, dparams)}))
        assert_alike(found[0], found[1], "float32", repr(split))


@check
def losses_run_inside_of_other_transformations() -> None:
    hidden, targets = batch()
    batches, words = jnp.stack([hidden, 2 * hidden, -hidden]), jnp.asarray(targets)
    for whole, split in pairs(4, KINDS):
        params, structure = split.init()

        def loss(hidden: Any, params: Any = params, structure: Any = structure, split: Any = split) -> Any:
            return jax.checkpoint(split.loss)(params, structure, hidden, words)

        expected = [whole.loss(*whole.init(), hidden, targets) for hidden in batches]
        mapped = jax.jit(jax.vmap(loss))(batches)
        np.testing.assert_allclose(mapped, expected, rtol=1e-5, err_msg=repr(split))
        scanned = jax.jit(lambda batches, loss=loss: jax.lax.map(loss, batches))(batches)
        np.testing.assert_allclose(scanned, expected, rtol=1e-5, err_msg=repr(split))


@check
def ties_go_to_the_lower_id() -> None:
    hidden, _ = batch()
    for whole, split in pairs(4, KINDS):
        found = []
        for layer in (whole, split):
            params, structure = layer.init()
            params = jax.tree.map(jnp.zeros_like, params)
            found.append(jax.jit(partial(layer.topk, k=9))(params, structure, hidden))
        np.testing.assert_array_equal(found[1][1], found[0][1], repr(split))
        np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-6, err_msg=repr(split))


@check
def few_numbers_cross_the_wire_in_decoding() -> None:
    """What devices exchange is less than half of the words' log-probabilities."""
    hidden, targets = batch()
    drawn = np.random.default_rng(2).random((TOKENS, VOCAB)).astype(np.float32)
    for _, split in pairs(4, KINDS):
        uniforms = drawn[:, : split.spec.draws]
        calls = [
            lambda layer, *given: layer.topk(*given, 5),
            lambda layer, *given, uniforms=uniforms: layer.sample(*given, uniforms),
            lambda layer, *given: layer.target_log_probs(*given, targets),
        ]
        if split.spec.method == "huffman":
            calls += [
                lambda layer, *given: layer.entropy(*given),
                lambda layer, *given: layer.loss(*given, targets, label_smoothing=0.1),
            ]
        for number, call in enumerate(calls):
            text = jax.jit(partial(call, split)).lower(*split.init(), hidden).compile().as_text()
            exchanges = re.findall(r"= (.*) (?:all-gather|all-reduce|all-to-all|collective-permute)\(", text or "")
            assert exchanges, (repr(split), number)
            for shape in re.findall(r"\[([\d,]*)\]", " ".join(exchanges)):
                size = np.prod([int(length) for length in shape.split(",") if length])
                assert size < TOKENS * VOCAB / 2, (repr(split), number, exchanges)


@check
def tokens_are_split_over_another_axis() -> None:
    devices = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "vocab"))
    hidden, targets = batch()
    for method in KINDS:
        spec = layers.spec(method, counts=COUNTS, dim=DIM, seed=3, **OPTIONS[method][0])
        whole, split = adapter.native(spec), native.parallel(spec, devices, "vocab")
        spread = jax.device_put(hidden, NamedSharding(devices, P("data")))
        expected = losses_and_gradients(whole, hidden, targets)
        assert_alike(expected, losses_and_gradients(split, spread, targets), "float32", repr(split))
        drawn = np.random.default_rng(2).random((TOKENS, spec.draws)).astype(np.float32)
        for call in (
            lambda layer, *given: layer.topk(*given, 5)[1],
            lambda layer, *given, u=drawn: layer.sample(*given, u),
        ):
            ids = jax.jit(partial(call, split))(*split.init(), spread)
            np.testing.assert_array_equal(ids, call(whole, *whole.init(), hidden), repr(split))


@check
def checkpoints_move_between_whole_and_split_layers() -> None:
    hidden, targets = batch()
    for whole, split in pairs(4, KINDS):
        params, structure = split.init()
        canonical = split.to_canonical(structure, params)
        expected = whole.init()
        for name, value in whole.to_canonical(expected[1], expected[0]).items():
            np.testing.assert_array_equal(np.asarray(canonical[name]), np.asarray(value))
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in canonical.items()}
        again = split.from_canonical(structure, arrays)
        loss = jax.jit(split.loss)(again, structure, hidden, targets)
        np.testing.assert_allclose(loss, whole.loss(*expected, hidden, targets), rtol=1e-5)
        same = native.parallel(split.spec, split.split.mesh)
        assert same == split
        assert hash(same) == hash(split)
        assert split != native.parallel(split.spec, mesh(2))


@check
def bad_input_is_refused_in_one_line() -> None:
    hidden, targets = batch()
    make = vocabench.jax.layer
    counts: dict[str, Any] = {"counts": COUNTS, "dim": DIM}
    named: dict[str, Any] = {"mesh": "vocab", **counts}
    grid = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "vocab"))
    refused(lambda: make("nce", mesh=mesh(4), **counts), "nce with a mesh: allowed: full_softmax")
    refused(lambda: make("full_softmax", **named), "mesh is a str: allowed: a jax.sharding.Mesh")
    refused(lambda: make("full_softmax", axis_name="vocab", **counts), "mesh is a NoneType")
    explicit = jax.make_mesh((4,), ("vocab",), axis_types=(jax.sharding.AxisType.Explicit,))
    refused(lambda: make("full_softmax", mesh=explicit, **counts), "mesh has Explicit axes: allowed: Auto ones")
    refused(lambda: make("full_softmax", mesh=grid, **counts), "axis_name is missing for a mesh of axes data, vocab")
    refused(lambda: make("full_softmax", mesh=grid, axis_name="words", **counts), "unknown axis_name 'words'")
    layer = make("full_softmax", mesh=mesh(4), **counts)
    refused(lambda: layer.init(device=jax.devices()[0]), "with a mesh: allowed: None")
    refused(lambda: layer.loss(*layer.init(), hidden, targets + VOCAB), "allowed: word ids from 0 to 60")
    tree = make("huffman", mesh=mesh(4), **counts)
    refused(lambda: tree.beam(*tree.init(), hidden, 5, 5), "beam of huffman over 4 devices: allowed: topk")


def refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


def main(file: Path) -> None:
    failures = {}
    for name, function in checks.items():
        try:
            function()
        except BaseException:
            failures[name] = traceback.format_exc()
        file.write_text(json.dumps(failures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
