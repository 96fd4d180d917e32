"""The paths of a binary tree's tokens by Pallas kernels: few launches for a whole layer, and no array of pairs.

They follow `impls/on_torch/triton/tree_kernels.py`. In the forward pass a program takes a token down its path. While
the nodes' vectors are in on-chip memory, it also sums the gradient with respect to the hidden vector; the backward pass
only scales that. For the gradient with respect to the nodes, tokens are sorted by their leaves from left to right, so
that the tokens below any node are adjacent. A node belongs to the program of its first token, which sums over the
others in order. Each sum is computed by one program, without atomic additions, so that results are deterministic. The
nodes nearest the root, which most tokens share, are left to one dense product, whose factor (N, H) is also written.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from vocabench.impls.cpp import Paths
from vocabench.impls.on_jax.ops.arrays import Array
from vocabench.impls.on_jax.pallas.support import How, call, iota, loop, up

_STEPS = 16  # steps of a path at a time: the fewest of a tensor core, and the whole path of most words
_TOKENS = 16  # tokens below a node at a time
_BLOCK = 2**13  # elements of the nodes' vectors that a program holds
_COLUMNS = 256  # columns of the nodes' gradients that a program holds
_RANKED, _COMPARED = 16, 256  # tokens that a program sorts, and tokens that it compares these with at a time
_NOWHERE = 2**31 - 1  # a place after all others
_ZEROS = 2**13  # zeros that a program writes
_LEAVES, _ROWS = 32, 64  # leaves and rows whose log-probabilities a program sums


class _Batch(NamedTuple):
    """The paths of a batch: arrays, or references to them in a kernel.

    Attributes:
        index_NL: Nodes of each path; M beyond its end.
        sign_NL: Signs of the turns of each path.
        length_N: Length of each path.
    """

    index_NL: Any
    sign_NL: Any
    length_N: Any

    @classmethod
    def of(cls, paths: Paths, nodes: int) -> _Batch:
        """Return the batch of these paths in a tree with this many inner nodes."""
        real_NL = paths.sign_NL != 0
        index_NL = jnp.where(real_NL, paths.index_NL, nodes).astype(jnp.int32)
        return cls(index_NL, paths.sign_NL.astype(jnp.int32), real_NL.sum(axis=1, dtype=jnp.int32))

    def nodes(self, token: Any, step: Array, real: Any, other: int) -> Array:
        """Return the nodes at the given steps of paths in a kernel; `other` where a step is not real or too long."""
        return plgpu.load(self.index_NL.at[token, step], mask=real & (step < self.index_NL.shape[1]), other=other)


def _zeros_kernel(zeros_MD, *, rows, columns):  # type: ignore[no-untyped-def]
    row_B, d_D = pl.program_id(0) * rows + iota(rows), iota(columns)
    real_BD = (row_B < zeros_MD.shape[0])[:, None] & (d_D < zeros_MD.shape[1])[None, :]
    plgpu.store(zeros_MD.at[row_B[:, None], d_D[None, :]], jnp.zeros(real_BD.shape, zeros_MD.dtype), mask=real_BD)


def _zeros_like(array_MD: Array, how: How) -> Array:
    """Return zeros, written by a kernel: XLA writes them at half the speed of a GPU."""
    columns = pl.next_power_of_2(array_MD.shape[1])
    rows = max(1, _ZEROS // columns)
    out, kernel = (
        jax.ShapeDtypeStruct(array_MD.shape, array_MD.dtype),
        partial(_zeros_kernel, rows=rows, columns=columns),
    )
    return call(kernel, out, (pl.cdiv(len(array_MD), rows),), 4, 1, how.interpret, like=array_MD)()


def _order_kernel(place_N, order_N):  # type: ignore[no-untyped-def]
    """Sort the tokens by the places of their leaves, stable for tokens of the same leaf."""
    tokens = place_N.shape[0]

    def read(number: Array, size: int) -> tuple[Array, Array]:
        token_T = number * size + iota(size)
        return token_T, plgpu.load(place_N.at[token_T], mask=token_T < tokens, other=_NOWHERE)

    token_T, place_T = read(pl.program_id(0), _RANKED)

    def count(number: Array, rank_T: Array) -> Array:
        token_B, place_B = read(number, _COMPARED)
        earlier_TB = (place_B[None, :] == place_T[:, None]) & (token_B[None, :] < token_T[:, None])
        before_TB = earlier_TB | (place_B[None, :] < place_T[:, None])
        return rank_T + before_TB.astype(jnp.int32).sum(axis=1, dtype=jnp.int32)

    rank_T = loop(np.int32(pl.cdiv(tokens, _COMPARED)), count, jnp.zeros(_RANKED, jnp.int32))
    plgpu.store(order_N.at[rank_T], token_T, mask=token_T < tokens)


def _forward_kernel(hidden_ND, node_MD, batch, nll_N, *kept, steps, columns):  # type: ignore[no-untyped-def]
    token, (nodes, dim) = pl.program_id(0), node_MD.shape
    dscores, dhiddens = kept[:1], kept[1:]  # (N, L) and (N, D), or none
    d_D = iota(columns)
    real_D = d_D < dim
    hidden_D = plgpu.load(hidden_ND.at[token, d_D], mask=real_D, other=0.0).astype(jnp.float32)

    def of_steps(number: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        nll_B, *dhidden = sums
        step_B = number * steps + iota(steps)
        node_B = batch.nodes(token, step_B, True, nodes)
        real_B = node_B < nodes
        sign_B = plgpu.load(batch.sign_NL.at[token, step_B], mask=real_B, other=0).astype(jnp.float32)
        real_BD = real_B[:, None] & real_D[None, :]
        nodes_BD = plgpu.load(node_MD.at[node_B[:, None], d_D[None, :]], mask=real_BD, other=0.0).astype(jnp.float32)
        turn_B = sign_B * (nodes_BD * hidden_D[None, :]).sum(axis=1)
        small_B = jnp.exp(-jnp.abs(turn_B))  # never overflows
        nll_B = nll_B + jnp.where(real_B, jnp.maximum(-turn_B, 0.0) + jnp.log(1.0 + small_B), 0.0)
        for dscores_NL in dscores:
            # d/dx of -log sigma(s x) is -s sigma(-s x). The sign is 0 beyond the end of the path.
            dscores_B = -sign_B * jnp.where(turn_B > 0, small_B, 1.0) / (1.0 + small_B)
            plgpu.store(dscores_NL.at[token, step_B], dscores_B, mask=real_B)
            dhidden = [dhidden[0] + (nodes_BD * dscores_B[:, None]).sum(axis=0)]
        return nll_B, *dhidden

    start = jnp.zeros(steps, jnp.float32), *(jnp.zeros(columns, jnp.float32) for _ in dhiddens)
    nll_B, *dhidden = loop(up(batch.length_N[token], steps), of_steps, start)
    nll_N[token] = nll_B.sum()
    for dhidden_ND, dhidden_D in zip(dhiddens, dhidden, strict=True):
        plgpu.store(dhidden_ND.at[token, d_D], dhidden_D, mask=real_D)


def _backward_kernel(zeros_MD, hidden_ND, batch, order_N, dscores_NL, dnll_N, dnode_MD, dnear_NH, *, columns, tf32):  # type: ignore[no-untyped-def]
    del zeros_MD  # the initial content of the nodes' gradient
    place, (tokens, near), (nodes, dim) = pl.program_id(0), dnear_NH.shape, dnode_MD.shape
    token, before = order_N[place], order_N[jnp.maximum(place - 1, 0)]
    length = batch.length_N[token]
    h_H = iota(pl.next_power_of_2(near))
    d_D = pl.program_id(1) * columns + iota(columns)
    real_D = d_D < dim

    def of_root(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        """Skip nodes near the root and nodes of the previous token's path, which are the first nodes of the path."""
        begin, dnear_H = sums
        step_B = number * _STEPS + iota(_STEPS)
        node_B = batch.nodes(token, step_B, True, nodes)
        before_B = batch.nodes(before, step_B, place > 0, nodes)
        real_B = node_B < nodes
        others_B = real_B & ((node_B >= nodes - near) | (node_B == before_B))
        dscores_B = plgpu.load(dscores_NL.at[token, step_B], mask=real_B, other=0.0)
        here_BH = node_B[:, None] == (h_H + (nodes - near))[None, :]
        dnear_H = dnear_H + jnp.where(here_BH, dscores_B[:, None], 0.0).sum(axis=0)
        return begin + others_B.astype(jnp.int32).sum(dtype=jnp.int32), dnear_H

    start = jnp.int32(0), jnp.zeros(h_H.shape, jnp.float32)
    begin, dnear_H = loop(up(length, _STEPS), of_root, start)
    real_H = (h_H < near) & (pl.program_id(1) == 0)
    plgpu.store(dnear_NH.at[token, h_H], (dnear_H * dnll_N[token]).astype(dnear_NH.dtype), mask=real_H)

    def of_steps(number: Array, none: None) -> None:
        step_B = begin + number * _STEPS + iota(_STEPS)
        node_B = batch.nodes(token, step_B, True, nodes)
        real_B = node_B < nodes

        def of_tokens(state: tuple[Array, Array]) -> tuple[Array, Array]:
            here, dnode_BD = state
            place_T = here + iota(_TOKENS)
            real_T = place_T < tokens
            token_T = plgpu.load(order_N.at[place_T], mask=real_T, other=tokens)
            node_TB = batch.nodes(token_T[:, None], step_B[None, :], real_T[:, None], nodes)
            below_TB = (node_TB == node_B[None, :]) & real_B[None, :]
            dscores_TB = plgpu.load(dscores_NL.at[token_T[:, None], step_B[None, :]], mask=below_TB, other=0.0)
            dscores_TB = dscores_TB * plgpu.load(dnll_N.at[token_T], mask=real_T, other=0.0)[:, None]
            any_T = below_TB.astype(jnp.int32).max(axis=1)
            real_TD = (any_T > 0)[:, None] & real_D[None, :]
            hidden_TD = plgpu.load(hidden_ND.at[token_T[:, None], d_D[None, :]], mask=real_TD, other=0.0)
            cast_TB = dscores_TB.astype(hidden_TD.dtype)
            dnode_BD = dnode_BD + plgpu.dot(cast_TB, hidden_TD, trans_a=True, allow_tf32=tf32)
            # Tokens below a node are adjacent: if the last one is not below it, no later one is.
            return jnp.where(any_T.min() > 0, here + _TOKENS, tokens), dnode_BD

        zeros_BD = jnp.zeros((_STEPS, columns), jnp.float32)
        dnode_BD = lax.while_loop(lambda state: state[0] < tokens, of_tokens, (place, zeros_BD))[1]
        real_BD = real_B[:, None] & real_D[None, :]
        plgpu.store(dnode_MD.at[node_B[:, None], d_D[None, :]], dnode_BD.astype(dnode_MD.dtype), mask=real_BD)

    loop(up(length - begin, _STEPS), of_steps, None)


