"""Arrays of JAX, and operations on them that many layers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from vocabench.impls.errors import BadInput

Array = jax.Array
Tree = dict[str, Array]
# What public calls take: arrays of JAX or NumPy.
Given = jax.Array | np.ndarray
Leaves = Mapping[str, Given]
Values = TypeVar("Values")


def wide(dtype: jnp.dtype) -> jnp.dtype:
    """Return the dtype for sums and exponentials: float32 for half precision, else `dtype` itself."""
    return jnp.promote_types(dtype, jnp.float32)


def is_known(array: Array) -> bool:
    """Return whether an array has a number of rows, and not a symbol for it, as in `jax.export`."""
    return isinstance(array.shape[0], int)


def product(left: Array, right: Array) -> Array:
    """Return `left @ right.T`, multiplied in the dtype of `right`, and summed and returned in at least float32."""
    left = left.astype(right.dtype)
    rows = _half_product(left, right) if wide(right.dtype) != right.dtype else jnp.matmul(left, right.T)
    # XLA would fuse the product of a single row with a following addition into a loop that is up to ten times slower.
    return jax.lax.optimization_barrier(rows) if is_known(left) and left.shape[0] == 1 else rows


def plus_bias(rows_NW: Array, bias_W: Array) -> Array:
    """Return `rows_NW + bias_W`.

    The bias is added as a product with a column of ones, so that its gradient is a product too: XLA takes ten times as
    long to sum the columns of an array on a CPU. In full softmax that was a fifth of a training step.
    """
    ones_N1 = jnp.ones((rows_NW.shape[0], 1), rows_NW.dtype)
    return rows_NW + jnp.matmul(ones_N1, bias_W.astype(rows_NW.dtype)[None], precision=jax.lax.Precision.HIGHEST)


def column_sums(array_NW: Array) -> Array:
    """Return the (W,) sums over rows, as a product: see `plus_bias`."""
    ones_N = jnp.ones(array_NW.shape[0], array_NW.dtype)
    return jnp.matmul(ones_N, array_NW, precision=jax.lax.Precision.HIGHEST)


@jax.custom_vjp
def _half_product(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right.T, preferred_element_type=wide(right.dtype))


def _half_product_forward(left: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
    return _half_product(left, right), (left, right)


def _half_product_backward(factors: tuple[Array, Array], dproduct: Array) -> tuple[Array, Array]:
    """Compute both products in half precision. JAX's own rule would widen a factor, and compute them in float32."""
    left, right = factors
    dproduct = dproduct.astype(right.dtype)
    return jnp.matmul(dproduct, right), jnp.matmul(dproduct.T, left)


_half_product.defvjp(_half_product_forward, _half_product_backward)


def aligned(values: Values) -> Values:
    """Return a pytree whose arrays vary over the same axes of a mesh, inside of `jax.shard_map`.

    The gradient of an array that did not vary is summed over these axes.
    """
    axes = varying_axes(values)
    return jax.tree.map(lambda leaf: _varying(leaf, axes), values) if axes else values


def varying_as(like: Any, start: Any) -> Any:
    """Return a pytree, such as the start of a loop, that varies over the axes of a mesh that `like` varies over."""
    axes = varying_axes(like)
    return jax.tree.map(lambda leaf: _varying(leaf, axes), start) if axes else start


def varying_axes(values: Any) -> frozenset[Any]:
    """Return the axes of a mesh that some array of a pytree varies over, inside of `jax.shard_map`."""
    traced = [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, core.Tracer)]
    return frozenset().union(*(jax.typeof(leaf).mat.varying for leaf in traced))


def _varying(array: Array, axes: frozenset[Any]) -> Array:
    missing = tuple(axes - varying_axes(array))
    return jax.lax.pcast(array, missing, to="varying") if missing else array


def reversed_once(gradients: Values) -> Values:
    """Return gradients from a loop, whose own derivatives in reverse mode are refused; forward mode computes them."""
    if not any(isinstance(leaf, core.Tracer) for leaf in jax.tree.leaves(gradients)):
        return gradients
    return _reversed_once(gradients)


@jax.custom_jvp
def _reversed_once(gradients: Values) -> Values:
    return gradients


@_reversed_once.defjvp
def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return primals[0], jax.custom_derivatives.linear_call(lambda _, linear: linear, _refuse, (), tangents[0])


def _refuse(_: Any, cotangents: Any) -> NoReturn:
    raise BadInput(
        "second derivatives of a loss in reverse mode: allowed: forward mode over reverse mode, "
        "as in jax.jvp(jax.grad(loss), ...)"
    )


def log_softmax(logits_NV: Array) -> Array:
    """Compute the log-softmax. For large arrays XLA on a CPU takes twice as long for `jax.nn.log_softmax`."""
    return logits_NV - jax.nn.logsumexp(logits_NV, axis=1, keepdims=True)


def draw(probabilities_NV: Array, uniforms_N: Array) -> Array:
    """Return (N,) the first column whose cumulative probability exceeds this share of the sum.

    The result is column 0 where no column does, as for probabilities that are NaN.
    """
    cumulative_NV = jnp.cumsum(probabilities_NV, axis=1)
    return jnp.argmax(cumulative_NV > uniforms_N[:, None] * cumulative_NV[:, -1:], axis=1)


def pick(scores_NV: Array, index_N: Array) -> Array:
    """Return (N,) one entry of each row."""
    return jnp.take_along_axis(scores_NV, index_N[:, None], axis=1)[:, 0]


def counts_up_to(sorted_N: Array, values_M: Array) -> Array:
    """Return (M,) how many entries of a sorted array are not above each value, as int32.

    `jnp.searchsorted` cannot be traced in `jax.shard_map` over one of several axes of a mesh (JAX 0.11).
    """
    low_M = jnp.zeros_like(values_M, jnp.int32)
    high_M = jnp.full_like(values_M, len(sorted_N), jnp.int32)
    for _ in range(len(sorted_N).bit_length()):
        middle_M = (low_M + high_M) // 2
        # Where both ends meet, `middle_M` may be past the last entry, and the result stays as it is.
        is_counted_M = (sorted_N[jnp.minimum(middle_M, len(sorted_N) - 1)] <= values_M) & (low_M < high_M)
        low_M = jnp.where(is_counted_M, middle_M + 1, low_M)
        high_M = jnp.where(is_counted_M, high_M, middle_M)
    return low_M
