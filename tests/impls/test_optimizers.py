"""Each framework's optimizers in bfloat16 against their float64 definition, on gradients that are given."""

from dataclasses import replace

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.agreement import compare
from vocabench.harness.measure.tolerances import tolerance
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.on_numpy.optimizers import Updates
from vocabench.impls.optimizers import NAMES, Optimizer

pytestmark = pytest.mark.many_cells

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
WORDS, STEPS = 9, 6


def in_sixteen_bits(rng, *shape):
    """Numbers that bfloat16 holds as they are."""
    return rng.integers(-127, 128, shape) / 256


def trained_by_torch(settings, start, rows_SU, grads):
    import torch

    from vocabench.impls.on_torch.device import to_numpy
    from vocabench.impls.on_torch.training import optimizers
    from vocabench.impls.on_torch.training.row_sparse import _SLOTS, RowSparse

    params = {name: torch.nn.Parameter(torch.tensor(value, dtype=torch.bfloat16)) for name, value in start.items()}
    stepper = optimizers.build(settings, params.values())
    for rows_U, arrays in zip(rows_SU, grads, strict=True):
        given = {name: torch.tensor(value, dtype=torch.bfloat16) for name, value in arrays.items()}
        if isinstance(stepper, RowSparse):
            table, listed = given["table"], torch.tensor(rows_U)
            stepper.make_up(params["table"], listed)
            given["table"] = torch.sparse_coo_tensor(listed[None], table[listed], table.shape, check_invariants=True)
        for name, grad in given.items():
            params[name].grad = grad
        optimizers.finish_gradients(settings, params.values())
        stepper.step()
    if isinstance(stepper, RowSparse):
        stepper.catch_up()
    slots = [{name: stepper.state[param][slot] for name, param in params.items()} for slot in _SLOTS[settings.name]]
    return [{name: to_numpy(value) for name, value in each.items()} for each in (params, *slots)]


def trained_by_tensorflow(settings, start, rows_SU, grads):
    from vocabench.impls.on_tensorflow.device import tf, to_numpy
    from vocabench.impls.on_tensorflow.training import optimizers

    variables = {name: tf.Variable(tf.constant(value, tf.bfloat16)) for name, value in start.items()}
    updates = optimizers.Updates(settings, variables, ["table"] if settings.row_sparse else [])
    for rows_U, grad in zip(rows_SU, grads, strict=True):
        given = {name: tf.constant(value, tf.bfloat16) for name, value in grad.items()}
        rows = {"table": tf.constant(rows_U)} if settings.row_sparse else {}
        updates.read(rows)
        updates.apply(given | {name: tf.gather(given[name], listed) for name, listed in rows.items()}, rows=rows)
    updates.catch_up()
    held = (updates.variables, *updates.slots)
    return [{name: to_numpy(tf.convert_to_tensor(value)) for name, value in each.items()} for each in held]


def trained_by_jax(settings, start, rows_SU, grads):
    import jax
    import jax.numpy as jnp

    from vocabench.impls.on_jax.training import optimizers

    @jax.jit
    def step(params, state, rows, grads):
        params, state = optimizers.make_up(settings, params, state, rows)
        return optimizers.update(settings, params, grads, state, rows=rows)

    params = {name: jnp.asarray(value, jnp.bfloat16) for name, value in start.items()}
    state = optimizers.init(settings, params, ["table"] if settings.row_sparse else [])
    for rows_U, grad in zip(rows_SU, grads, strict=True):
        rows = {"table": jnp.asarray(rows_U, jnp.int32)} if settings.row_sparse else {}
        given = {name: jnp.asarray(value, jnp.bfloat16) for name, value in grad.items()}
        params, state = step(params, state, rows, given | {name: given[name][listed] for name, listed in rows.items()})
    params, state = optimizers.make_up(settings, params, state)
    assert all(value.dtype == jnp.bfloat16 for each in (params, *state.slots) for value in each.values())
    return [{name: np.asarray(value, np.float32) for name, value in each.items()} for each in (params, *state.slots)]


TRAINED = {"torch": trained_by_torch, "tensorflow": trained_by_tensorflow, "jax": trained_by_jax}


