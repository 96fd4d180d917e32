"""The softmax within a word's cluster, for tokens of many clusters at once: the expensive half of a two-level layer.

Tokens are sorted by cluster and words are stored by cluster (`words.py`), so that each cluster is one small dense
product and no cluster matrix is copied. The forms differ in how these products are computed:

- `F.grouped_mm` computes all of them in one call where it supports the dtype, including a slab's empty slots.
- A loop over the clusters skips empty slots and writes into slices of the same arrays. It makes more calls, but on a
  CPU it is faster where clusters are large and differ in size, as learned ones do. Its words may be stored end to end.
- Tiles have tokens of one cluster each and a copy of the cluster's matrix for every tile. This takes more memory, but
  only three batched products and no synchronization, which suits a GPU.
- Kernels of our own are the fastest: `cluster_kernels.py` on a GPU, and `impls/cpp` on a CPU with a compiler.

The gradient is written out: d loss / d logits is computed from the exponentials of the forward pass, and neither pass
keeps more than one (N, S) array.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabench.impls.cpp import CPP
from vocabench.impls.forms import CPU, Form, kind_of, on_device
from vocabench.impls.on_torch.ops import cpp_kernels, products
from vocabench.impls.on_torch.ops.once import once_differentiable
from vocabench.impls.on_torch.tensors import at_least_float32
from vocabench.impls.on_torch.tracing import cached, is_tracing
from vocabench.impls.on_torch.triton import availability
from vocabench.impls.on_torch.triton.availability import KERNELS
from vocabench.impls.on_torch.two_level.words import WordRows, empty_slots

_TILE = 32  # tokens
# Clusters of up to so many tokens, where words are the first factor of their products with few vectors and where
# vectors are.
_FEW = {True: 8, False: 4}
_LARGE = 2**16  # elements of a cluster's word vectors
# Bytes of shared memory that the kernels use for vectors of up to so many bytes, as Triton 3.6 compiles them for
# NVIDIA's architectures 8.0, 8.9 and 9.0. They hold sixteen words and as many hidden vectors at once.
_SHARED = {2**11: 99_392, 2**12: 163_840}

GROUPED = Form("grouped_mm", "grouped_mm", dtypes=("float32", "tf32", "bfloat16"))
LOOP = Form("loop", "loop over clusters", devices=(CPU,))  # waits for the device to count the tokens of each cluster
TILES = Form("tiles", f"tiles of {_TILE} tokens", size=_TILE)
END_TO_END = CPP, LOOP  # forms for which words need not be in a slab


def forms(slots: int, dim: int, dtype: torch.dtype) -> tuple[Form, ...]:
    """Return the forms for word vectors (dim,) of `dtype`, in order of preference for each kind of device.

    Kernels of our own come first where they exist. `F.grouped_mm` takes float32 and half precision with rows of whole
    16 bytes, and is faster than a loop where clusters are small.

    Args:
        slots: Slots of a cluster; 0 where the clusters' numbers of slots differ.
        dim: Width of the word vectors.
        dtype: Their precision.
    """
    operations = (LOOP, TILES)
    if _grouped_takes(dim, dtype):
        operations = (LOOP, GROUPED, TILES) if _prefers_loop(slots * dim, dtype) else (GROUPED, LOOP, TILES)
    if cpp_kernels.known(dtype):
        operations = (CPP, *operations)
    kernels = availability.known(dim, dtype) and dim * dtype.itemsize <= max(_SHARED)
    return (KERNELS, *operations) if kernels else operations


def _grouped_takes(dim: int, dtype: torch.dtype) -> bool:
    has_kernel = hasattr(F, "grouped_mm") and dtype in (torch.float32, torch.bfloat16, torch.float16)
    return has_kernel and dim * dtype.itemsize % 16 == 0


def _prefers_loop(elements: int, dtype: torch.dtype) -> bool:
    """Return whether a CPU prefers the loop for clusters with so many elements."""
    return dtype == torch.float32 and elements >= _LARGE


def preferred(forms: tuple[Form, ...], words: Tensor) -> Form:
    """Return the first of the forms that can compute with these words on their device."""
    return next(form for form in on_device(forms, kind_of(words.device.type)) if runs(form, words))


def runs(form: Form, words: Tensor) -> bool:
    """Return whether a form can compute with these words, which may have been moved or cast since it was listed."""
    if form == CPP:
        return cpp_kernels.runs_on(words)
    if form == KERNELS:
        return _kernels_fit(words)
    if form == GROUPED and words.is_cuda:
        return words.dtype == torch.bfloat16 and words.shape[-1] % 8 == 0  # all that PyTorch has a GPU kernel for
    return form != GROUPED or _grouped_takes(words.shape[-1], words.dtype)


def _kernels_fit(words: Tensor) -> bool:
    """Return whether the device has the shared memory for the kernels' vectors, padded to a power of two."""
    size = 2 ** (words.shape[-1] - 1).bit_length() * words.dtype.itemsize
    room = availability.shared_memory(words.device)
    return any(size <= widest and used <= room for widest, used in _SHARED.items())


