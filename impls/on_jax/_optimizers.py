"""The optimizers as pure functions over trees. `impls/on_numpy/_optimizers.py` has the same formulas in NumPy."""

from __future__ import annotations

import jax.numpy as jnp

from impls.on_jax._layer import Array, Tree
from impls.optimizers import Optimizer

State = tuple[Array, tuple[Tree, ...]]  # steps taken, and the slots: dictionaries like the parameters


def init(settings: Optimizer, params: Tree) -> State:
    settings.check_dense("jax")
    start = settings.initial_accumulator if settings.name == "adagrad" else 0.0
    slots = tuple({name: jnp.full_like(value, start) for name, value in params.items()} for _ in range(settings.slots))
    return jnp.zeros((), jnp.int32), slots


def update(
    settings: Optimizer, params: Tree, grads: Tree, state: State, rate: Array | float | None = None
) -> tuple[Tree, State]:
    """One step: clip by the global norm, add weight decay, update.

    `rate` is what a schedule gives for this step; the settings' learning rate where left out.
    """
    rate = settings.learning_rate if rate is None else rate
    steps, slots = state
    steps = steps + 1
    if settings.clip_norm:
        norm = jnp.sqrt(sum(jnp.vdot(grad, grad) for grad in grads.values()))
        scale = jnp.minimum(1.0, settings.clip_norm / (norm + 1e-6))
        grads = {name: grad * scale.astype(grad.dtype) for name, grad in grads.items()}
    new_params: Tree = {}
    new_slots: tuple[Tree, ...] = tuple({} for _ in slots)
    for name, param in params.items():
        grad = grads[name] + settings.weight_decay * param
        if settings.name == "adagrad":
            squares = slots[0][name] + grad * grad
            new_slots[0][name] = squares
            change = grad / (jnp.sqrt(squares) + settings.epsilon)
        elif settings.name == "adam":
            first = settings.beta1 * slots[0][name] + (1 - settings.beta1) * grad
            second = settings.beta2 * slots[1][name] + (1 - settings.beta2) * grad * grad
            new_slots[0][name], new_slots[1][name] = first, second
            time = steps.astype(param.dtype)
            first_hat = first / (1 - jnp.asarray(settings.beta1, param.dtype) ** time)
            second_hat = second / (1 - jnp.asarray(settings.beta2, param.dtype) ** time)
            change = first_hat / (jnp.sqrt(second_hat) + settings.epsilon)
        else:
            change = grad
        new_params[name] = param - rate * change
    return new_params, (steps, new_slots)