@pytest.mark.parametrize("row_sparse", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_parameters_and_slots_in_bfloat16_are_the_definitions(framework, name, row_sparse):
    """Within the rounding of what is held: a row that no gradient reaches included, which moves by its weight decay."""
    settings = Optimizer(name=name, learning_rate=0.02, epsilon=1e-8, weight_decay=0.01, clip_norm=2.0)
    rng = np.random.default_rng(3)
    start = {"table": in_sixteen_bits(rng, WORDS, 16), "bias": in_sixteen_bits(rng, 40)}
    rows_SU = np.array([rng.permutation(WORDS - 1)[:4] for _ in range(STEPS)])  # the last is in none
    grads = [{name: in_sixteen_bits(rng, *value.shape) for name, value in start.items()} for _ in range(STEPS)]
    for rows_U, grad in zip(rows_SU, grads, strict=True):
        grad["table"][np.setdiff1d(np.arange(WORDS), rows_U)] = 0

    expected = {name: value.copy() for name, value in start.items()}
    updates = Updates(settings, expected)
    for grad in grads:
        updates.apply(expected, grad)
    held = TRAINED[framework](replace(settings, row_sparse=row_sparse), start, rows_SU, grads)

    for number, (ours, theirs) in enumerate(zip(held, (expected, *updates.slots), strict=True)):
        for key, value in theirs.items():
            found = compare(key, ours[key], value, tolerance("optimizer_state", "bfloat16", STEPS), f"array {number}")
            assert found.agrees, str(found)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_gradient_in_bfloat16_is_clipped_by_its_norm_in_float32(framework):
    """So that what is left of it is rounded once."""
    settings = Optimizer(name="sgd", learning_rate=1.0, weight_decay=0.0, clip_norm=0.25)
    rng = np.random.default_rng(5)
    start = {"table": np.zeros((3, 16)), "bias": np.zeros(70)}
    grad = {name: in_sixteen_bits(rng, *value.shape) for name, value in start.items()}
    norm = np.sqrt(sum((value**2).sum() for value in grad.values()))
    (ours,) = TRAINED[framework](settings, start, [None], [grad])
    for name, value in grad.items():
        expected = -value * settings.clip_norm / norm
        gap = 2.0 ** (np.frexp(expected)[1] - 8)  # between neighbours in bfloat16
        assert (np.abs(ours[name] - expected) <= 0.501 * gap).all()


def rated_by_torch(settings):
    import torch

    from vocabench.impls.on_torch.training import optimizers

    param = torch.nn.Parameter(torch.zeros(3, 2))
    optimizers.descend(param.sum(), settings, optimizers.build(settings, [param]), [param], rate=0.1)


def rated_by_tensorflow(settings):
    from vocabench.impls.on_tensorflow.adapter import tf
    from vocabench.impls.on_tensorflow.training import optimizers

    updates = optimizers.Updates(settings, {"table": tf.Variable(tf.zeros([3, 2]))}, ["table"])
    updates.apply({"table": tf.ones([1, 2])}, tf.constant(0.1), {"table": tf.constant([1])})


def rated_by_jax(settings):
    import jax.numpy as jnp

    from vocabench.impls.on_jax.training import optimizers

    params = {"table": jnp.zeros((3, 2))}
    state = optimizers.init(settings, params, ["table"])
    optimizers.update(settings, params, {"table": jnp.ones((1, 2))}, state, 0.1, {"table": jnp.array([1])})


RATED = {"torch": rated_by_torch, "tensorflow": rated_by_tensorflow, "jax": rated_by_jax}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_rate_of_the_steps_own_is_refused_with_rows(framework):
    with pytest.raises(BadInput, match="own learning rate with row-sparse updates: allowed: row_sparse=False, or no"):
        RATED[framework](Optimizer(row_sparse=True))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_can_be_that_of_the_lstm_alone(framework, name):
    """The frameworks do what the definition does, in which other parameters are those of training without decay."""
    counts_V = zipf_counts(23)
    spec = layers.spec("full_softmax", counts=counts_V, dim=6, dtype="float64")
    text_BT = np.random.default_rng(0).integers(0, 23, (3, 16)).astype(np.int32)

    def trained(framework, decay, decayed, steps):
        optimizer = Optimizer(name=name, learning_rate=0.05, weight_decay=decay, decayed=decayed, epsilon=1e-8)
        config = LanguageModelConfig(embedding=5, hidden=6, optimizer=optimizer)
        model = layers.create_network(framework, spec, config)
        for step in range(steps):
            window = (text_BT[:, 5 * step : 5 * step + 5], text_BT[:, 5 * step + 1 : 5 * step + 6])
            model.step(*window, carry=step > 0)
        return model.parameters()

    ours, oracle = (trained(each, 0.5, ("lstm",), 3) for each in (framework, "numpy"))
    for key, value in oracle.items():
        np.testing.assert_allclose(ours[key], value, rtol=0, atol=1e-9, err_msg=key)
    one, plain = trained(framework, 0.5, ("lstm",), 1), trained(framework, 0.0, (), 1)
    differs = {key for key, value in plain.items() if not np.allclose(one[key], value, rtol=0, atol=1e-12)}
    assert differs
    assert all(key.startswith("lstm_") for key in differs)


def test_decay_of_some_parameters_needs_dense_steps():
    with pytest.raises(BadInput, match="row_sparse=True: allowed: decay of all parameters"):
        Optimizer(decayed=("lstm",), row_sparse=True)