def form_to_decode(form: Form, words: Tensor) -> Form:
    """Return the form for products with few rows.

    The Triton kernels are for training alone. On a CPU large clusters use the loop, which reads less.
    """
    if form == KERNELS:
        return next(other for other in (GROUPED, TILES) if runs(other, words))
    large = form == GROUPED and _prefers_loop(words[0].numel(), words.dtype)
    return LOOP if large and words.device.type == "cpu" else form


@dataclass(frozen=True)
class ByCluster:
    """A batch sorted by the cluster of its targets.

    Attributes:
        order_N: Position in the batch of each sorted token.
        cluster_N: Cluster of each sorted token's target.
        slot_N: Slot of each sorted token's target.
        ends_C: (C,) int32, one past the last sorted token of each cluster.
        rows: Where the words are stored.
        form: The form of the products with the words.
    """

    order_N: Tensor
    cluster_N: Tensor
    slot_N: Tensor
    ends_C: Tensor
    rows: WordRows
    form: Form

    @classmethod
    def of(cls, cluster_N: Tensor, slot_N: Tensor, rows: WordRows, form: Form) -> ByCluster:
        cluster_sorted_N, order_N = torch.sort(cluster_N, stable=True)
        clusters = torch.arange(len(rows.size_C), device=cluster_N.device)
        ends_C = torch.searchsorted(cluster_sorted_N, clusters, right=True).to(torch.int32)
        return cls(order_N, cluster_sorted_N, slot_N[order_N], ends_C, rows, form)

    @cached
    def runs(self) -> list[tuple[int, int]]:
        """Number of each cluster that has tokens, and how many it has."""
        ends = self.ends_C.tolist()
        return [run for run in enumerate(map(int.__sub__, ends, [0, *ends])) if run[1]]

    @cached
    def tokens(self) -> list[int]:
        """Number of tokens of each of the `runs`."""
        return [tokens for _, tokens in self.runs]

    @cached
    def tiles(self) -> tuple[Tensor, Tensor]:
        """(M, T) sorted tokens of the tiles, N in empty places, and (M,) cluster of each tile.

        The number of tiles is the most that the clusters could need, so that it is known without synchronization.
        """
        tokens, clusters = self.order_N.size(0), len(self.ends_C)
        ends_C = self.ends_C.long()
        sizes_C = ends_C.diff(prepend=ends_C.new_zeros(1))
        tiles_C = (sizes_C + _TILE - 1) // _TILE
        last_C = tiles_C.cumsum(0)
        most = -(-tokens // _TILE) + (clusters if is_tracing() else min(clusters, tokens))
        tile_M = torch.arange(most, device=ends_C.device)
        cluster_M = torch.searchsorted(last_C, tile_M, right=True).clamp_(max=clusters - 1)
        before_M = tile_M - (last_C - tiles_C)[cluster_M]  # tiles of the cluster before this one
        token_MT = ((ends_C - sizes_C)[cluster_M] + before_M * _TILE)[:, None] + torch.arange(
            _TILE, device=ends_C.device
        )
        return token_MT.where(token_MT < ends_C[cluster_M][:, None], tokens), cluster_M


def scores(hidden_RD: Tensor, row_N: Tensor, words: Tensor, bias: Tensor | None, batch: ByCluster) -> Tensor:
    """Return the (N, S) scores of each sorted token with the words of its cluster, at least in float32.

    Empty slots have -inf.

    Args:
        hidden_RD: Vectors in the words' dtype.
        row_N: The row of `hidden_RD` of each sorted token.
        words: Word vectors (C, S, D) or (V, D), as described by `batch.rows`.
        bias: Word biases (C, S) or (V,), or None.
        batch: The tokens.
    """
    rows = batch.rows
    if batch.form != CPP:
        scores_NS = at_least_float32(_products_of(hidden_RD[row_N], words, batch))
        if bias is not None:
            scores_NS = scores_NS + rows.by_slot(rows.flat(bias))[batch.cluster_N]
        return scores_NS.masked_fill_(empty_slots(rows.size_C[batch.cluster_N], rows.slots), -torch.inf)
    return cpp_kernels.scores(hidden_RD, row_N, words, bias, batch.ends_C, rows)


def _products_of(hidden_ND: Tensor, words: Tensor, batch: ByCluster) -> Tensor:
    """Return the (N, S) products of sorted tokens with the words of their clusters."""
    if batch.form == GROUPED:
        return F.grouped_mm(hidden_ND, words.transpose(1, 2), offs=batch.ends_C)
    if batch.form == TILES:
        token_MT, cluster_M = batch.tiles
        scores_MTS = torch.bmm(_in_tiles(hidden_ND, token_MT), words[cluster_M].transpose(1, 2))
        return _from_tiles(scores_MTS, token_MT, hidden_ND.size(0))
    scores_NS = hidden_ND.new_zeros(len(hidden_ND), batch.rows.slots)
    by_run = hidden_ND.split(batch.tokens), scores_NS.split(batch.tokens)
    few = _FEW[products.words_first()]
    for (cluster, tokens), hidden_MD, scores_MF in zip(batch.runs, *by_run, strict=True):
        words_SD = batch.rows.of_cluster(words, cluster)
        scores_MS = scores_MF.narrow(1, 0, len(words_SD))
        if tokens > few:
            torch.mm(hidden_MD, words_SD.t(), out=scores_MS)
        else:
            scores_MS.copy_(products.of_few(hidden_MD, words_SD))
    return scores_NS


def _back(dscores_NS: Tensor, hidden_ND: Tensor, words: Tensor, batch: ByCluster) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to the hidden vectors (N, D), both in the order of the batch, and the words."""
    dsorted_ND, dwords = _back_sorted(dscores_NS, hidden_ND[batch.order_N], words, batch)
    dhidden_ND = torch.empty_like(dsorted_ND)
    dhidden_ND[batch.order_N] = dsorted_ND
    return dhidden_ND, dwords


def _back_sorted(dscores_NS: Tensor, hidden_ND: Tensor, words: Tensor, batch: ByCluster) -> tuple[Tensor, Tensor]:
    """Return the same gradients as `_back`, for sorted hidden vectors."""
    if batch.form == GROUPED:
        dhidden_ND = F.grouped_mm(dscores_NS, words, offs=batch.ends_C)
        return dhidden_ND, F.grouped_mm(dscores_NS.T, hidden_ND, offs=batch.ends_C)
    if batch.form == TILES:
        token_MT, cluster_M = batch.tiles
        dscores_MTS, hidden_MTD = _in_tiles(dscores_NS, token_MT), _in_tiles(hidden_ND, token_MT)
        dhidden_ND = _from_tiles(torch.bmm(dscores_MTS, words[cluster_M]), token_MT, hidden_ND.size(0))
        dwords_MSD = at_least_float32(torch.bmm(dscores_MTS.transpose(1, 2), hidden_MTD))
        return dhidden_ND, dwords_MSD.new_zeros(words.shape).index_add_(0, cluster_M, dwords_MSD).to(words.dtype)
    dhidden_ND, dwords = torch.empty_like(hidden_ND), torch.empty_like(words)
    sorted_by_run = (sorted_NX.split(batch.tokens) for sorted_NX in (dscores_NS, hidden_ND, dhidden_ND))
    dwords_FD, done = batch.rows.flat(dwords), 0
    for (cluster, _), dscores_MF, hidden_MD, dhidden_MD in zip(batch.runs, *sorted_by_run, strict=True):
        start, words_SD = batch.rows.starts[cluster], batch.rows.of_cluster(words, cluster)
        dscores_MS = dscores_MF.narrow(1, 0, len(words_SD))
        torch.mm(dscores_MS, words_SD, out=dhidden_MD)
        torch.mm(dscores_MS.t(), hidden_MD, out=dwords_FD.narrow(0, start, len(words_SD)))
        if start > done:
            dwords_FD.narrow(0, done, start - done).zero_()
        done = start + len(words_SD)
    dwords_FD.narrow(0, done, len(dwords_FD) - done).zero_()
    return dhidden_ND, dwords


def _in_tiles(rows_NX: Tensor, token_MT: Tensor) -> Tensor:
    """Return the (M, T, X) rows of the tiles' tokens, zeros in empty places."""
    return torch.cat([rows_NX, rows_NX.new_zeros(1, rows_NX.shape[1])])[token_MT]


def _from_tiles(rows_MTX: Tensor, token_MT: Tensor, tokens: int) -> Tensor:
    """Return the (N, X) row of each token."""
    rows_NX = rows_MTX.new_empty(tokens + 1, rows_MTX.shape[2])  # the last row receives the values of empty places
    rows_NX[token_MT] = rows_MTX
    return rows_NX[:-1]


class _InClusterNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, words, bias, batch: ByCluster) -> Tensor:  # type: ignore[override]
        cast_ND = hidden_ND.to(words.dtype)
        scores_NS = scores(cast_ND, batch.order_N, words, bias, batch)
        below_NS = scores_NS.sub_(scores_NS.amax(dim=1, keepdim=True))
        target_N = below_NS.gather(1, batch.slot_N[:, None])[:, 0]
        exp_NS = below_NS.exp_()
        sum_N = exp_NS.sum(dim=1)
        ctx.save_for_backward(cast_ND, words, bias, exp_NS, sum_N)
        ctx.batch, ctx.hidden_dtype = batch, hidden_ND.dtype
        nll_N = torch.empty_like(sum_N)
        nll_N[batch.order_N] = sum_N.log() - target_N
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        hidden_ND, words, bias, exp_NS, sum_N = ctx.saved_tensors
        batch: ByCluster = ctx.batch
        dsorted_N = dnll_N[batch.order_N]
        dscores_NS = exp_NS * (dsorted_N / sum_N)[:, None]
        dscores_NS.scatter_add_(1, batch.slot_N[:, None], -dsorted_N[:, None])
        dbias = None
        if bias is not None:
            dbias_CS = dscores_NS.new_zeros(len(batch.ends_C), batch.rows.slots)
            dbias_CS.index_add_(0, batch.cluster_N, dscores_NS)
            dbias = batch.rows.from_slots(dbias_CS).to(bias.dtype)
        dhidden_ND, dwords = _back(dscores_NS.to(words.dtype), hidden_ND, words, batch)
        return dhidden_ND.to(ctx.hidden_dtype), dwords, dbias, None


