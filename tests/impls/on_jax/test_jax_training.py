"""SOHSM in training: statistics on the device, resumed runs, optimizers and batches that are split over devices."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp

import vocabench.jax
from vocabench.harness import layers
from vocabench.impls.errors import BadInput
from vocabench.impls.on_jax import inputs
from vocabench.impls.on_jax.two_level import statistics
from vocabench.impls.resizing import carried_over
from vocabench.impls.structures.statistics import SMOOTHINGS, StatisticsWeights

pytestmark = pytest.mark.many_cells

VOCAB, DIM = 60, 8
COUNTS = np.arange(VOCAB, 0, -1) ** 2
OPTIMIZER = optax.adam(0.05)


@cache
def layer_of(method="sohsm", **options):
    return vocabench.jax.layer(method, counts=COUNTS, dim=DIM, **options)


def batch_of(number, tokens=40):
    rng = np.random.default_rng(number)
    hidden = rng.standard_normal((tokens, DIM)).astype(np.float32)
    return jnp.asarray(hidden), jnp.asarray(rng.integers(0, VOCAB, tokens), jnp.int32)


@partial(jax.jit, static_argnums=0)
def step(layer, params, structure, opt_state, hidden, targets):
    value_and_grad = jax.value_and_grad(layer.training_loss, has_aux=True)
    (loss, structure), grads = value_and_grad(params, structure, hidden, targets)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return loss, optax.apply_updates(params, updates), structure, opt_state


def train(state, numbers, layer=None):
    """Return the losses and the state after steps of which every third re-organizes."""
    layer, losses = layer or layer_of(), []
    for number in numbers:
        loss, *state = step(layer, *state, *batch_of(number))
        losses.append(float(loss))
        if number % 3 == 2:
            state = layer.reorganize(*state)
    return losses, state


def initial(layer=None):
    params, structure = (layer or layer_of()).init()
    return params, structure, OPTIMIZER.init(params)


def expected_statistics(batches, smoothing, counts_V, clusters):
    """Return the statistics and counts by their definition in NumPy."""
    weights, expected_VC = StatisticsWeights(counts_V, smoothing), np.zeros((len(counts_V), clusters))
    for log_NC, targets_N in batches:
        batch = weights.batch(targets_N)
        for index, word in enumerate(batch.words[batch.words < len(counts_V)]):
            sum_C = log_NC[targets_N == word].sum(axis=0) / np.log(2)
            expected_VC[word] = batch.keep[index] * expected_VC[word] + batch.share[index] * sum_C
    return expected_VC, weights.seen_V


@pytest.mark.many_cells
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_statistics_on_the_device_follow_their_definition(smoothing):
    counts_V, rng = np.array([1000, 1, 7, 3, 20]), np.random.default_rng(0)
    batches = [(np.log(rng.dirichlet(np.ones(3), tokens)), rng.integers(-1, 6, tokens)) for tokens in (9, 1, 4)]
    structure = statistics.blank(layers.spec("sohsm", counts=counts_V, dim=2), 3)
    for log_NC, targets_N in batches:
        structure = statistics.updated(structure, jnp.asarray(log_NC), jnp.asarray(targets_N), smoothing)
    expected_VC, seen_V = expected_statistics(batches, smoothing, counts_V, 3)
    assert structure["seen"].tolist() == seen_V.tolist()
    np.testing.assert_allclose(structure["statistics"], expected_VC, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"reduction": "sum", "label_smoothing": 0.1}])
def test_padding_changes_neither_loss_nor_statistics(options):
    layer = layer_of()
    params, structure = layer.init()
    hidden, targets = batch_of(0, 12)
    padded = hidden.at[3:6].set(jnp.nan), targets.at[3:6].set(-7)
    real = jnp.delete(hidden, slice(3, 6), axis=0), jnp.delete(targets, slice(3, 6))
    loss_of = partial(layer.training_loss, ignore_index=-7, **options)
    (loss, after), grads = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(params, structure, *padded)
    expected, observed = layer.training_loss(params, structure, *real, **options)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    assert float(loss) == pytest.approx(float(layer.loss(params, structure, *real, **options)), rel=1e-6)
    assert all(bool(jnp.isfinite(value).all()) for value in grads.values())
    for name, value in observed.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    batch = np.asarray(layer.cluster_log_probs(params, real[0])), np.asarray(real[1])
    expected_VC, seen_V = expected_statistics([batch], "running", COUNTS, layer.limits.clusters)
    assert after["seen"].tolist() == seen_V.tolist()
    np.testing.assert_allclose(after["statistics"], expected_VC, rtol=1e-5, atol=1e-5)


def test_a_resumed_layer_reorganizes_as_the_unbroken_one():
    losses, whole = train(initial(), range(8))
    first, state = train(initial(), range(4))
    resumed, state = train(jax.tree.map(np.array, state), range(4, 8))
    assert first + resumed == losses
    jax.tree.map(np.testing.assert_array_equal, tuple(state), tuple(whole))
    assert int(whole[1]["reorganizations"]) == 2
    assert (whole[1]["cluster"] != initial()[1]["cluster"]).any()


@pytest.mark.lengthy
def test_clusters_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    import vocabench.torch

    other: Any = vocabench.torch.layer("sohsm", counts=COUNTS, dim=DIM)
    layer = layer_of()
    params, structure = layer.init()
    for number in range(3):
        hidden, targets = batch_of(number)
        _, structure = layer.training_loss(params, structure, hidden, targets)
        other.training_loss(torch.from_numpy(np.array(hidden)), torch.from_numpy(np.array(targets)))
    np.testing.assert_allclose(structure["statistics"], other.statistics.numpy(), rtol=1e-4, atol=1e-5)
    structure = layer.reorganize(params, structure, seed=9)[1]
    np.testing.assert_array_equal(structure["cluster"], other.reorganize(seed=9)[1])


def test_the_optimizers_state_moves_with_its_words():
    layer = layer_of()
    _, state = train(initial(), range(2))
    nested = {"model": (state[2], {"other": jnp.zeros(3)})}
    after = layer.reorganize(state[0], state[1], nested)
    assert (after[1]["cluster"] != state[1]["cluster"]).any()
    adam = state[2][0], after[2]["model"][0][0]
    for before, moved in ((state[0], after[0]), (adam[0].mu, adam[1].mu), (adam[0].nu, adam[1].nu)):
        expected = layer.to_canonical(state[1], before)
        jax.tree.map(np.testing.assert_array_equal, layer.to_canonical(after[1], moved), expected)
        assert (moved["word_weight"] != before["word_weight"]).any()


def test_layers_without_clusters_keep_their_structure_and_refuse_to_reorganize():
    for layer in (layer_of("huffman"), layer_of(interval=0)):
        params, structure = layer.init()
        loss, after = layer.training_loss(params, structure, *batch_of(0))
        assert all(after[name] is value for name, value in structure.items())
        assert float(loss) == float(layer.loss(params, structure, *batch_of(0)))
        with pytest.raises(BadInput, match=r"reorganize of .*: allowed: layers of sohsm with an interval"):
            layer.reorganize(params, structure)


def test_a_structure_without_statistics_cannot_observe():
    layer = layer_of()
    with pytest.raises(BadInput, match="structure has no 'statistics'"):
        layer.training_loss(layer.init()[0], layer.placement(), *batch_of(0))


@pytest.mark.many_cells
@pytest.mark.parametrize("vocab", [VOCAB - 9, VOCAB + 9])
@pytest.mark.parametrize("method", ["sohsm", "full_softmax", "huffman", "adaptive_softmax"])
def test_a_resized_layer_keeps_what_its_words_have_learned(method, vocab):
    layer = layer_of(method)
    state, counts = initial(layer), np.maximum(np.arange(vocab, 0, -1) ** 2, 1)
    params, structure = (train(state, range(3))[1] if layer.reorganizes else state)[:2]
    made, new_params, new_structure = layer.resize(params, structure, counts)
    before = layer.present_spec(structure)
    canonical = {name: np.asarray(value) for name, value in layer.to_canonical(structure, params).items()}
    carried = carried_over(before, made.spec, canonical)
    for name, value in made.to_canonical(new_structure, new_params).items():
        np.testing.assert_array_equal(value, carried[name].astype(np.float32), err_msg=name)
    oracle = layers.from_spec("numpy", replace(made.spec, dtype="float64", form=""))
    oracle.load(carried)
    hidden = batch_of(5)[0]
    log_probs = made.log_probs(new_params, new_structure, hidden)
    np.testing.assert_allclose(log_probs, oracle.log_probs(np.asarray(hidden)), rtol=1e-4, atol=1e-4)
    if method == "full_softmax":
        kept = min(vocab, VOCAB)
        shift = np.asarray(log_probs)[:, :kept] - np.asarray(layer.log_probs(params, structure, hidden))[:, :kept]
        np.testing.assert_allclose(shift, shift[:, :1] * np.ones(kept), atol=1e-5)
    assert made.reorganizes == layer.reorganizes


@pytest.mark.parametrize("method", ["sohsm", "class_hsm", "full_softmax"])
def test_the_words_of_a_resized_tied_layer_are_those_of_the_embedding(method):
    layer = layer_of(method)
    params, structure = initial(layer)[:2]
    embedding_VD = np.random.default_rng(3).standard_normal((VOCAB, layer.spec.dim)).astype(np.float32)
    tied = layer.tie(params, structure, embedding_VD)
    made, *resized = layer.resize(tied, structure, np.arange(VOCAB + 9, 0, -1))
    words_VD = made.word_vectors(*resized)
    assert words_VD.shape == (VOCAB + 9, layer.spec.dim)
    np.testing.assert_array_equal(words_VD[:VOCAB], embedding_VD)


_DEVICES = """
from functools import partial

