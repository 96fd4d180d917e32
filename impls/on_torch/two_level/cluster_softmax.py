"""The softmax within a word's cluster, for tokens of many clusters at once: the costly half of a two-level layer.

Tokens are sorted by cluster and words are stored by cluster (`word_rows.py`), so that each cluster is one small dense
product and no cluster matrix is ever copied. `F.grouped_mm` runs all of them in one call where it knows the dtype,
through a slab's slots that hold no word as well. A loop over the clusters leaves those out and writes into slices of
the same arrays: more calls, and on a CPU the faster where clusters are large and differ in size, as learned ones do;
its words may lie end to end. A third form cuts the tokens into tiles of one cluster each and copies the cluster's
matrix for every tile: more memory, but three batched products in all and nothing that waits for the device, which suits
a GPU. The gradient is written out: d loss / d logits is made of the exponentials of the forward pass, and neither pass
keeps more than one (N, S) array. The fastest forms are kernels of our own: on a GPU those of
`cluster_kernels.py`, on a CPU, where there is a compiler, those of `impls/cpp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vocabench.impls.cpp import CPP
from vocabench.impls.on_torch.layer import at_least_float32
from vocabench.impls.on_torch.ops import cpp_kernels, products
from vocabench.impls.on_torch.triton import availability
from vocabench.impls.on_torch.triton.availability import KERNELS
from vocabench.impls.on_torch.two_level.word_rows import WordRows, empty_slots

GROUPED, LOOP = "grouped_mm", "loop over clusters"
END_TO_END = CPP, LOOP  # forms for which words need not lie in a slab
_TILE = 32  # tokens
_FEW = {True: 8, False: 4}  # tokens, where words go first in their products with few vectors and where vectors do
_LARGE = 2**16  # numbers of a cluster's word vectors
# Bytes of the chip's own memory that the kernels take for vectors of up to so many bytes, as Triton 3.6 compiles them
# for NVIDIA's architectures 8.0, 8.9 and 9.0: they hold sixteen words and as many hidden vectors at once.
_SHARED = {2**11: 99_392, 2**12: 163_840}
TILES = f"tiles of {_TILE} tokens"


def forms(slots: int, dim: int, dtype: torch.dtype) -> tuple[str, ...]:
    """The forms for word vectors (D,) of `dtype`, the fastest on a CPU first: kernels of our own where there are any.
    `F.grouped_mm` takes float32 and half precision, rows of whole 16 bytes, and is faster than a loop where clusters
    are small.

    Args:
        slots: Of a cluster; 0 where their numbers differ.
    """
    own = (LOOP, TILES)
    if _grouped_takes(dim, dtype):
        own = (LOOP, GROUPED, TILES) if _prefers_loop(slots * dim, dtype) else (GROUPED, LOOP, TILES)
    if cpp_kernels.known(dtype):
        own = (CPP, *own)
    kernels = availability.known(dim, dtype) and dim * dtype.itemsize <= max(_SHARED)
    return (*own, KERNELS) if kernels else own


def _grouped_takes(dim: int, dtype: torch.dtype) -> bool:
    known = hasattr(F, "grouped_mm") and dtype in (torch.float32, torch.bfloat16, torch.float16)
    return known and dim * dtype.itemsize % 16 == 0


def _prefers_loop(numbers: int, dtype: torch.dtype) -> bool:
    """Whether clusters of so many numbers are the loop's on a CPU."""
    return dtype == torch.float32 and numbers >= _LARGE


def form_of(asked: str, known: Sequence[str], slab_CSD: Tensor) -> str:
    """The form asked for; else, of those known, the first, and on a GPU the kernels where it has room for them.

    Args:
        slab_CSD: The words; end to end where the form asked for is one of `END_TO_END`.
    """
    if asked:
        return asked
    if slab_CSD.is_cuda:
        return KERNELS if KERNELS in known and _kernels_fit(slab_CSD) else _without_kernels(slab_CSD)
    return next(form for form in known if _takes(form, slab_CSD))


def _takes(form: str, slab_CSD: Tensor) -> bool:
    """Whether a form is one for these words, which may have been moved since the forms for them were asked for."""
    if form == CPP:
        return cpp_kernels.runs_on(slab_CSD)
    return form != GROUPED or _grouped_takes(slab_CSD.shape[-1], slab_CSD.dtype)


