"""The softmax within a word's cluster by Triton kernels: for each tile of a cluster's tokens, scores are made, summed
and differentiated in the chip's own memory, so that none is ever written, and whole layers are few kernels.

Forward the slab is read once. Backward it is read twice: for the gradient by hidden vectors a program takes a tile of
tokens and goes through the words of its cluster, for that by words it takes a block of words and goes through the
tokens. So each number is summed by one program, in one order: no atomic addition, and the same bits every time. Slots
without a word and clusters without a token are not read; their gradients are written as zeros.
"""

# Where Triton is not installed, a kernel seems a plain function, which takes no grid.
# pyright: reportIndexIssue=false

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor
from torch.autograd.function import once_differentiable

_PROGRAMS = 8  # of a cluster, between which the tiles of its tokens are dealt
_BLOCK_BYTES = 2**15  # of the words that are looked at together
_SORTED = 1024  # tokens that are looked at together


@triton.jit
def _sort_kernel(cluster_N, order_N, begin_C, tokens, clusters, BLOCK: tl.constexpr):
    """The tokens of each cluster in their order, and where they begin; begin_C has one place more."""
    cluster = tl.program_id(0)
    places_B = tl.arange(0, BLOCK)
    before = 0
    for start in range(0, tokens, BLOCK):
        here_B = tl.load(cluster_N + start + places_B, mask=start + places_B < tokens, other=clusters)
        before += tl.sum((here_B < cluster).to(tl.int32))
    tl.store(begin_C + cluster, before)
    for start in range(0, tokens, BLOCK):
        here_B = tl.load(cluster_N + start + places_B, mask=start + places_B < tokens, other=clusters)
        mine_B = here_B == cluster
        one_B = mine_B.to(tl.int32)
        tl.store(order_N + before + tl.cumsum(one_B) - 1, start + places_B, mask=mine_B)
        before += tl.sum(one_B)
    if cluster == clusters - 1:
        tl.store(begin_C + clusters, tokens)


@triton.jit
def _words(slab, bias, cluster, slot_B, size, width, dim, d_D, BIASED: tl.constexpr):
    """(B, D) vectors and (B,) biases of a cluster's words in these slots; -inf where there is none."""
    row_B = cluster.to(tl.int64) * width + slot_B
    real_B = slot_B < size
    words_BD = tl.load(slab + row_B[:, None] * dim + d_D[None, :], mask=real_B[:, None] & (d_D < dim)[None, :], other=0)
    if BIASED:
        added_B = tl.load(bias + row_B, mask=real_B, other=-float("inf")).to(tl.float32)
    else:
        added_B = tl.where(real_B, 0.0, -float("inf"))
    return words_BD, added_B


@triton.jit
def _tokens(order_N, hidden_ND, slot_N, place_T, end, dim, d_D):
    """(T,) the tokens at these places of a sorted batch, their slots (-1 where there is none) and hidden vectors."""
    real_T = place_T < end
    token_T = tl.load(order_N + place_T, mask=real_T, other=0)
    slot_T = tl.load(slot_N + token_T, mask=real_T, other=-1)
    row_T = token_T.to(tl.int64) * dim
    hidden_TD = tl.load(hidden_ND + row_T[:, None] + d_D[None, :], mask=real_T[:, None] & (d_D < dim)[None, :], other=0)
    return token_T, slot_T, hidden_TD


