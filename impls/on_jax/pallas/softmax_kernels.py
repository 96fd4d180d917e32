"""A softmax over a vocabulary by blocks of its words, with Pallas kernels that read a block's logits once.

XLA would read and write them several times. In the forward pass one kernel reduces a block. In the backward pass one
kernel computes the gradient of a block in the dtype of the words, and sums it over tokens for the gradient with respect
to the biases. Blocks are iterations of a loop: if the loop were unrolled, XLA would keep the logits of the forward pass
for the backward pass instead of computing them again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from vocabench.impls.on_jax.ops.arrays import Array, product
from vocabench.impls.on_jax.pallas.support import How, call, iota, loop, up

_COLUMNS = 4096  # columns of a row that a program reads at a time
_TOKENS, _WORDS = 16, 256  # tokens and words of a tile of gradients
_ALIGNED = 64  # blocks of words are a multiple of this


class _Batch(NamedTuple):
    """The arrays that all blocks share, or references to them in a kernel."""

    bias_V: Any
    targets_N: Any


def _add_kernel(logits_NB, batch, start_1, log_sum_N, score_N, log_sums_N, scores_N, *, size):  # type: ignore[no-untyped-def]
    token, start, width = pl.program_id(0), start_1[0], logits_NB.shape[1]

    def reduce(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        highest, total = sums
        column_B = number * size + iota(size)
        real_B = column_B < width
        biases_B = plgpu.load(batch.bias_V.at[start + column_B], mask=real_B, other=0.0)
        products_B = plgpu.load(logits_NB.at[token, column_B], mask=real_B, other=-jnp.inf)
        logits_B = products_B + biases_B.astype(jnp.float32)
        higher = jnp.maximum(highest, logits_B.max())
        level = jnp.where(higher == -jnp.inf, 0.0, higher)  # where all logits so far are -inf
        return higher, total * jnp.exp(highest - level) + jnp.exp(logits_B - level).sum()

    before = log_sum_N[token]
    highest, total = loop(up(jnp.int32(width), size), reduce, (before, (before > -jnp.inf).astype(jnp.float32)))
    log_sums_N[token] = highest + jnp.log(total)
    place = batch.targets_N[token] - start
    is_here = (place >= 0) & (place < width)
    column = jnp.where(is_here, place, 0)
    score = logits_NB[token, column] + batch.bias_V[start + column].astype(jnp.float32)
    scores_N[token] = jnp.where(is_here, score, score_N[token])


def _differentiate_kernel(logits_NB, batch, start_1, log_sum_N, dnll_N, dlogits_NB, sums_MB):  # type: ignore[no-untyped-def]
    start, (tokens, width) = start_1[0], logits_NB.shape
    token_T, column_B = (pl.program_id(axis) * size + iota(size) for axis, size in enumerate((_TOKENS, _WORDS)))
    real_T, real_B = token_T < tokens, column_B < width
    at_TB, real_TB = (token_T[:, None], column_B[None, :]), real_T[:, None] & real_B[None, :]

    def of_tokens(values_N: Any, other: float) -> Array:
        return plgpu.load(values_N.at[token_T], mask=real_T, other=other)

    biases_B = plgpu.load(batch.bias_V.at[start + column_B], mask=real_B, other=0.0).astype(jnp.float32)
    logits_TB = plgpu.load(logits_NB.at[at_TB], mask=real_TB, other=-jnp.inf) + biases_B[None, :]
    is_target_TB = of_tokens(batch.targets_N, -1)[:, None] == (start + column_B)[None, :]
    probability_TB = jnp.exp(logits_TB - of_tokens(log_sum_N, 0.0)[:, None])
    dlogits_TB = (probability_TB - is_target_TB.astype(jnp.float32)) * of_tokens(dnll_N, 0.0)[:, None]
    plgpu.store(dlogits_NB.at[at_TB], dlogits_TB.astype(dlogits_NB.dtype), mask=real_TB)
    plgpu.store(sums_MB.at[pl.program_id(0), column_B], dlogits_TB.sum(axis=0), mask=real_B)


def _added(logits_NB: Array, batch: _Batch, start: Array, sums: tuple[Array, Array], how: How) -> tuple[Array, Array]:
    """Return the log-sum-exp and the scores of targets so far, updated with a block."""
    size = min(_COLUMNS, max(32, pl.next_power_of_2(logits_NB.shape[1])))
    out = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in sums]
    add = call(partial(_add_kernel, size=size), out, (len(logits_NB),), max(1, size // 512), 1, how.interpret)
    return tuple(add(logits_NB, batch, start[None], *sums))  # type: ignore[return-value]


def _differentiated(
    logits_NB: Array, batch: _Batch, start: Array, log_sum_N: Array, dnll_N: Array, kind: Any, how: How
) -> tuple[Array, Array]:
    """Return d loss / d logits (N, B), and its sum over the tokens (B,)."""
    tokens, width = logits_NB.shape
    grid = pl.cdiv(tokens, _TOKENS), pl.cdiv(width, _WORDS)
    out = jax.ShapeDtypeStruct((tokens, width), kind), jax.ShapeDtypeStruct((grid[0], width), jnp.float32)
    differentiate = call(_differentiate_kernel, out, grid, 8, 1, how.interpret)
    dlogits_NB, sums_MB = differentiate(logits_NB, batch, start[None], log_sum_N, dnll_N)
    return dlogits_NB, sums_MB.sum(axis=0)


def _of_blocks(vocab: int, width: int, visit: Callable[[Array, int, Any], Any], start: Any) -> Any:
    """Fold `visit`, which takes a block's first word, its width and the previous result, over all blocks.

    Blocks have the same width, at most `width`. The few remaining words follow after the loop.
    """
    count = -(-vocab // width)
    width = vocab // count // _ALIGNED * _ALIGNED or vocab // count
    result = loop(jnp.int32(count), lambda number, result: visit(number * width, width, result), start)
    rest = vocab - count * width
    return visit(jnp.int32(count * width), rest, result) if rest else result


def _at(array_V: Array, start: Array, width: int) -> Array:
    return lax.dynamic_slice_in_dim(array_V, start, width)


def fused_nll(
    hidden_ND: Array, weight_VD: Array, bias_V: Array, targets_N: Array, width: int, interpret: bool = False
) -> Array:
    """Return the (N,) negative log-likelihoods in nats, in float32 and half precision.

    Args:
        hidden_ND: Hidden vectors.
        weight_VD: Word vectors.
        bias_V: Word biases.
        targets_N: Word ids.
        width: Number of words whose logits are computed at a time.
        interpret: As in `How`.
    """
    batch = _Batch(bias_V, targets_N.astype(jnp.int32))
    return _nll(hidden_ND.astype(weight_VD.dtype), weight_VD, batch, width, How.asked_for(interpret))  # type: ignore[return-value]


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _nll(hidden_ND, weight_VD, batch, width, how):  # type: ignore[no-untyped-def]
    return _forward(hidden_ND, weight_VD, batch, width, how)[0]


def _forward(hidden_ND, weight_VD, batch, width, how):  # type: ignore[no-untyped-def]
    def visit(start: Array, width: int, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        return _added(product(hidden_ND, _at(weight_VD, start, width)), batch, start, sums, how)

    start_N = jnp.full(len(hidden_ND), -jnp.inf, jnp.float32), jnp.zeros(len(hidden_ND), jnp.float32)
    log_sum_N, score_N = _of_blocks(len(weight_VD), width, visit, start_N)
    return log_sum_N - score_N, (hidden_ND, weight_VD, batch, log_sum_N)


def _backward(width, how, kept, dnll_N):  # type: ignore[no-untyped-def]
    hidden_ND, weight_VD, batch, log_sum_N = kept
    kind = weight_VD.dtype

    def visit(start: Array, width: int, gradients: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        dhidden_ND, dweight_VD, dbias_V = gradients
        words_BD = _at(weight_VD, start, width)
        logits_NB = product(hidden_ND, words_BD)
        dlogits_NB, dbias_B = _differentiated(logits_NB, batch, start, log_sum_N, dnll_N, kind, how)
        dhidden_ND += jnp.matmul(dlogits_NB, words_BD, preferred_element_type=jnp.float32)
        return (
            dhidden_ND,
            lax.dynamic_update_slice_in_dim(dweight_VD, dlogits_NB.T @ hidden_ND, start, 0),
            lax.dynamic_update_slice_in_dim(dbias_V, dbias_B.astype(dbias_V.dtype), start, 0),
        )

    zeros = jnp.zeros(hidden_ND.shape, jnp.float32), jnp.zeros_like(weight_VD), jnp.zeros_like(batch.bias_V)
    dhidden_ND, dweight_VD, dbias_V = _of_blocks(len(weight_VD), width, visit, zeros)
    return dhidden_ND.astype(kind), dweight_VD, _Batch(dbias_V, None)


_nll.defvjp(_forward, _backward)
