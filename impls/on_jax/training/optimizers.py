"""The optimizers as pure functions of trees. `impls/on_numpy/optimizers.py` has the same formulas in NumPy.

If a batch reads few rows of a parameter, a step can update only these rows, with the same result as a step over all
rows: `update` takes the gradient of the listed rows, and `make_up` brings rows up to date before they are read. The
steps that a row missed had a gradient of zero. They change nothing with Adagrad, or with plain SGD without
weight decay. Otherwise they are repeated later, with the arithmetic of the dense step.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.on_jax.ops import sparse_rows
from vocabench.impls.on_jax.ops.arrays import Array, Tree, wide
from vocabench.impls.optimizers import Optimizer, check_rate


class State(NamedTuple):
    """The state of an optimizer.

    Attributes:
        steps: Number of steps taken.
        slots: Dictionaries with the names and shapes of the parameters.
        seen: For each parameter whose rows can miss steps, the last step (V,) that each row has taken part in.
    """

    steps: Array
    slots: tuple[Tree, ...]
    seen: Tree


def init(settings: Optimizer, params: Tree, few_rows: Iterable[str] = ()) -> State:
    """Return the state before the first step. `few_rows` names the parameters that are updated by rows."""
    return _init(settings, params, tuple(few_rows))


@partial(jax.jit, static_argnums=(0, 2))  # otherwise each shape of a parameter would be a program
def _init(settings: Optimizer, params: Tree, few_rows: tuple[str, ...]) -> State:
    start = settings.initial_accumulator if settings.name == "adagrad" else 0.0
    slots = tuple({name: jnp.full_like(value, start) for name, value in params.items()} for _ in range(settings.slots))
    missing = () if settings.idle_without_gradient else few_rows
    return State(jnp.zeros((), jnp.int32), slots, {name: jnp.zeros(len(params[name]), jnp.int32) for name in missing})


def update(
    settings: Optimizer,
    params: Tree,
    grads: Tree,
    state: State,
    rate: Array | float | None = None,
    rows: Tree | None = None,
) -> tuple[Tree, State]:
    """Take one step: clip by the global norm, add weight decay, update.

    Args:
        settings: The optimizer's name and hyperparameters.
        params: Parameters before the step.
        grads: Gradient of each parameter, or of its listed rows (U, ...).
        state: State before the step.
        rate: Learning rate of this step, from a schedule; the settings' learning rate if None.
        rows: Lists (U,) of rows, as in `sparse_rows`, of the parameters that are updated by rows.

    Returns:
        The parameters and the state after the step.

    Raises:
        BadInput: `rate` is given together with `rows`.
    """
    check_rate(rate, by_rows=bool(rows))
    rows, steps = rows or {}, state.steps + 1
    scale = _clipping(settings, grads)
    new_params: Tree = {}
    new_slots: tuple[Tree, ...] = tuple({} for _ in state.slots)
    for name, param in params.items():
        held = param, *(slot[name] for slot in state.slots)
        rule = partial(_rule, settings, settings.decay_of(name), steps, rate, scale)
        held = sparse_rows.change(rows[name], held, rule, grads[name]) if name in rows else rule(held, grads[name])
        new_params[name] = held[0]
        for slot, value in zip(new_slots, held[1:], strict=True):
            slot[name] = value
    seen = {name: seen_V.at[rows[name]].set(steps, mode="drop") for name, seen_V in state.seen.items()}
    return new_params, State(steps, new_slots, seen)


def make_up(settings: Optimizer, params: Tree, state: State, rows: Tree | None = None) -> tuple[Tree, State]:
    """Bring rows up to date with the last step: the listed ones, before they are read, or all."""
    params, slots, seen = dict(params), tuple(dict(slot) for slot in state.slots), dict(state.seen)

    def late(held: sparse_rows.Arrays) -> Array:
        return (held[-1] < state.steps).any()

    def missed_step(held: sparse_rows.Arrays) -> sparse_rows.Arrays:
        *values, seen_B = held
        late_B, step = seen_B < state.steps, _column(seen_B + 1, values[0])
        rule = partial(_rule, settings, settings.weight_decay, step, None, None)
        new = rule(tuple(values), jnp.zeros_like(values[0]))
        pairs = zip(values, new, strict=True)
        return *(jnp.where(_column(late_B, old), value, old) for old, value in pairs), seen_B + late_B

    def all_missed(held: sparse_rows.Arrays) -> sparse_rows.Arrays:
        return lax.while_loop(late, missed_step, held)

    for name, seen_V in seen.items():
        rows_U = jnp.arange(len(seen_V), dtype=jnp.int32) if rows is None else rows[name]
        # Rows that have missed equally many steps are visited together. Unused places stay in front.
        rows_U = rows_U[jnp.argsort(seen_V.at[rows_U].get(mode="fill", fill_value=-1))]
        held = params[name], *(slot[name] for slot in slots), seen_V
        params[name], *values, seen[name] = sparse_rows.change(rows_U, held, all_missed)
        for slot, value in zip(slots, values, strict=True):
            slot[name] = value
    return params, State(state.steps, slots, seen)


def _clipping(settings: Optimizer, grads: Tree) -> Array | None:
    """Return the factor for all gradients that keeps their global norm below `clip_norm`."""
    if not settings.clip_norm:
        return None
    norm = jnp.sqrt(sum(jnp.vdot(grad, grad, preferred_element_type=wide(grad.dtype)) for grad in grads.values()))
    return jnp.minimum(1.0, settings.clip_norm / (norm + 1e-6))


def _rule(
    settings: Optimizer,
    decay: float,
    step: Array,
    rate: Array | float | None,
    scale: Array | None,
    held: sparse_rows.Arrays,
    raw: Array,
) -> sparse_rows.Arrays:
    """Return a parameter and its slots after a step. The number of the step can differ between rows (B, 1).

    The step is computed in at least float32 and then rounded: in bfloat16 Adam's beta2 would be 1.
    """
    kind = wide(held[0].dtype)
    param, *slots = (array.astype(kind) for array in held)

    def finished(raw: Array) -> Array:
        grad = raw.astype(kind)
        return (grad if scale is None else grad * scale.astype(kind)) + decay * param

    # On a CPU XLA computes one result in each pass over memory, and stores common subexpressions. The finished gradient
    # is as large as the parameter, so the barrier makes XLA compute it twice instead of storing it.
    grad = finished(raw)
    again = finished(lax.optimization_barrier(raw)) if jax.default_backend() == "cpu" else grad
    if settings.name == "adagrad":
        slots = [slots[0] + again * again]
        change = grad / (jnp.sqrt(slots[0]) + settings.epsilon)
    elif settings.name == "adam":
        first = settings.beta1 * slots[0] + (1 - settings.beta1) * grad
        second = settings.beta2 * slots[1] + (1 - settings.beta2) * again * again
        slots, time = [first, second], step.astype(kind)
        first_hat = first / (1 - jnp.asarray(settings.beta1, kind) ** time)
        second_hat = second / (1 - jnp.asarray(settings.beta2, kind) ** time)
        change = first_hat / (jnp.sqrt(second_hat) + settings.epsilon)
    else:
        change = grad
    new = param - (settings.learning_rate if rate is None else rate) * change, *slots
    return tuple(value.astype(old.dtype) for value, old in zip(new, held, strict=True))


def _column(row_B: Array, like: Array) -> Array:
    """Return `row_B` with the number of dimensions of `like`."""
    return row_B.reshape(-1, *[1] * (like.ndim - 1))