@triton.jit
def _forward_kernel(
    hidden_ND, slab_CSD, bias_CS, slot_N, order_N, begin_C, size_C, log_sum_N, nll_N, width, dim,
    BIASED: tl.constexpr, T: tl.constexpr, B: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    cluster = tl.program_id(0)
    end, size = tl.load(begin_C + cluster + 1), tl.load(size_C + cluster).to(tl.int32)
    first = tl.load(begin_C + cluster) + tl.program_id(1) * T
    d_D = tl.arange(0, D)
    for start in range(first, end, tl.num_programs(1) * T):
        place_T = start + tl.arange(0, T)
        token_T, slot_T, hidden_TD = _tokens(order_N, hidden_ND, slot_N, place_T, end, dim, d_D)
        highest_T = tl.full((T,), -float("inf"), tl.float32)
        sum_T = tl.zeros((T,), tl.float32)
        target_T = tl.zeros((T,), tl.float32)
        for block in range(0, size, B):
            slot_B = block + tl.arange(0, B)
            words_BD, added_B = _words(slab_CSD, bias_CS, cluster, slot_B, size, width, dim, d_D, BIASED)
            scores_TB = tl.dot(hidden_TD, tl.trans(words_BD), input_precision=PRECISION) + added_B[None, :]
            # The first slot of a block holds a word, so the highest is finite.
            higher_T = tl.maximum(highest_T, tl.max(scores_TB, 1))
            sum_T = sum_T * tl.exp(highest_T - higher_T) + tl.sum(tl.exp(scores_TB - higher_T[:, None]), 1)
            target_T += tl.sum(tl.where(slot_T[:, None] == slot_B[None, :], scores_TB, 0.0), 1)
            highest_T = higher_T
        log_sum_T = highest_T + tl.log(sum_T)
        real_T = place_T < end
        tl.store(log_sum_N + token_T, log_sum_T, mask=real_T)
        tl.store(nll_N + token_T, log_sum_T - target_T, mask=real_T)


@triton.jit
def _hidden_kernel(
    hidden_ND, slab_CSD, bias_CS, slot_N, order_N, begin_C, size_C, log_sum_N, dnll_N, dhidden_ND, width, dim,
    BIASED: tl.constexpr, T: tl.constexpr, B: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    cluster = tl.program_id(0)
    end, size = tl.load(begin_C + cluster + 1), tl.load(size_C + cluster).to(tl.int32)
    first = tl.load(begin_C + cluster) + tl.program_id(1) * T
    d_D = tl.arange(0, D)
    for start in range(first, end, tl.num_programs(1) * T):
        place_T = start + tl.arange(0, T)
        real_T = place_T < end
        token_T, slot_T, hidden_TD = _tokens(order_N, hidden_ND, slot_N, place_T, end, dim, d_D)
        log_sum_T = tl.load(log_sum_N + token_T, mask=real_T, other=0.0)
        dnll_T = tl.load(dnll_N + token_T, mask=real_T, other=0.0)
        dhidden_TD = tl.zeros((T, D), tl.float32)
        for block in range(0, size, B):
            slot_B = block + tl.arange(0, B)
            words_BD, added_B = _words(slab_CSD, bias_CS, cluster, slot_B, size, width, dim, d_D, BIASED)
            scores_TB = tl.dot(hidden_TD, tl.trans(words_BD), input_precision=PRECISION) + added_B[None, :]
            dscores_TB = tl.exp(scores_TB - log_sum_T[:, None]) - (slot_T[:, None] == slot_B[None, :]).to(tl.float32)
            dscores_TB = (dscores_TB * dnll_T[:, None]).to(words_BD.dtype)
            dhidden_TD = tl.dot(dscores_TB, words_BD, dhidden_TD, input_precision=PRECISION)
        row_T = token_T.to(tl.int64) * dim
        real_TD = real_T[:, None] & (d_D < dim)[None, :]
        tl.store(dhidden_ND + row_T[:, None] + d_D[None, :], dhidden_TD.to(dhidden_ND.dtype.element_ty), mask=real_TD)


@triton.jit
def _slab_kernel(
    hidden_ND, slab_CSD, bias_CS, slot_N, order_N, begin_C, size_C, log_sum_N, dnll_N, dslab_CSD, dbias_CS, width, dim,
    BIASED: tl.constexpr, T: tl.constexpr, B: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    cluster = tl.program_id(0)
    slot_B = tl.program_id(1) * B + tl.arange(0, B)
    begin, end = tl.load(begin_C + cluster), tl.load(begin_C + cluster + 1)
    size = tl.load(size_C + cluster).to(tl.int32)
    d_D = tl.arange(0, D)
    dwords_BD = tl.zeros((B, D), tl.float32)
    dadded_B = tl.zeros((B,), tl.float32)
    if (begin < end) & (tl.program_id(1) * B < size):
        words_BD, added_B = _words(slab_CSD, bias_CS, cluster, slot_B, size, width, dim, d_D, BIASED)
        for start in range(begin, end, T):
            place_T = start + tl.arange(0, T)
            real_T = place_T < end
            token_T, slot_T, hidden_TD = _tokens(order_N, hidden_ND, slot_N, place_T, end, dim, d_D)
            log_sum_T = tl.load(log_sum_N + token_T, mask=real_T, other=0.0)
            dnll_T = tl.load(dnll_N + token_T, mask=real_T, other=0.0)
            scores_BT = tl.dot(words_BD, tl.trans(hidden_TD), input_precision=PRECISION) + added_B[:, None]
            # A place without a token has a score, too, but no gradient.
            shift_T = tl.where(real_T, log_sum_T, float("inf"))
            dscores_BT = tl.exp(scores_BT - shift_T[None, :]) - (slot_B[:, None] == slot_T[None, :]).to(tl.float32)
            dscores_BT = dscores_BT * dnll_T[None, :]
            dadded_B += tl.sum(dscores_BT, 1)
            dwords_BD = tl.dot(dscores_BT.to(hidden_TD.dtype), hidden_TD, dwords_BD, input_precision=PRECISION)
    row_B = cluster.to(tl.int64) * width + slot_B
    real_BD = (slot_B < width)[:, None] & (d_D < dim)[None, :]
    tl.store(dslab_CSD + row_B[:, None] * dim + d_D[None, :], dwords_BD.to(dslab_CSD.dtype.element_ty), mask=real_BD)
    if BIASED:
        tl.store(dbias_CS + row_B, dadded_B.to(dbias_CS.dtype.element_ty), mask=slot_B < width)


def _launched_with(slab_CSD: Tensor, bias_CS: Tensor | None) -> dict[str, object]:
    dim, dtype = slab_CSD.shape[2], slab_CSD.dtype
    columns = max(16, triton.next_power_of_2(dim))
    tf32 = dtype == torch.float32 and slab_CSD.is_cuda and torch.backends.cuda.matmul.allow_tf32
    return {
        "BIASED": bias_CS is not None,
        "T": 16 if dtype == torch.float32 else 32,  # tokens of a tile: more of float32 leave the registers
        "B": min(64, max(16, _BLOCK_BYTES // (columns * dtype.itemsize))),
        "D": columns,
        "PRECISION": "tf32" if tf32 else "ieee",
    }


class _InClusterNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, slab_CSD, bias_CS, cluster_N, slot_N, size_C) -> Tensor:  # type: ignore[override]
        tokens, (clusters, width, dim) = len(hidden_ND), slab_CSD.shape
        cast_ND = hidden_ND.to(slab_CSD.dtype).contiguous()
        order_N = slot_N.new_empty(tokens, dtype=torch.int32)
        begin_C = slot_N.new_empty(clusters + 1, dtype=torch.int32)
        log_sum_N = cast_ND.new_empty(tokens, dtype=torch.float32)
        nll_N = torch.empty_like(log_sum_N)
        batch = slot_N, order_N, begin_C, size_C, log_sum_N
        biases = slab_CSD if bias_CS is None else bias_CS  # never read where there are none
        _sort_kernel[(clusters,)](cluster_N, order_N, begin_C, tokens, clusters, BLOCK=_SORTED)
        _forward_kernel[(clusters, _PROGRAMS)](
            cast_ND, slab_CSD, biases, *batch, nll_N, width, dim, **_launched_with(slab_CSD, bias_CS)
        )
        ctx.save_for_backward(cast_ND, slab_CSD, bias_CS, *batch)
        ctx.hidden_dtype = hidden_ND.dtype
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        hidden_ND, slab_CSD, bias_CS, *batch = ctx.saved_tensors
        clusters, width, dim = slab_CSD.shape
        launched = _launched_with(slab_CSD, bias_CS)
        dhidden_ND, dslab_CSD = torch.empty_like(hidden_ND), torch.empty_like(slab_CSD)
        dbias_CS = None if bias_CS is None else torch.empty_like(bias_CS)
        biases, dbiases = (slab_CSD, dslab_CSD) if bias_CS is None else (bias_CS, dbias_CS)
        inputs = hidden_ND, slab_CSD, biases, *batch, dnll_N.contiguous()
        _hidden_kernel[(clusters, _PROGRAMS)](*inputs, dhidden_ND, width, dim, **launched)
        _slab_kernel[(clusters, triton.cdiv(width, launched["B"]))](*inputs, dslab_CSD, dbiases, width, dim, **launched)
        return dhidden_ND.to(ctx.hidden_dtype), dslab_CSD, dbias_CS, None, None, None


def in_cluster_nll(
    hidden_ND: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, cluster_N: Tensor, slot_N: Tensor, size_C: Tensor
) -> Tensor:
    """What `_clusters.in_cluster_nll` gives, for float32 and half precision, of up to a few thousand dimensions."""
    return _InClusterNll.apply(hidden_ND, slab_CSD, bias_CS, cluster_N, slot_N, size_C)  # type: ignore[return-value]