def _kernels_fit(slab_CSD: Tensor) -> bool:
    """Whether the device has room for what the kernels hold of vectors (D,), padded to a power of two."""
    size = 2 ** (slab_CSD.shape[-1] - 1).bit_length() * slab_CSD.dtype.itemsize
    room = availability.shared_memory(slab_CSD.device)
    return any(size <= widest and taken <= room for widest, taken in _SHARED.items())


def _without_kernels(slab_CSD: Tensor) -> str:
    """The form for a GPU beside the kernels: there PyTorch has grouped products in bfloat16 alone."""
    return GROUPED if slab_CSD.dtype == torch.bfloat16 and slab_CSD.shape[-1] % 8 == 0 else TILES


def form_to_decode(form: str, slab_CSD: Tensor) -> str:
    """The form for products of few rows: of large clusters, on a CPU, the loop, which has the less to read. The kernels
    are of training alone."""
    if form == KERNELS:
        return _without_kernels(slab_CSD)
    large = form == GROUPED and _prefers_loop(slab_CSD[0].numel(), slab_CSD.dtype)
    return LOOP if large and slab_CSD.device.type == "cpu" else form


@dataclass(frozen=True)
class ByCluster:
    """A batch sorted by the cluster of its targets.

    Attributes:
        order_N: Positions in the batch, sorted.
        cluster_N, slot_N: Of the sorted tokens' targets.
        ends_C: (C,) int32: one past the last sorted token of each cluster.
        rows: Of the words.
        form: One of `forms`, for the products with them.
    """

    order_N: Tensor
    cluster_N: Tensor
    slot_N: Tensor
    ends_C: Tensor
    rows: WordRows
    form: str

    @classmethod
    def of(cls, cluster_N: Tensor, slot_N: Tensor, rows: WordRows, form: str) -> ByCluster:
        cluster_sorted_N, order_N = torch.sort(cluster_N, stable=True)
        every = torch.arange(len(rows.size_C), device=cluster_N.device)
        ends_C = torch.searchsorted(cluster_sorted_N, every, right=True).to(torch.int32)
        return cls(order_N, cluster_sorted_N, slot_N[order_N], ends_C, rows, form)

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """Of each cluster that has tokens: its number, and how many."""
        ends = self.ends_C.tolist()
        return [run for run in enumerate(map(int.__sub__, ends, [0, *ends])) if run[1]]

    @cached_property
    def tokens(self) -> list[int]:
        """Of each of the `runs`."""
        return [tokens for _, tokens in self.runs]

    @cached_property
    def tiles(self) -> tuple[Tensor, Tensor]:
        """(M, T) the sorted tokens of tiles, N where a place is empty, and (M,) the cluster of each tile.

        There are as many as the clusters could need at most, so that nobody waits for the device to count them.
        """
        tokens, clusters = len(self.order_N), len(self.ends_C)
        ends_C = self.ends_C.long()
        sizes_C = ends_C.diff(prepend=ends_C.new_zeros(1))
        tiles_C = (sizes_C + _TILE - 1) // _TILE
        last_C = tiles_C.cumsum(0)
        tile_M = torch.arange(-(-tokens // _TILE) + min(clusters, tokens), device=ends_C.device)
        cluster_M = torch.searchsorted(last_C, tile_M, right=True).clamp_(max=clusters - 1)
        before_M = tile_M - (last_C - tiles_C)[cluster_M]  # tiles of the cluster before this one
        token_MT = ((ends_C - sizes_C)[cluster_M] + before_M * _TILE)[:, None] + torch.arange(
            _TILE, device=ends_C.device
        )
        return token_MT.where(token_MT < ends_C[cluster_M][:, None], tokens), cluster_M


def scores(hidden_RD: Tensor, row_N: Tensor, words: Tensor, bias: Tensor | None, batch: ByCluster) -> Tensor:
    """(N, S) of each sorted token with the words of its cluster, in float32 at least; -inf in an empty slot.

    Args:
        hidden_RD: Vectors in the words' dtype.
        row_N: Which of them is each sorted token's.
        words: (C, S, D) or (V, D) word vectors, as `batch.rows` has it.
        bias: (C, S) or (V,) word biases, or None.
        batch: Of these tokens.
    """
    rows = batch.rows
    if batch.form == CPP:
        return cpp_kernels.scores(hidden_RD, row_N, words, bias, batch.ends_C, rows)
    scores_NS = at_least_float32(_products_of(hidden_RD[row_N], words, batch))
    if bias is not None:
        scores_NS = scores_NS + rows.by_slot(rows.flat(bias))[batch.cluster_N]
    return scores_NS.masked_fill_(empty_slots(rows.size_C[batch.cluster_N], rows.slots), -torch.inf)


def _products_of(hidden_ND: Tensor, words: Tensor, batch: ByCluster) -> Tensor:
    """(N, S) of sorted tokens with the words of their clusters."""
    if batch.form == GROUPED:
        return F.grouped_mm(hidden_ND, words.transpose(1, 2), offs=batch.ends_C)
    if batch.form == TILES:
        token_MT, cluster_M = batch.tiles
        scores_MTS = torch.bmm(_in_tiles(hidden_ND, token_MT), words[cluster_M].transpose(1, 2))
        return _from_tiles(scores_MTS, token_MT, len(hidden_ND))
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
    """Gradients by the hidden vectors (N, D), in the order of the batch as those are, and by the words, in the shape of
    these."""
    dsorted_ND, dwords = _back_sorted(dscores_NS, hidden_ND[batch.order_N], words, batch)
    dhidden_ND = torch.empty_like(dsorted_ND)
    dhidden_ND[batch.order_N] = dsorted_ND
    return dhidden_ND, dwords


def _back_sorted(dscores_NS: Tensor, hidden_ND: Tensor, words: Tensor, batch: ByCluster) -> tuple[Tensor, Tensor]:
    """As `_back`, of sorted hidden vectors."""
    if batch.form == GROUPED:
        dhidden_ND = F.grouped_mm(dscores_NS, words, offs=batch.ends_C)
        return dhidden_ND, F.grouped_mm(dscores_NS.T, hidden_ND, offs=batch.ends_C)
    if batch.form == TILES:
        token_MT, cluster_M = batch.tiles
        dscores_MTS, hidden_MTD = _in_tiles(dscores_NS, token_MT), _in_tiles(hidden_ND, token_MT)
        dhidden_ND = _from_tiles(torch.bmm(dscores_MTS, words[cluster_M]), token_MT, len(hidden_ND))
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
    """(M, T, X) the rows of the tiles' tokens, zeros in empty places."""
    return torch.cat([rows_NX, rows_NX.new_zeros(1, rows_NX.shape[1])])[token_MT]


def _from_tiles(rows_MTX: Tensor, token_MT: Tensor, tokens: int) -> Tensor:
    """(N, X) each token's row."""
    rows_NX = rows_MTX.new_empty(tokens + 1, rows_MTX.shape[2])  # what empty places hold goes to the last
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
    def forward(ctx, hidden_ND, words, bias, batch: ByCluster, learns: bool) -> Tensor:  # type: ignore[override]
        cast_ND = hidden_ND.to(words.dtype)
        tokens = cast_ND, batch.order_N, batch.slot_N
        losses_N, excess_NS, dhidden_ND = cpp_kernels.losses(
            *tokens, words, bias, batch.ends_C, batch.rows, learns=learns
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


def places(cluster_V: Tensor, slot_V: Tensor, targets_N: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """(N,) the cluster and (N,) the slot of each target.

    Args:
        cluster_V, slot_V: Of each word.
        targets_N: Word ids.
        form: One of `forms`.
    """
    if form == KERNELS:
        from vocabench.impls.on_torch.triton import cluster_kernels  # imports Triton, which not every installation has

        return cluster_kernels.places(cluster_V, slot_V, targets_N)
    return cluster_V[targets_N], slot_V[targets_N]


def in_cluster_nll(
    hidden_ND: Tensor,
    words: Tensor,
    bias: Tensor | None,
    cluster_N: Tensor,
    slot_N: Tensor,
    rows: WordRows,
    form: str,
) -> Tensor:
    """(N,) negative log-likelihood of each target among the words of its cluster, in nats.

    Args:
        hidden_ND: (N, D).
        words: (C, S, D) or (V, D) word vectors, as `rows` has it; for all forms but `END_TO_END` in a slab.
        bias: (C, S) or (V,) word biases, or None.
        cluster_N, slot_N: Where the target words stand.
        rows: Of the words.
        form: One of `forms`.
    """
    if form == KERNELS:
        from vocabench.impls.on_torch.triton import cluster_kernels

        return cluster_kernels.in_cluster_nll(hidden_ND, words, bias, cluster_N, slot_N, rows.size_C)
    batch = ByCluster.of(cluster_N, slot_N, rows, form)
    if form == CPP:
        return _NllByKernels.apply(hidden_ND, words, bias, batch, torch.is_grad_enabled())  # type: ignore[return-value]
    return _InClusterNll.apply(hidden_ND, words, bias, batch)  # type: ignore[return-value]
