"""Tensors of TensorFlow, and operations on them that many layers share."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.ops import control_flow_util
from tensorflow.python.saved_model import save_context

from vocabench.impls.errors import BadInput

Tensor = Any  # tf.Tensor, which carries no usable annotations
Tensors = dict[str, Tensor]

# Traces a function into a graph, without AutoGraph. AutoGraph rewrites the source of everything that is called, to
# support Python's control flow over tensors. It is not used here, and takes most of the time of a trace.
traced = partial(tf.function, autograph=False)

# Cumulative sums take TensorFlow several times as long as sums. Draws from many columns draw a block first.
_MANY_COLUMNS, _BLOCK = 4096, 256
_NEARLY_ONE = 1 - 2.0**-23  # in float32, a number times this is smaller

_SPARE = 8  # candidates beyond the k best, among which ties are settled


def in_xla() -> bool:
    """Return whether a function is being traced for XLA, as by `tf.function(jit_compile=True)`."""
    return not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


_exporting: ContextVar[bool] = ContextVar("exporting", default=False)


@contextmanager
def portable() -> Iterator[None]:
    """Trace functions within this context without operations of this library, so that they can be served without it."""
    token = _exporting.set(True)
    try:
        yield
    finally:
        _exporting.reset(token)


def must_be_portable() -> bool:
    """Return whether a function is being traced that runs where this library's operations are unknown.

    That is for XLA, for `tf.saved_model.save` or Keras' `export`, or in the context `portable`.
    """
    if tf.executing_eagerly():
        return False
    return _exporting.get() or save_context.in_save_context() or in_xla() or _in_keras_export()


def _in_keras_export() -> bool:
    """Return whether Keras is tracing a function to export it, which only the calls in progress tell."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("keras.src.export."):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@cache
def on_gpu() -> bool:
    """Return whether there is a GPU, on which few large operations are faster than loops that do less work.

    Each iteration of a loop is several kernel launches there.
    """
    return bool(tf.config.list_logical_devices("GPU"))


def add_rows(array: Tensor, rows_M: Tensor, added: Tensor) -> Tensor:
    """Add `added` to rows of `array`, on a CPU in place: nothing else may read `array`.

    `tensor_scatter_nd_add` copies the array, which on a CPU costs more than the products that computed it. On a GPU the
    addition in place is not atomic, so that additions to duplicate rows would be lost.
    """
    if on_gpu() or in_xla():  # XLA has no such operation, and adds in place by itself
        return tf.tensor_scatter_nd_add(array, rows_M[:, None], added)
    return tf.raw_ops.InplaceAdd(x=array, i=rows_M, v=added)


def _gradient_of_in_place_addition(operation: Any, upstream: Tensor) -> tuple[Tensor, None, Tensor]:
    upstream = tf.convert_to_tensor(upstream)
    return upstream, None, tf.gather(upstream, operation.inputs[1])


with suppress(KeyError):  # TensorFlow has none, which second derivatives need; other code may have registered one
    tf.RegisterGradient("InplaceAdd")(_gradient_of_in_place_addition)


