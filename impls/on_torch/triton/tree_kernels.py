"""The paths of a binary tree's tokens by Triton kernels: few launches for a whole layer, and no synchronization.

In the forward pass a program follows the path of one token. While the nodes' vectors are in on-chip memory, it also
sums the gradient with respect to the hidden vector; the backward pass only scales that. For the gradient with respect
to the nodes, tokens are sorted by their leaves from left to right, so that the tokens below any node are adjacent. A
node belongs to the program of its first token, which sums over the others in order. Each sum is thus computed by one
program, without atomic additions, so that results are deterministic, and N keys are sorted instead of the N x L of the
paths. The nodes nearest the root, which most tokens share, are left to one dense product, whose factors (N, H) are
written along the way.
"""

# Where Triton is not installed, kernels look like plain functions, which take no grid.
# pyright: reportIndexIssue=false

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from vocabench.impls.on_torch.ops.once import once_differentiable

_STEPS = 16  # steps of a path that are read at a time: the least a matrix unit takes, and the whole path of most words
_TOKENS = 16  # tokens below a node that are read at a time
_BLOCK = 2**13  # elements of the nodes' vectors that a token's program holds
_COLUMNS = 256  # columns of the nodes' gradients that a program holds
_COMPARED = 64, 512  # tokens whose rank a program counts, and tokens that it compares them with at a time
_FEW_TOKENS = 2**13  # tokens up to which comparing all with all is faster than sorting
_SCORES = 1024  # scores whose log-sigmoids a program computes
_LEAVES, _ROWS = 32, 64  # leaves and rows whose log-probabilities a program sums


