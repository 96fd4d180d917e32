"""Adaptive softmax in PyTorch. See `impls/on_numpy/methods/adaptive_softmax.py` for the definition."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls import cpp
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.ops import cpp_kernels, products
from vocabench.impls.on_torch.ops.once import once_differentiable
from vocabench.impls.on_torch.ops.topk import best, exact_topk
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, Tensors, at_least_float32, draw
from vocabench.impls.on_torch.tracing import is_tracing
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures.cutoffs import Bands


class _LinearNll(torch.autograd.Function):
    """(N,) cross-entropy of the products h W^T (N, S).

    The backward pass overwrites the scores with their gradient, whereas `F.cross_entropy` keeps a second array of their
    size and allocates a third.
    """

    @staticmethod
    def forward(ctx, hidden_ND, weight_SD, place_N) -> Tensor:  # type: ignore[override]
        cast_ND = hidden_ND.to(weight_SD.dtype)
        scores_NS = at_least_float32(products.linear(cast_ND, weight_SD, kernels=True))
        # Without the shift, the rounding of the logarithm would matter where scores are large.
        scores_NS -= scores_NS.amax(dim=1, keepdim=True)
        log_sum_N = scores_NS.exp().sum(dim=1).log_()
        target_N = scores_NS.gather(1, place_N[:, None])[:, 0]
        ctx.save_for_backward(cast_ND, weight_SD, place_N, scores_NS, log_sum_N)
        ctx.hidden_dtype = hidden_ND.dtype
        return log_sum_N - target_N

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        hidden_ND, weight_SD, place_N, scores_NS, log_sum_N = ctx.saved_tensors
        dscores_NS = (scores_NS - log_sum_N[:, None]).exp_()
        dscores_NS.scatter_add_(1, place_N[:, None], dscores_NS.new_full((len(dscores_NS), 1), -1.0))
        dscores_NS = dscores_NS.mul_(dnll_N[:, None]).to(weight_SD.dtype)
        dhidden_ND = products.product(dscores_NS, weight_SD, kernels=True)
        dweight_SD = products.weight_gradient(dscores_NS, hidden_ND, kernels=True)
        return dhidden_ND.to(ctx.hidden_dtype), dweight_SD, None


class AdaptiveSoftmax(OutputLayer):
    """log P(w | h) = log softmax(H h)[w or its tail i] + log softmax(W_i P_i h)[w] for w in tail i (Grave et al. 2017).

    Parameters: `head_weight` (head + tails, D), and for each tail `tail{i}_projection` (D / 4^(i + 1), D) and
    `tail{i}_weight` (words, D / 4^(i + 1)), words by id within the head and each tail. Buffers: `band` (V,) of each
    word: 0 for the head and i + 1 for tail i; `place` (V,) of each word in its band; `words{b}`, the ids of band b.
    """

    band: Tensor
    place: Tensor
    head_weight: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self._bands = bands = Bands.of(spec.structure["order"], spec.structure["cutoffs"])
        self.head, self.tails = bands.head, bands.tails
        for name, shape in spec.parameter_shapes().items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=TORCH_DTYPES[spec.dtype])))
        self.register_buffer("band", torch.from_numpy(bands.band), persistent=False)
        self.register_buffer("place", torch.from_numpy(bands.place), persistent=False)
        for number, words in enumerate(bands.words):
            self.register_buffer(f"words{number}", torch.from_numpy(words), persistent=False)

    def formulation(self) -> str:
        has_kernels = cpp_kernels.runs_on(self.head_weight) and cpp_kernels.known(self.head_weight.dtype)
        return cpp.formulation_of_products(len(self.head_weight)) if has_kernels else ""

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        band_N, place_N = self.band[targets_N], self.place[targets_N]
        entry_N = torch.where(band_N == 0, place_N, self.head - 1 + band_N)
        nll_N = _softmax_nll(hidden_ND, self.head_weight, entry_N)
        if not self.tails:
            return nll_N
        if is_tracing():  # a trace cannot select the tokens of a tail
            for tail in range(self.tails):
                inside_N, projected = band_N == tail + 1, self._projected(hidden_ND, tail)
                own_N = place_N.where(inside_N, 0)
                tail_N = _softmax_nll(projected, getattr(self, f"tail{tail}_weight"), own_N)
                nll_N = nll_N + tail_N.where(inside_N, 0.0)
            return nll_N
        sorted_N, order_N = torch.sort(band_N, stable=True)
        bands = torch.arange(self.tails + 1, device=band_N.device)
        ends = torch.searchsorted(sorted_N, bands, right=True).tolist()
        for tail, (start, end) in enumerate(pairwise(ends)):
            # A tail without tokens is computed too: optimizers treat a zero gradient differently from a missing one.
            rows_R = order_N[start:end]
            projected = self._projected(hidden_ND.index_select(0, rows_R), tail)
            nll_N = nll_N.index_add(
                0, rows_R, _softmax_nll(projected, getattr(self, f"tail{tail}_weight"), place_N[rows_R])
            )
        return nll_N

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        head = self._head_log_probs(hidden_ND)
        parts = [head[:, : self.head]]
        parts += [self._joint(hidden_ND, head[:, self.head + tail], tail) for tail in range(self.tails)]
        words = torch.cat([self._words(band) for band in range(self.tails + 1)])
        return torch.cat(parts, dim=1)[:, torch.argsort(words)]

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of the words scored.

        No word of a tail is likelier than the tail, so a tail is expanded for the rows in which it is at least as
        likely as the k-th best word so far.
        """
        if is_tracing():
            return super()._search(hidden_ND, k)
        return self._expanded(hidden_ND, k, lambda head, tail, least_N: head[:, self.head + tail] >= least_N)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words of the head and the `width` likeliest tails."""
        if width >= self.tails:
            return self._search(hidden_ND, k)[:2]

        def followed(head: Tensor, tail: int, least_N: Tensor) -> Tensor:
            return (torch.topk(head[:, self.head :], width, dim=1).indices == tail).any(dim=1)

        return self._expanded(hidden_ND, k, followed)[:2]

    def _expanded(
        self, hidden_ND: Tensor, k: int, needed: Callable[[Tensor, int, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the best words of the head and the needed tails, and the share scored (N,).

        Args:
            hidden_ND: Hidden vectors.
            k: From 1 to V.
            needed: Maps the head's log-probabilities, the number of a tail and the k-th best so far (N,) to the rows
                (N,) that need the tail.
        """
        head = self._head_log_probs(hidden_ND)
        values, place = exact_topk(head[:, : self.head], min(k, self.head))
        missing = k - values.shape[1]
        values_NK = F.pad(values, (0, missing), value=-torch.inf)
        ids_NK = F.pad(self._words(0)[place], (0, missing), value=self.spec.vocab)
        scored_N = torch.full((len(hidden_ND),), float(self.head), device=hidden_ND.device)
        for tail in range(self.tails):
            rows_R = needed(head, tail, values_NK[:, -1]).nonzero()[:, 0]
            if not len(rows_R):
                continue
            words_S = self._words(tail + 1)
            joint_RS = self._joint(hidden_ND[rows_R], head[rows_R, self.head + tail], tail)
            values, place = exact_topk(joint_RS, min(k, len(words_S)))
            values = torch.cat([values_NK[rows_R], values], dim=1)
            ids = torch.cat([ids_NK[rows_R], words_S[place]], dim=1)
            values_NK[rows_R], ids_NK[rows_R] = best(values, k, lambda at_R, m, ids=ids: ids[at_R].gather(1, m))
            scored_N[rows_R] += len(words_S)
        return values_NK, ids_NK, scored_N / self.spec.vocab

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words: the first uniform draws a word of the head or a tail, the second a word of the tail."""
        head = self._head_log_probs(hidden_ND)
        entry_N = draw(head.exp(), uniforms_NU[:, 0])
        word_N = self._words(0)[entry_N.clamp(max=self.head - 1)]
        for tail in range(self.tails):
            rows_R = (entry_N == self.head + tail).nonzero()[:, 0]
            joint_RS = self._joint(hidden_ND[rows_R], head.new_zeros(len(rows_R)), tail)
            word_N[rows_R] = self._words(tail + 1)[draw(joint_RS.exp(), uniforms_NU[rows_R, 1])]
        return word_N

    def _head_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return (N, head + tails) log P of the head's words and of each tail."""
        return F.log_softmax(at_least_float32(products.linear(hidden_ND, self.head_weight)), dim=1)

    def _projected(self, hidden_RD: Tensor, tail: int) -> Tensor:
        return products.linear(hidden_RD, getattr(self, f"tail{tail}_projection"), kernels=True)

    def _joint(self, hidden_RD: Tensor, log_tail_R: Tensor, tail: int) -> Tensor:
        """Return (R, S) log P(tail, w | h) of the tail's words."""
        scores_RS = products.linear(self._projected(hidden_RD, tail), getattr(self, f"tail{tail}_weight"))
        return F.log_softmax(at_least_float32(scores_RS), dim=1) + log_tail_R[:, None]

    def _words(self, band: int) -> Tensor:
        return getattr(self, f"words{band}")

    # Words are stored by id within each band, and by falling count in the canonical form.
    def to_canonical(self, tensors: Tensors) -> Tensors:
        return {name: self._moved(name, value, back=True) for name, value in tensors.items()}

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return {name: self._moved(name, value, back=False) for name, value in tensors.items()}

    def _moved(self, name: str, value: Tensor, *, back: bool) -> Tensor:
        rows = self._bands.rows(name)
        if rows is None:
            return value
        rows = torch.from_numpy(rows).to(value.device)
        return value[torch.argsort(rows) if back else rows]


def _softmax_nll(hidden_RD: Tensor, weight_SD: Tensor, place_R: Tensor) -> Tensor:
    return _LinearNll.apply(hidden_RD, weight_SD, place_R)  # type: ignore[return-value]


LAYER = AdaptiveSoftmax
