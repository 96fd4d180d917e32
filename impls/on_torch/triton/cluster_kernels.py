"""The softmax within a word's cluster by Triton kernels: few launches for a whole layer, and each word is read once.

In the forward pass a program takes a tile of a cluster's tokens through the cluster's words. While these are in on-chip
memory, it sums the exponentials and the words weighted with them, which give the gradient with respect to the hidden
vectors; the backward pass only scales that. The scores (N, S), small beside the words, are kept: the backward pass
computes the gradient with respect to the words from them and reads no word again. Each sum is computed by one program
in a fixed order, without atomic additions, so that results are deterministic. Empty slots and clusters without tokens
are not read; their gradients are written as zeros.
"""

# Where Triton is not installed, kernels look like plain functions, which take no grid.
# pyright: reportIndexIssue=false

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from vocabench.impls.on_torch.ops.once import once_differentiable

# The fastest sizes on an H200 for 44,000 and 256,000 words of width 512, in bfloat16 and TF32, among 16 to 32 tokens,
# 16 to 128 words, 1 to 8 blocks and 4 to 8 warps. A cluster has a dozen tokens or fewer.
_TOKENS = 16  # tokens of a tile
_BLOCKS = 8  # blocks of words that a program multiplies with one tile of tokens
_PROGRAMS = 32  # programs of a cluster, which share the tiles of its tokens
_SORTED = 1024  # tokens that the sort reads at a time
_PLACED = 128  # tokens whose place a program looks up


@triton.jit
def _places_kernel(cluster_V, slot_V, target_N, cluster_N, slot_N, tokens, vocab, BLOCK: tl.constexpr):
    token_B = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real_B = token_B < tokens
    target_B = tl.load(target_N + token_B, mask=real_B, other=0)
    known_B = (
        real_B & (target_B >= 0) & (target_B < vocab)
    )  # an out-of-vocabulary target has no cluster, and its loss is NaN
    tl.store(cluster_N + token_B, tl.load(cluster_V + target_B, mask=known_B, other=-1), mask=real_B)
    tl.store(slot_N + token_B, tl.load(slot_V + target_B, mask=known_B, other=0), mask=real_B)


@triton.jit
def _sort_kernel(cluster_N, order_N, begin_C, tokens, clusters, BLOCK: tl.constexpr):
    """Write the tokens of each cluster in order, and where they begin; begin_C has one more element."""
    cluster = tl.program_id(0)
    places_B = tl.arange(0, BLOCK)
    before = 0
    for start in range(0, tokens, BLOCK):
        cluster_B = tl.load(cluster_N + start + places_B, mask=start + places_B < tokens, other=clusters)
        before += tl.sum((cluster_B < cluster).to(tl.int32))
    tl.store(begin_C + cluster, before)
    for start in range(0, tokens, BLOCK):
        cluster_B = tl.load(cluster_N + start + places_B, mask=start + places_B < tokens, other=clusters)
        is_member_B = cluster_B == cluster
        one_B = is_member_B.to(tl.int32)
        tl.store(order_N + before + tl.cumsum(one_B) - 1, start + places_B, mask=is_member_B)
        before += tl.sum(one_B)
    if cluster == clusters - 1:
        tl.store(begin_C + clusters, tokens)