import jax
import numpy as np
from jax.sharding import PartitionSpec

from tests.impls.on_jax import test_jax_training as test

mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
layer = test.layer_of()
params, structure = layer.init()
rows, whole = PartitionSpec("data"), PartitionSpec()

def own(params, structure, hidden, targets):
    loss, structure = layer.training_loss(params, structure, hidden, targets, reduction="sum", axis_name="data")
    return jax.lax.psum(loss, "data"), structure

split = jax.jit(jax.shard_map(own, mesh=mesh, in_specs=(whole, whole, rows, rows), out_specs=(whole, whole)))
sharded = jax.NamedSharding(mesh, rows)
automatic = jax.jit(lambda *arguments: layer.training_loss(*arguments, reduction="sum"))
for number in range(2):
    batch = test.batch_of(number)
    alone = layer.training_loss(params, structure, *batch, reduction="sum")
    for made in (split(params, structure, *batch), automatic(params, structure, *jax.device_put(batch, sharded))):
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5), made, alone)
    structure = alone[1]

def total(layer, params, structure, hidden, targets):
    return jax.lax.psum(layer.loss(params, structure, hidden, targets, reduction="sum"), "data")

for method in ("sohsm", "huffman"):  # the gradients of parameters are summed over the devices
    layer = test.layer_of(method)
    split = jax.shard_map(partial(total, layer), mesh=mesh, in_specs=(whole, whole, rows, rows), out_specs=whole)
    arguments = *layer.init(), *test.batch_of(5)
    made, expected = jax.jit(jax.grad(split))(*arguments), jax.grad(layer.loss)(*arguments, reduction="sum")
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), made, expected)
print("the same")
"""


@pytest.mark.lengthy
def test_a_batch_that_is_split_over_devices_has_the_statistics_of_the_whole():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", _DEVICES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "the same\n", done.stderr


def test_factors_of_an_optimizers_state_are_refused():
    layer = layer_of()
    params, structure = layer.init()
    structure = layer.training_loss(params, structure, *batch_of(0))[1]
    state = optax.adafactor(0.1, min_dim_size_to_factor=2).init(params)
    with pytest.raises(BadInput, match=r"^reorganize: the optimizer's state of word_weight has shape .*: allowed: "):
        layer.reorganize(params, structure, state)


def test_an_invalid_ignore_index_is_refused_before_targets_are_read(monkeypatch):
    layer = layer_of()
    params, structure = layer.init()
    with pytest.raises(BadInput, match="ignore_index='x': allowed: a whole number"):
        layer.training_loss(params, structure, *batch_of(0), ignore_index="x")
    reads = []
    read = inputs.read_targets
    monkeypatch.setattr(inputs, "read_targets", lambda *given: reads.append(given) or read(*given))
    layer.training_loss(params, structure, *batch_of(0))
    assert len(reads) == 1