def differentiated_once(method: str, gradients: Sequence[Tensor], *sources: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of a custom gradient as they are, whose derivatives with respect to `sources` are refused.

    Without it, these are missing or wrong where TensorFlow has not seen how the gradients were computed.
    """

    @tf.custom_gradient
    def final(*tensors: Tensor) -> tuple[tuple[Tensor, ...], object]:
        def refuse(*upstream: Tensor) -> None:
            raise BadInput(f"second derivatives of {method}: allowed: first derivatives")

        return tensors[: len(gradients)], refuse

    return final(*gradients, *sources)


def look_up(table: Tensor | tf.Variable, ids: Tensor) -> Tensor:
    """Return the rows of a table for these ids.

    After `tf.gather` has read a variable directly, TensorFlow copies it for each later reader of the whole, such as an
    optimizer with weight decay in every step.
    """
    return tf.gather(tf.convert_to_tensor(table), ids)


def known_rows(table: Tensor, ids: NDArray[np.int64], count: int) -> Tensor:
    """Return rows of a table that has `count` rows, with derivatives of every order in XLA too.

    The gradient of TensorFlow's own look-up has a number of rows that XLA does not find in a second derivative.
    """

    @tf.custom_gradient
    def rows(table: Tensor) -> tuple[Tensor, object]:
        return tf.gather(table, ids), summed

    @tf.custom_gradient
    def summed(drows: Tensor) -> tuple[Tensor, object]:
        return tf.math.unsorted_segment_sum(drows, ids, count), rows

    return rows(table)


def in_dtype(tensor: Tensor, dtype: tf.DType) -> Tensor:
    """Cast a tensor if necessary. `tf.cast` takes 0.05 ms even if it has nothing to do."""
    return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Widen half precision to float32, as before exponentials are summed; float32 and float64 stay as they are."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.bfloat16, tf.float16) else tensor


def draw(probabilities_NV: Tensor, uniforms_N: Tensor) -> Tensor:
    """Return (N,) the first column whose cumulative probability exceeds the uniform number times the sum.

    Column 0 if there is none, as for probabilities that are NaN.
    """
    columns = probabilities_NV.shape[1]
    if columns is None or columns < _MANY_COLUMNS:
        return _first_beyond(probabilities_NV, uniforms_N)
    blocks = -(-columns // _BLOCK)
    padded_NX = tf.pad(probabilities_NV, [[0, 0], [0, blocks * _BLOCK - columns]])
    blocks_NBC = tf.reshape(padded_NX, [-1, blocks, _BLOCK])
    sum_NB = tf.reduce_sum(blocks_NBC, axis=2)
    block_N = _first_beyond(sum_NB, uniforms_N)
    before_N = tf.gather(tf.cumsum(sum_NB, axis=1, exclusive=True), block_N, batch_dims=1)
    left_N = uniforms_N * tf.reduce_sum(sum_NB, axis=1) - before_N
    inside_NC = tf.gather(blocks_NBC, block_N, batch_dims=1)
    share_N = left_N / tf.gather(sum_NB, block_N, batch_dims=1)
    share_N = tf.clip_by_value(share_N, 0.0, _NEARLY_ONE)  # rounding must not lead beyond the block
    return block_N * _BLOCK + _first_beyond(inside_NC, share_N)


def _first_beyond(probabilities_NV: Tensor, uniforms_N: Tensor) -> Tensor:
    cumulative_NV = tf.cumsum(probabilities_NV, axis=1)
    share_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    # `searchsorted` returns the number of columns if there is none.
    return tf.searchsorted(cumulative_NV, share_N1, side="right")[:, 0] % tf.shape(cumulative_NV)[1]


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ right^T` in the dtype of `right`."""
    return tf.matmul(tf.cast(left, right.dtype), right, transpose_b=True)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of the target of each row."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)


def best_by_id(values_NX: Tensor, ids_NX: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best candidates (N, X) of each row with their ids: best first, ties by lower id.

    `top_k` prefers the first of equal values. If the best candidates contain ties, a few more than k candidates are
    sorted by id first, or all candidates if the last of these still equals the k-th.
    """
    wide = tf.minimum(k + _SPARE, tf.shape(values_NX)[1])
    values_NM, place_NM = tf.math.top_k(values_NX, wide)
    ids_NM = tf.gather(ids_NX, place_NM, batch_dims=1)

    def sorted_best(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        order = tf.argsort(ids, axis=1)
        best_NK, place_NK = tf.math.top_k(tf.gather(values, order, batch_dims=1), k)
        return best_NK, tf.gather(ids, tf.gather(order, place_NK, batch_dims=1), batch_dims=1)

    def best_of_tied() -> tuple[Tensor, Tensor]:
        more = (wide < tf.shape(values_NX)[1]) & tf.reduce_any(tf.equal(values_NM[:, -1], values_NM[:, k - 1]))
        return tf.cond(more, lambda: sorted_best(values_NX, ids_NX), lambda: sorted_best(values_NM, ids_NM))

    tied = tf.reduce_any(tf.equal(values_NM[:, 1 : k + 1], values_NM[:, : tf.minimum(k, wide - 1)]))
    return tf.cond(tied, best_of_tied, lambda: (values_NM[:, :k], ids_NM[:, :k]))