class _NllByKernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, words, bias, batch: ByCluster, differentiated: bool) -> Tensor:  # type: ignore[override]
        cast_ND = hidden_ND.to(words.dtype)
        tokens = cast_ND, batch.order_N, batch.slot_N
        losses_N, excess_NS, dhidden_ND = cpp_kernels.losses(
            *tokens, words, bias, batch.ends_C, batch.rows, differentiated=differentiated
        )
        ctx.save_for_backward(cast_ND, words, bias, excess_NS, dhidden_ND)
        ctx.batch, ctx.hidden_dtype = batch, hidden_ND.dtype
        return torch.empty_like(losses_N).index_copy_(0, batch.order_N, losses_N)

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        hidden_ND, words, bias, excess_NS, dhidden_ND = ctx.saved_tensors
        order_N, batch = ctx.batch.order_N, ctx.batch
        tokens = dnll_N[order_N], hidden_ND, order_N
        dwords, dbias = cpp_kernels.gradients(excess_NS, *tokens, words, bias, batch.ends_C, batch.rows)
        return (dhidden_ND * dnll_N[:, None]).to(ctx.hidden_dtype), dwords, dbias, None, None


def places(cluster_V: Tensor, slot_V: Tensor, targets_N: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """Return the cluster and the slot (N,) of each target.

    Args:
        cluster_V: Cluster of each word.
        slot_V: Slot of each word.
        targets_N: Word ids.
        form: The form of the layer.
    """
    if form == KERNELS:
        from vocabench.impls.on_torch.triton import cluster_kernels  # imports Triton, which may not be installed

        return cluster_kernels.places(cluster_V, slot_V, targets_N)
    return cluster_V[targets_N], slot_V[targets_N]


def in_cluster_nll(
    hidden_ND: Tensor,
    words: Tensor,
    bias: Tensor | None,
    cluster_N: Tensor,
    slot_N: Tensor,
    rows: WordRows,
    form: Form,
) -> Tensor:
    """Return the (N,) negative log-likelihood of each target among the words of its cluster, in nats.

    Args:
        hidden_ND: (N, D).
        words: Word vectors (C, S, D) or (V, D), as described by `rows`; in a slab except for `END_TO_END`.
        bias: Word biases (C, S) or (V,), or None.
        cluster_N: Cluster of each target.
        slot_N: Slot of each target.
        rows: Where the words are stored.
        form: The form of the layer.
    """
    if form == KERNELS:
        from vocabench.impls.on_torch.triton import cluster_kernels

        return cluster_kernels.in_cluster_nll(hidden_ND, words, bias, cluster_N, slot_N, rows.size_C)
    if is_tracing() and form != CPP:  # a trace does not know how many tokens a cluster has, which tiles need not
        words, bias, rows = _in_slab(words, bias, rows)
        form = TILES
    batch = ByCluster.of(cluster_N, slot_N, rows, form)
    if form == CPP:
        return _NllByKernels.apply(hidden_ND, words, bias, batch, torch.is_grad_enabled())  # type: ignore[return-value]
    return _InClusterNll.apply(hidden_ND, words, bias, batch)  # type: ignore[return-value]


def _in_slab(words: Tensor, bias: Tensor | None, rows: WordRows) -> tuple[Tensor, Tensor | None, WordRows]:
    """Return words and biases as a slab."""
    if rows.in_slab:
        return words, bias, rows
    size = len(rows.size_C), rows.slots
    slab, bias_CS = words[rows.row_F].unflatten(0, size), None if bias is None else bias[rows.row_F].view(size)
    return slab, bias_CS, WordRows.of(rows.size_C, rows.slots, in_slab=True)