def _leaves_kernel(turns_PN, index_FL, sign_FL, length_F, leaf_F, log_leaf_NX, *, together):  # type: ignore[no-untyped-def]
    """Sum the turns of adjacent leaves.

    The turns from the root that the first and the last leaf have in common belong to all leaves, and are read once.
    """
    begin, (leaves,) = pl.program_id(0) * _LEAVES, leaf_F.shape
    place_B, row_T = begin + iota(_LEAVES), pl.program_id(1) * together + iota(together)
    inside_B, inside_T = place_B < leaves, row_T < turns_PN.shape[1]
    leaf_B = plgpu.load(leaf_F.at[place_B], mask=inside_B, other=0)
    length_B = plgpu.load(length_F.at[leaf_B], mask=inside_B, other=0)
    first, last = leaf_F[begin], leaf_F[jnp.minimum(begin + _LEAVES, leaves) - 1]
    shortest = jnp.minimum(length_F[first], length_F[last])

    def turn(leaf: Array, step: Array, real: Array) -> Array:
        node = plgpu.load(index_FL.at[leaf, step], mask=real, other=0)
        is_left = plgpu.load(sign_FL.at[leaf, step], mask=real, other=0) > 0
        return jnp.where(is_left, node, node + (leaves - 1))

    def of_common(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        step_S = number * _STEPS + iota(_STEPS)
        real_S = step_S < shortest
        turn_S = turn(first, step_S, real_S)
        # Paths that have parted have no further node in common.
        same_S = real_S & (turn_S == turn(last, step_S, real_S))
        mask_ST = same_S[:, None] & inside_T[None, :]
        values_ST = plgpu.load(turns_PN.at[turn_S[:, None], row_T[None, :]], mask=mask_ST, other=0.0)
        return sums[0] + same_S.astype(jnp.int32).sum(dtype=jnp.int32), sums[1] + values_ST.sum(axis=0)

    common, sum_T = loop(up(shortest, _STEPS), of_common, (jnp.int32(0), jnp.zeros(together, jnp.float32)))

    def of_step(number: Array, sum_BT: Array) -> Array:
        real_B = common + number < length_B
        turn_B = turn(leaf_B, common + number, real_B)
        mask_BT = real_B[:, None] & inside_T[None, :]
        return sum_BT + plgpu.load(turns_PN.at[turn_B[:, None], row_T[None, :]], mask=mask_BT, other=0.0)

    start_BT = jnp.zeros((_LEAVES, together), jnp.float32) + sum_T[None, :]
    sum_BT = loop(jnp.maximum(length_B.max() - common, 0), of_step, start_BT)
    mask_BT = inside_B[:, None] & inside_T[None, :]
    plgpu.store(log_leaf_NX.at[row_T[None, :], place_B[:, None]], sum_BT, mask=mask_BT)


def log_leaves(
    scores_MN: Array, index_FL: Array, sign_FL: Array, length_F: Array, leaf_F: Array, width: int,
    interpret: bool = False,
) -> Array:  # fmt: skip
    """Return (N, X) float32 log-probabilities of the leaves, from left to right.

    X is the number of leaves, rounded up to a multiple of `width`. Entries beyond the last leaf are meaningless.

    Args:
        scores_MN: Scores of the inner nodes.
        index_FL: Nodes of each leaf's path.
        sign_FL: Signs of the turns of each leaf's path.
        length_F: Length of each leaf's path.
        leaf_F: The leaf at each place from left to right.
        width: Width of a group of leaves.
        interpret: As in `How`.
    """
    (_, rows), leaves = scores_MN.shape, len(leaf_F)
    turns_PN = jax.nn.log_sigmoid(jnp.concatenate([scores_MN, -scores_MN]).astype(jnp.float32))
    together = min(_ROWS, max(16, pl.next_power_of_2(rows)))
    out = jax.ShapeDtypeStruct((rows, pl.cdiv(leaves, width) * width), jnp.float32)
    grid = pl.cdiv(leaves, _LEAVES), pl.cdiv(rows, together)
    kernel = call(partial(_leaves_kernel, together=together), out, grid, 8, 1, interpret)
    return kernel(turns_PN, index_FL, sign_FL, length_F, leaf_F)  # type: ignore[no-any-return]


def path_nll(hidden_ND: Array, node_MD: Array, paths: Paths, near: int, interpret: bool = False) -> Array:
    """Return the (N,) sums over each token's path of -log sigma(sign x r.h), in float32 and half precision.

    Args:
        hidden_ND: Hidden vectors.
        node_MD: Vectors of the inner nodes.
        paths: Path of each token.
        near: Number of nodes that a dense product differentiates: the last ones, which are the first of every path.
        interpret: As in `How`.
    """
    batch = _Batch.of(paths, len(node_MD))
    # Tokens without a path come last, and not between the tokens below a node.
    place_N = jnp.where(batch.length_N > 0, paths.place_N, _NOWHERE).astype(jnp.int32)
    return _nll(hidden_ND, node_MD, batch, place_N, near, How.asked_for(interpret))  # type: ignore[return-value]


def _outputs(hidden_ND: Array, node_MD: Array, batch: _Batch, how: How, keep: bool) -> Any:
    tokens, dim = hidden_ND.shape
    shapes = [(tokens,), batch.index_NL.shape, (tokens, dim)] if keep else [(tokens,)]
    out = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    columns = max(16, pl.next_power_of_2(dim))
    kernel = partial(_forward_kernel, steps=min(_STEPS, _BLOCK // columns), columns=columns)
    return call(kernel, out, (tokens,), 4, 1, how.interpret)(hidden_ND.astype(node_MD.dtype), node_MD, batch)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _nll(hidden_ND, node_MD, batch, place_N, near, how):  # type: ignore[no-untyped-def]
    return _outputs(hidden_ND, node_MD, batch, how, keep=False)[0]


def _forward(hidden_ND, node_MD, batch, place_N, near, how):  # type: ignore[no-untyped-def]
    nll_N, *kept = _outputs(hidden_ND, node_MD, batch, how, keep=True)
    return nll_N, (hidden_ND, node_MD, batch, place_N, *kept)


def _backward(near, how, inputs, dnll_N):  # type: ignore[no-untyped-def]
    hidden_ND, node_MD, batch, place_N, dscores_NL, dhidden_ND = inputs
    (tokens, dim), kind = hidden_ND.shape, node_MD.dtype
    cast_ND, columns = hidden_ND.astype(kind), min(_COLUMNS, max(16, pl.next_power_of_2(dim)))
    order = jax.ShapeDtypeStruct((tokens,), jnp.int32)
    order_N = call(_order_kernel, order, (pl.cdiv(tokens, _RANKED),), 4, 1, how.interpret)(place_N)
    kernel = partial(_backward_kernel, columns=columns, tf32=how.tf32)
    out = [jax.ShapeDtypeStruct(node_MD.shape, kind), jax.ShapeDtypeStruct((tokens, near), kind)]
    by_nodes = call(kernel, out, (tokens, pl.cdiv(dim, columns)), 4, 1, how.interpret, written_over={0: 0})
    dnode_MD, dnear_NH = by_nodes(_zeros_like(node_MD, how), cast_ND, batch, order_N, dscores_NL, dnll_N)
    dnear_HD = jnp.matmul(dnear_NH.T, cast_ND, preferred_element_type=jnp.float32).astype(kind)
    dnode_MD = lax.dynamic_update_slice_in_dim(dnode_MD, dnear_HD, len(node_MD) - near, 0)
    return (dhidden_ND * dnll_N[:, None]).astype(hidden_ND.dtype), dnode_MD, None, None


_nll.defvjp(_forward, _backward)