@triton.jit
def _forward_kernel(
    hidden_ND, node_MD, leaf_N, index_FL, sign_FL, length_F, place_F, nll_N, place_N, dscores_NL, dhidden_ND,
    depth, dim, DIFFERENTIATED: tl.constexpr, B: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    leaf = tl.load(leaf_N + token).to(tl.int64)
    length = tl.load(length_F + leaf)
    d_D = tl.arange(0, D)
    hidden_D = tl.load(hidden_ND + token * dim + d_D, mask=d_D < dim, other=0).to(tl.float32)
    dhidden_D = tl.zeros((D,), tl.float32)
    nll_B = tl.zeros((B,), tl.float32)
    for start in range(0, length, B):
        step_B = start + tl.arange(0, B)
        real_B = step_B < length
        node_B = tl.load(index_FL + leaf * depth + step_B, mask=real_B, other=0)
        sign_B = tl.load(sign_FL + leaf * depth + step_B, mask=real_B, other=0).to(tl.float32)
        real_BD = real_B[:, None] & (d_D < dim)[None, :]
        rows_BD = tl.load(node_MD + node_B[:, None] * dim + d_D[None, :], mask=real_BD, other=0).to(tl.float32)
        turn_B = sign_B * tl.sum(rows_BD * hidden_D[None, :], 1)
        small_B = tl.exp(-tl.abs(turn_B))  # never overflows
        nll_B += tl.where(real_B, tl.maximum(-turn_B, 0.0) + tl.log(1.0 + small_B), 0.0)
        if DIFFERENTIATED:
            # d/dx of -log sigma(s x) is -s sigma(-s x); the sign is 0 beyond the path's end.
            dscores_B = -sign_B * tl.where(turn_B > 0, small_B, 1.0) / (1.0 + small_B)
            tl.store(dscores_NL + token * depth + step_B, dscores_B, mask=real_B)
            dhidden_D += tl.sum(rows_BD * dscores_B[:, None], 0)
    tl.store(nll_N + token, tl.sum(nll_B))
    if DIFFERENTIATED:
        tl.store(place_N + token, tl.load(place_F + leaf))
        tl.store(dhidden_ND + token * dim + d_D, dhidden_D, mask=d_D < dim)


@triton.jit
def _backward_kernel(
    hidden_ND, leaf_N, index_FL, length_F, order_N, dscores_NL, unscaled_ND, dnll_N, dhidden_ND, dnear_NH, dnode_MD,
    tokens, depth, dim, first, near,
    T: tl.constexpr, B: tl.constexpr, D: tl.constexpr, H: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    token = tl.load(order_N + place).to(tl.int64)
    leaf = tl.load(leaf_N + token).to(tl.int64)
    length = tl.load(length_F + leaf)
    dnll = tl.load(dnll_N + token)
    d_D = tl.program_id(1) * D + tl.arange(0, D)
    unscaled_D = tl.load(unscaled_ND + token * dim + d_D, mask=d_D < dim, other=0)
    tl.store(dhidden_ND + token * dim + d_D, (unscaled_D * dnll).to(dhidden_ND.dtype.element_ty), mask=d_D < dim)

    before = tl.load(order_N + place - 1, mask=place > 0, other=0).to(tl.int64)
    leaf_before = tl.load(leaf_N + before).to(tl.int64)
    length_before = tl.where(place > 0, tl.load(length_F + leaf_before), 0)
    # A path begins with the nodes near the root, and with the nodes that it shares with the previous token's path.
    begin = 0
    h_H = tl.arange(0, H)
    dnear_H = tl.zeros((H,), tl.float32)
    for start in range(0, length, B):
        step_B = start + tl.arange(0, B)
        real_B = step_B < length
        node_B = tl.load(index_FL + leaf * depth + step_B, mask=real_B, other=-1)
        before_B = tl.load(index_FL + leaf_before * depth + step_B, mask=step_B < length_before, other=-1)
        dscores_B = tl.load(dscores_NL + token * depth + step_B, mask=real_B, other=0.0)
        here_BH = (node_B - first)[:, None] == h_H[None, :]
        dnear_H += tl.sum(tl.where(here_BH, dscores_B[:, None], 0.0), 0)
        begin += tl.sum((real_B & ((node_B >= first) | (node_B == before_B))).to(tl.int32))
    dnear_H = (dnear_H * dnll).to(dnear_NH.dtype.element_ty)
    tl.store(dnear_NH + token * near + h_H, dnear_H, mask=(h_H < near) & (tl.program_id(1) == 0))

    for start in range(begin, length, B):
        step_B = start + tl.arange(0, B)
        real_B = step_B < length
        node_B = tl.load(index_FL + leaf * depth + step_B, mask=real_B, other=0)
        dnode_BD = tl.zeros((B, D), tl.float32)
        here = place
        while here < tokens:
            place_T = here + tl.arange(0, T)
            real_T = place_T < tokens
            token_T = tl.load(order_N + place_T, mask=real_T, other=0).to(tl.int64)
            leaf_T = tl.load(leaf_N + token_T, mask=real_T, other=0).to(tl.int64)
            length_T = tl.load(length_F + leaf_T, mask=real_T, other=0)
            real_TB = (step_B[None, :] < length_T[:, None]) & real_B[None, :]
            node_TB = tl.load(index_FL + leaf_T[:, None] * depth + step_B[None, :], mask=real_TB, other=-1)
            below_TB = node_TB == node_B[None, :]
            dscores_TB = tl.load(dscores_NL + token_T[:, None] * depth + step_B[None, :], mask=below_TB, other=0.0)
            dscores_TB *= tl.load(dnll_N + token_T, mask=real_T, other=0.0)[:, None]
            any_T = tl.max(below_TB.to(tl.int32), 1)
            hidden_TD = tl.load(
                hidden_ND + token_T[:, None] * dim + d_D[None, :],
                mask=(any_T > 0)[:, None] & (d_D < dim)[None, :],
                other=0,
            )
            dscores_BT = tl.trans(dscores_TB).to(hidden_TD.dtype)
            dnode_BD = tl.dot(dscores_BT, hidden_TD, dnode_BD, input_precision=PRECISION)
            # Tokens below a node are adjacent: if the last one of a tile is not below it, no later one is.
            here = tl.where(tl.min(any_T, 0) > 0, here + T, tokens)
        real_BD = real_B[:, None] & (d_D < dim)[None, :]
        tl.store(dnode_MD + node_B[:, None] * dim + d_D[None, :], dnode_BD.to(dnode_MD.dtype.element_ty), mask=real_BD)


@triton.jit
def _order_kernel(place_N, order_N, tokens, T: tl.constexpr, B: tl.constexpr):
    token_T = tl.program_id(0) * T + tl.arange(0, T)
    place_T = tl.load(place_N + token_T, mask=token_T < tokens, other=0)
    rank_T = tl.zeros((T,), tl.int32)
    for start in range(0, tokens, B):
        token_B = start + tl.arange(0, B)
        place_B = tl.load(place_N + token_B, mask=token_B < tokens, other=2147483647)  # beyond every place
        equal_TB = place_B[None, :] == place_T[:, None]
        earlier_TB = (place_B[None, :] < place_T[:, None]) | (equal_TB & (token_B[None, :] < token_T[:, None]))
        rank_T += tl.sum(earlier_TB.to(tl.int32), 1)
    tl.store(order_N + rank_T, token_T, mask=token_T < tokens)


@triton.jit
def _turns_kernel(scores_MN, turns_2MN, count, BLOCK: tl.constexpr):
    """Write log sigma(x) of each score for a turn to the left, and log sigma(-x) for a turn to the right."""
    place_B = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    scores_B = tl.load(scores_MN + place_B, mask=place_B < count, other=0.0).to(tl.float32)
    small_B = tl.log(1.0 + tl.exp(-tl.abs(scores_B)))  # never overflows
    tl.store(turns_2MN + place_B, tl.minimum(scores_B, 0.0) - small_B, mask=place_B < count)
    tl.store(turns_2MN + count + place_B, tl.minimum(-scores_B, 0.0) - small_B, mask=place_B < count)


@triton.jit
def _turn(index_FL, sign_FL, place_B, real_B, leaves):
    """Return which of the 2 M turns the steps of paths are, by their places in `index_FL`."""
    node_B = tl.load(index_FL + place_B, mask=real_B, other=0).to(tl.int64)
    left_B = tl.load(sign_FL + place_B, mask=real_B, other=0) > 0
    return tl.where(left_B, node_B, node_B + leaves - 1)


@triton.jit
def _leaves_kernel(
    turns_2MN, index_FL, sign_FL, length_F, leaf_F, log_leaf_NF, rows, leaves, depth,
    B: tl.constexpr, T: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Sum the turns of adjacent leaves.

    The turns that the first and the last leaf have in common are shared by all leaves between them and are summed once.
    """
    place_B = tl.program_id(0) * B + tl.arange(0, B)
    row_T = tl.program_id(1) * T + tl.arange(0, T)
    inside_B, inside_T = place_B < leaves, row_T < rows
    leaf_B = tl.load(leaf_F + place_B, mask=inside_B, other=0)
    length_B = tl.load(length_F + leaf_B, mask=inside_B, other=0)
    first = tl.load(leaf_F + tl.program_id(0) * B)
    last = tl.load(leaf_F + tl.minimum(tl.program_id(0) * B + B, leaves) - 1)
    shortest = tl.minimum(tl.load(length_F + first), tl.load(length_F + last))
    common = 0
    sum_T = tl.zeros((T,), tl.float32)
    for start in range(0, shortest, S):
        step_S = start + tl.arange(0, S)
        turn_S = _turn(index_FL, sign_FL, first * depth + step_S, step_S < shortest, leaves)
        other_S = _turn(index_FL, sign_FL, last * depth + step_S, step_S < shortest, leaves)
        # Paths that have separated share no further node.
        same_S = (step_S < shortest) & (turn_S == other_S)
        common += tl.sum(same_S.to(tl.int32), 0)
        here_ST = same_S[:, None] & inside_T[None, :]
        sum_T += tl.sum(tl.load(turns_2MN + turn_S[:, None] * rows + row_T[None, :], mask=here_ST, other=0), 0)
    sum_BT = tl.zeros((B, T), tl.float32) + sum_T[None, :]
    for step in range(common, tl.max(length_B, 0)):
        real_B = step < length_B
        turn_B = _turn(index_FL, sign_FL, leaf_B * depth + step, real_B, leaves) * rows
        sum_BT += tl.load(
            turns_2MN + turn_B[:, None] + row_T[None, :], mask=real_B[:, None] & inside_T[None, :], other=0
        )
    at_BT = log_leaf_NF + row_T.to(tl.int64)[None, :] * leaves + place_B[:, None]
    tl.store(at_BT, sum_BT, mask=inside_B[:, None] & inside_T[None, :])


def _order(place_N: Tensor) -> Tensor:
    """Return the (N,) tokens from the leftmost leaf to the rightmost, stable for tokens of the same leaf."""
    tokens = len(place_N)
    if tokens > _FEW_TOKENS:
        return torch.sort(place_N, stable=True)[1]
    order_N = torch.empty_like(place_N)
    ranked, compared = _COMPARED
    _order_kernel[(triton.cdiv(tokens, ranked),)](place_N, order_N, tokens, T=ranked, B=compared, num_warps=4)
    return order_N


class _PathNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, node_MD, leaf_N, index_FL, sign_FL, length_F, place_F, near, differentiated) -> Tensor:  # type: ignore[override]
        tokens, dim, depth = *hidden_ND.shape, index_FL.shape[1]
        cast_ND = hidden_ND.to(node_MD.dtype).contiguous()
        leaf_N = leaf_N.contiguous()
        nll_N = cast_ND.new_empty(tokens, dtype=torch.float32)
        kept = tokens if differentiated else 0
        place_N = place_F.new_empty(kept)
        dscores_NL, unscaled_ND = nll_N.new_empty(kept, depth), nll_N.new_empty(kept, dim)
        columns = triton.next_power_of_2(dim)
        _forward_kernel[(tokens,)](
            cast_ND, node_MD, leaf_N, index_FL, sign_FL, length_F, place_F, nll_N, place_N, dscores_NL, unscaled_ND,
            depth, dim, DIFFERENTIATED=differentiated, B=min(_STEPS, max(1, _BLOCK // columns)), D=columns,
        )  # fmt: skip
        ctx.save_for_backward(cast_ND, node_MD, leaf_N, index_FL, length_F, place_N, dscores_NL, unscaled_ND)
        ctx.near, ctx.hidden_dtype = near, hidden_ND.dtype
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        hidden_ND, node_MD, leaf_N, index_FL, length_F, place_N, dscores_NL, unscaled_ND = ctx.saved_tensors
        (tokens, dim), depth, first = hidden_ND.shape, index_FL.shape[1], len(node_MD) - ctx.near
        order_N = _order(place_N)
        dhidden_ND = torch.empty_like(hidden_ND, dtype=ctx.hidden_dtype)
        dnear_NH = hidden_ND.new_empty(tokens, ctx.near)
        dnode_MD = torch.zeros_like(node_MD)
        tf32 = node_MD.dtype == torch.float32 and node_MD.is_cuda and torch.backends.cuda.matmul.allow_tf32
        columns = min(_COLUMNS, max(16, triton.next_power_of_2(dim)))
        _backward_kernel[(tokens, triton.cdiv(dim, columns))](
            hidden_ND, leaf_N, index_FL, length_F, order_N, dscores_NL, unscaled_ND, dnll_N.contiguous(), dhidden_ND,
            dnear_NH, dnode_MD, tokens, depth, dim, first, ctx.near, T=_TOKENS, B=_STEPS, D=columns,
            H=triton.next_power_of_2(ctx.near), PRECISION="tf32" if tf32 else "ieee",
        )  # fmt: skip
        torch.mm(dnear_NH.T, hidden_ND, out=dnode_MD[first:])
        return dhidden_ND, dnode_MD, None, None, None, None, None, None, None


def path_nll(
    hidden_ND: Tensor,
    node_MD: Tensor,
    leaf_N: Tensor,
    index_FL: Tensor,
    sign_FL: Tensor,
    length_F: Tensor,
    place_F: Tensor,
    near: int,
) -> Tensor:
    """Return the (N,) sums over each token's path of -log sigma(sign x r.h), in float32 and half precision.

    Args:
        hidden_ND: Hidden vectors, up to a few thousand columns.
        node_MD: Vectors of the inner nodes, parents after their children.
        leaf_N: Leaves of the tokens.
        index_FL: Nodes on each leaf's path, as in `TreeSoftmax`.
        sign_FL: Turns of each leaf's path, as in `TreeSoftmax`.
        length_F: Length of each path, in int32.
        place_F: `huffman.places` of the leaves, in int32.
        near: Number of last nodes whose gradient is a dense product.
    """
    paths = leaf_N, index_FL, sign_FL, length_F, place_F
    return _PathNll.apply(hidden_ND, node_MD, *paths, near, torch.is_grad_enabled())  # type: ignore[return-value]


def log_leaves(scores_MN: Tensor, index_FL: Tensor, sign_FL: Tensor, length_F: Tensor, leaf_F: Tensor) -> Tensor:
    """Return (N, F) float32 log-probabilities of the leaves, from left to right.

    Args:
        scores_MN: Scores of the inner nodes, in float32 or half precision.
        index_FL: Nodes on each leaf's path, as in `path_nll`.
        sign_FL: Turns of each leaf's path, as in `path_nll`.
        length_F: Length of each path, as in `path_nll`.
        leaf_F: The leaf at each place from left to right.
    """
    rows, leaves = scores_MN.shape[1], len(leaf_F)
    scores_MN, count = scores_MN.contiguous(), scores_MN.numel()
    turns_2MN = scores_MN.new_empty(2, *scores_MN.shape, dtype=torch.float32)
    _turns_kernel[(triton.cdiv(count, _SCORES),)](scores_MN, turns_2MN, count, BLOCK=_SCORES, num_warps=4)
    log_leaf_NF = turns_2MN.new_empty(rows, leaves)
    together = min(_ROWS, triton.next_power_of_2(rows))
    grid = triton.cdiv(leaves, _LEAVES), triton.cdiv(rows, together)
    paths = index_FL, sign_FL, length_F, leaf_F
    _leaves_kernel[grid](
        turns_2MN, *paths, log_leaf_NF, rows, leaves, index_FL.shape[1], B=_LEAVES, T=together, S=_STEPS, num_warps=8
    )
    return log_leaf_NF