@triton.jit
def _forward_kernel(
    hidden_ND, slab_CSD, bias_CS, slot_N, order_N, begin_C, size_C, log_sum_N, nll_N, scores_NS, dhidden_ND, width, dim,
    BIASED: tl.constexpr, DIFFERENTIATED: tl.constexpr, T: tl.constexpr, B: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    cluster = tl.program_id(0)
    end, size = tl.load(begin_C + cluster + 1), tl.load(size_C + cluster).to(tl.int32)
    first = tl.load(begin_C + cluster) + tl.program_id(1) * T
    d_D = tl.arange(0, D)
    real_D = d_D < dim
    for start in range(first, end, tl.num_programs(1) * T):
        place_T = start + tl.arange(0, T)
        real_T = place_T < end
        token_T = tl.load(order_N + place_T, mask=real_T, other=0).to(tl.int64)
        slot_T = tl.load(slot_N + token_T, mask=real_T, other=0)
        real_TD = real_T[:, None] & real_D[None, :]
        hidden_TD = tl.load(hidden_ND + token_T[:, None] * dim + d_D[None, :], mask=real_TD, other=0)
        highest_T = tl.full((T,), -float("inf"), tl.float32)
        others_T = tl.zeros((T,), tl.float32)  # the sum of all exponentials except the target's
        target_T = tl.zeros((T,), tl.float32)
        dhidden_TD = tl.zeros((T, D), tl.float32)
        for block in range(0, size, B):
            slot_B = block + tl.arange(0, B)
            real_B = slot_B < size
            row_B = cluster.to(tl.int64) * width + slot_B
            real_BD = real_B[:, None] & real_D[None, :]
            words_BD = tl.load(slab_CSD + row_B[:, None] * dim + d_D[None, :], mask=real_BD, other=0)
            if BIASED:
                added_B = tl.load(bias_CS + row_B, mask=real_B, other=-float("inf")).to(tl.float32)
            else:
                added_B = tl.where(real_B, 0.0, -float("inf"))
            scores_TB = tl.dot(hidden_TD, tl.trans(words_BD), input_precision=PRECISION) + added_B[None, :]
            is_target_TB = slot_T[:, None] == slot_B[None, :]
            # The first slot of a block holds a word, so the highest is finite.
            higher_T = tl.maximum(highest_T, tl.max(scores_TB, 1))
            kept_T = tl.exp(highest_T - higher_T)
            weights_TB = tl.where(is_target_TB, 0.0, tl.exp(scores_TB - higher_T[:, None]))
            others_T = others_T * kept_T + tl.sum(weights_TB, 1)
            target_T += tl.sum(tl.where(is_target_TB, scores_TB, 0.0), 1)
            highest_T = higher_T
            if DIFFERENTIATED:
                at_TB = scores_NS + token_T[:, None] * width + slot_B[None, :]
                tl.store(at_TB, scores_TB, mask=real_T[:, None] & real_B[None, :])
                weights_TB = weights_TB.to(words_BD.dtype)
                dhidden_TD = tl.dot(weights_TB, words_BD, dhidden_TD * kept_T[:, None], input_precision=PRECISION)
        sum_T = others_T + tl.exp(target_T - highest_T)
        log_sum_T = highest_T + tl.log(sum_T)
        tl.store(nll_N + token_T, log_sum_T - target_T, mask=real_T)
        if DIFFERENTIATED:
            tl.store(log_sum_N + token_T, log_sum_T, mask=real_T)
            row_T = cluster.to(tl.int64) * width + slot_T
            target_TD = tl.load(slab_CSD + row_T[:, None] * dim + d_D[None, :], mask=real_TD, other=0).to(tl.float32)
            # The weight of the target is its probability minus 1: minus the sum of all other probabilities.
            dhidden_TD = (dhidden_TD - others_T[:, None] * target_TD) / sum_T[:, None]
            tl.store(dhidden_ND + token_T[:, None] * dim + d_D[None, :], dhidden_TD, mask=real_TD)


@triton.jit
def _tokens_of(order_N, slot_N, log_sum_N, dnll_N, hidden_ND, first, end, d_D, dim, T: tl.constexpr):
    """Load a tile of a cluster's tokens from the sorted batch, for the gradients with respect to its words."""
    place_T = first + tl.arange(0, T)
    real_T = place_T < end
    token_T = tl.load(order_N + place_T, mask=real_T, other=0).to(tl.int64)
    slot_T = tl.load(slot_N + token_T, mask=real_T, other=-1)
    log_sum_T = tl.load(log_sum_N + token_T, mask=real_T, other=0.0)
    dnll_T = tl.load(dnll_N + token_T, mask=real_T, other=0.0)
    real_TD = real_T[:, None] & (d_D < dim)[None, :]
    hidden_TD = tl.load(hidden_ND + token_T[:, None] * dim + d_D[None, :], mask=real_TD, other=0)
    return token_T, real_T, slot_T, log_sum_T, dnll_T, hidden_TD


@triton.jit
def _dscores(scores_NS, token_T, real_T, slot_T, log_sum_T, dnll_T, slot_B, size, width):
    """Return (T, B) gradients with respect to the scores of tokens with words of their cluster; 0 in empty places."""
    at_TB = scores_NS + token_T[:, None] * width + slot_B[None, :]
    scores_TB = tl.load(at_TB, mask=real_T[:, None] & (slot_B < size)[None, :], other=-float("inf"))
    dscores_TB = tl.exp(scores_TB - log_sum_T[:, None]) - (slot_T[:, None] == slot_B[None, :]).to(tl.float32)
    return dscores_TB * dnll_T[:, None]


@triton.jit
def _store_words(dslab_CSD, dbias_CS, dwords_BD, dadded_B, cluster, slot_B, d_D, width, dim, BIASED: tl.constexpr):
    row_B = cluster.to(tl.int64) * width + slot_B
    real_BD = (slot_B < width)[:, None] & (d_D < dim)[None, :]
    tl.store(dslab_CSD + row_B[:, None] * dim + d_D[None, :], dwords_BD.to(dslab_CSD.dtype.element_ty), mask=real_BD)
    if BIASED:
        here_B = (slot_B < width) & (tl.program_id(2) == 0)
        tl.store(dbias_CS + row_B, dadded_B.to(dbias_CS.dtype.element_ty), mask=here_B)


@triton.jit
def _slab_kernel(
    hidden_ND, slot_N, order_N, begin_C, size_C, log_sum_N, scores_NS, dnll_N, dslab_CSD, dbias_CS, width, dim,
    BIASED: tl.constexpr, T: tl.constexpr, B: tl.constexpr, D: tl.constexpr, BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one block of a cluster's words, summed over the cluster's tokens.

    If the tokens fit into one tile, as in most clusters, a program loads them once for several blocks, and the programs
    of the other blocks do nothing.
    """
    cluster, block = tl.program_id(0), tl.program_id(1)
    d_D = tl.program_id(2) * D + tl.arange(0, D)
    begin, end = tl.load(begin_C + cluster), tl.load(begin_C + cluster + 1)
    size = tl.load(size_C + cluster).to(tl.int32)
    zeros_BD, zeros_B = tl.zeros((B, D), tl.float32), tl.zeros((B,), tl.float32)
    if end - begin <= T:
        if block % BLOCKS == 0:
            token_T, real_T, slot_T, log_sum_T, dnll_T, hidden_TD = _tokens_of(
                order_N, slot_N, log_sum_N, dnll_N, hidden_ND, begin, end, d_D, dim, T
            )
            for number in range(block, min(block + BLOCKS, tl.num_programs(1))):
                slot_B = number * B + tl.arange(0, B)
                dscores_TB = _dscores(scores_NS, token_T, real_T, slot_T, log_sum_T, dnll_T, slot_B, size, width)
                dscores_BT = tl.trans(dscores_TB.to(hidden_TD.dtype))
                dwords_BD = tl.dot(dscores_BT, hidden_TD, zeros_BD, input_precision=PRECISION)
                dadded_B = tl.sum(dscores_TB, 0)
                _store_words(dslab_CSD, dbias_CS, dwords_BD, dadded_B, cluster, slot_B, d_D, width, dim, BIASED)
    else:
        slot_B = block * B + tl.arange(0, B)
        dwords_BD, dadded_B = zeros_BD, zeros_B
        if block * B < size:
            for start in range(begin, end, T):
                token_T, real_T, slot_T, log_sum_T, dnll_T, hidden_TD = _tokens_of(
                    order_N, slot_N, log_sum_N, dnll_N, hidden_ND, start, end, d_D, dim, T
                )
                dscores_TB = _dscores(scores_NS, token_T, real_T, slot_T, log_sum_T, dnll_T, slot_B, size, width)
                dscores_BT = tl.trans(dscores_TB.to(hidden_TD.dtype))
                dwords_BD = tl.dot(dscores_BT, hidden_TD, dwords_BD, input_precision=PRECISION)
                dadded_B += tl.sum(dscores_TB, 0)
        _store_words(dslab_CSD, dbias_CS, dwords_BD, dadded_B, cluster, slot_B, d_D, width, dim, BIASED)


@triton.jit
def _scale_kernel(unscaled_ND, dnll_N, dhidden_ND, dim, D: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    d_D = tl.arange(0, D)
    dhidden_D = tl.load(unscaled_ND + token * dim + d_D, mask=d_D < dim) * tl.load(dnll_N + token)
    tl.store(dhidden_ND + token * dim + d_D, dhidden_D.to(dhidden_ND.dtype.element_ty), mask=d_D < dim)


def _tiles_forward(slab_CSD: Tensor) -> dict[str, int]:
    """Return the tokens, words and columns of a tile, which holds whole vectors, and the warps and pipeline stages.

    Wide vectors use the fewest words that a matrix unit takes, and a single stage, since there is no room for more.
    """
    columns = max(16, triton.next_power_of_2(slab_CSD.shape[2]))
    words = min(64, 2**15 // (columns * slab_CSD.dtype.itemsize))
    return {"T": _TOKENS, "B": max(16, words), "D": columns, "num_warps": 4, "num_stages": 3 if words >= 16 else 1}


def _tiles_backward(slab_CSD: Tensor) -> dict[str, int]:
    """Return the sizes of a tile for the gradients."""
    half, tf32 = slab_CSD.dtype.itemsize == 2, _precision(slab_CSD) == "tf32"
    columns = min(512 if half else 256 if tf32 else 128, max(16, triton.next_power_of_2(slab_CSD.shape[2])))
    return {"T": _TOKENS, "B": 16 if half or tf32 else 32, "D": columns, "BLOCKS": _BLOCKS, "num_warps": 4}


def _precision(slab_CSD: Tensor) -> str:
    tf32 = slab_CSD.dtype == torch.float32 and slab_CSD.is_cuda and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if tf32 else "ieee"


class _InClusterNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, slab_CSD, bias_CS, cluster_N, slot_N, size_C, differentiated) -> Tensor:  # type: ignore[override]
        tokens, (clusters, width, dim) = len(hidden_ND), slab_CSD.shape
        cast_ND = hidden_ND.to(slab_CSD.dtype).contiguous()
        order_N = slot_N.new_empty(tokens, dtype=torch.int32)
        begin_C = slot_N.new_empty(clusters + 1, dtype=torch.int32)
        nll_N = cast_ND.new_empty(tokens, dtype=torch.float32)
        kept = tokens if differentiated else 0
        log_sum_N, scores_NS, unscaled_ND = (nll_N.new_empty(kept, *shape) for shape in ((), (width,), (dim,)))
        batch = slot_N, order_N, begin_C, size_C
        _sort_kernel[(clusters,)](cluster_N, order_N, begin_C, tokens, clusters, BLOCK=_SORTED)
        _forward_kernel[(clusters, _PROGRAMS)](
            cast_ND, slab_CSD, _or(bias_CS, slab_CSD), *batch, log_sum_N, nll_N, scores_NS, unscaled_ND, width, dim,
            BIASED=bias_CS is not None, DIFFERENTIATED=differentiated, PRECISION=_precision(slab_CSD),
            **_tiles_forward(slab_CSD),
        )  # fmt: skip
        ctx.save_for_backward(cast_ND, slab_CSD, bias_CS, *batch, log_sum_N, scores_NS, unscaled_ND)
        ctx.hidden_dtype = hidden_ND.dtype
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        hidden_ND, slab_CSD, bias_CS, *batch, unscaled_ND = ctx.saved_tensors
        clusters, width, dim = slab_CSD.shape
        dnll_N = dnll_N.contiguous()
        dslab_CSD, tiles = torch.empty_like(slab_CSD), _tiles_backward(slab_CSD)
        dbias_CS = None if bias_CS is None else torch.empty_like(bias_CS)
        grid = clusters, triton.cdiv(width, tiles["B"]), triton.cdiv(dim, tiles["D"])
        _slab_kernel[grid](
            hidden_ND, *batch, dnll_N, dslab_CSD, _or(dbias_CS, dslab_CSD), width, dim,
            BIASED=bias_CS is not None, PRECISION=_precision(slab_CSD), **tiles,
        )  # fmt: skip
        return _scaled(unscaled_ND, dnll_N, ctx.hidden_dtype), dslab_CSD, dbias_CS, None, None, None, None


def _scaled(unscaled_ND: Tensor, dnll_N: Tensor, dtype: torch.dtype) -> Tensor:
    """Return each row times its factor, by a kernel: PyTorch's loads are not vectorized for broadcast factors."""
    (tokens, dim), dhidden_ND = unscaled_ND.shape, torch.empty_like(unscaled_ND, dtype=dtype)
    columns = triton.next_power_of_2(dim)
    _scale_kernel[(tokens,)](unscaled_ND, dnll_N, dhidden_ND, dim, D=columns, num_warps=max(1, columns // 256))
    return dhidden_ND


def _or(biases: Tensor | None, other: Tensor) -> Tensor:
    """Return the biases, or else another array, which is neither read nor written."""
    return other if biases is None else biases


def places(cluster_V: Tensor, slot_V: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same as `cluster_softmax.places`, by one kernel instead of PyTorch's two slower ones."""
    tokens = len(targets_N)
    cluster_N, slot_N = cluster_V.new_empty(tokens), slot_V.new_empty(tokens)
    given = cluster_V, slot_V, targets_N.contiguous(), cluster_N, slot_N
    _places_kernel[(triton.cdiv(tokens, _PLACED),)](*given, tokens, len(cluster_V), BLOCK=_PLACED)
    return cluster_N, slot_N


def in_cluster_nll(
    hidden_ND: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, cluster_N: Tensor, slot_N: Tensor, size_C: Tensor
) -> Tensor:
    """Return the same as `cluster_softmax.in_cluster_nll`, in float32 and half precision, for vectors that fit."""
    differentiated = torch.is_grad_enabled()
    target = cluster_N, slot_N, size_C
    return _InClusterNll.apply(hidden_ND, slab_CSD, bias_CS, *target, differentiated)  # type: ignore[return-value]
