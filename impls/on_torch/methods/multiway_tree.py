"""Softmax over a tree of any arity in PyTorch. See `impls/on_numpy/methods/multiway_tree.py` for the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from vocabench.impls.forms import Form
from vocabench.impls.on_numpy.methods import multiway_tree
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.ops.topk import best, best_columns
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, Tensors, at_least_float32
from vocabench.impls.on_torch.tracing import is_tracing
from vocabench.impls.on_torch.two_level import cluster_softmax
from vocabench.impls.on_torch.two_level.decoding import followed
from vocabench.impls.on_torch.two_level.levels import Level
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures.multiway import Split


class MultiwayTreeSoftmax(OutputLayer):
    """log P(w | h) = sum over the nodes on the way to w of their log softmax among their siblings.

    Parameters: those of two `Level`s, the `upper` and the `lower` part of the tree as in `multiway.Split`. A tree of a
    single level has no upper part.
    """

    upper_above: Tensor
    upper_group: Tensor
    upper_word: Tensor
    lower_word: Tensor
    lower_group: Tensor
    lower_parent: Tensor
    depth: Tensor
    way: Tensor
    lower_member: Tensor
    word_column: Tensor
    single_word: Tensor
    single_column: Tensor
    member_of_row: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self._split = split = Split.of(multiway_tree.tree_of(spec))
        dtype, self._kinds = TORCH_DTYPES[spec.dtype], ("weight", "bias") if spec.has_bias else ("weight",)
        upper, lower = split.shelves(spec.counts)
        self.lower = Level(lower, spec.dim, dtype, self._requested, self._kinds)
        self.upper = None if upper is None else Level(upper, spec.dim, dtype, self._requested, self._kinds)
        single_words, single_columns = split.single_words
        for name, array in (
            ("upper_above", split.upper_above_A), ("upper_group", split.upper_group_X),
            ("upper_word", split.upper_word_A), ("lower_word", split.lower_word_B),
            ("lower_group", split.lower_group_X), ("lower_parent", split.lower_parent_H), ("depth", split.depth_X),
            ("way", split.way_VL), ("lower_member", split.lower_V), ("word_column", split.word_column_V),
            ("single_word", single_words), ("single_column", single_columns),
            ("member_of_row", split.member_of_row), ("upper_row", split.parameter_rows[0]),
            ("lower_row", split.parameter_rows[1]),
        ):  # fmt: skip
            self.register_buffer(name, torch.from_numpy(array), persistent=False)

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return cluster_softmax.forms(0, spec.dim, TORCH_DTYPES[spec.dtype])

    @property
    def form(self) -> Form:
        return self.lower.form

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        lower_N, way_NL = self.lower_member[targets_N], self.way[targets_N]
        if is_tracing():
            return self._nll_traced(hidden_ND, lower_N, way_NL)
        rows_R = (lower_N >= 0).nonzero()[:, 0]
        nll_R = self.lower.nll(hidden_ND.index_select(0, rows_R), lower_N[rows_R])
        total_N = nll_R.new_zeros(len(targets_N)).index_add(0, rows_R, nll_R)
        if self.upper is None:
            return total_N
        # One pair for each token and each upper member on its way.
        token_P, step_P = (way_NL >= 0).nonzero(as_tuple=True)
        nll_P = self.upper.nll(hidden_ND.index_select(0, token_P), way_NL[token_P, step_P])
        return total_N.index_add(0, token_P, nll_P)

    def _nll_traced(self, hidden_ND: Tensor, lower_N: Tensor, way_NL: Tensor) -> Tensor:
        """Return what `_nll` does, with all pairs: a trace cannot select those that there are."""
        total_N = self.lower.nll(hidden_ND, lower_N.clamp(min=0)).where(lower_N >= 0, 0.0)
        if self.upper is None:
            return total_N
        hidden_PD = hidden_ND.repeat_interleave(way_NL.size(1), dim=0)
        nll_NL = self.upper.nll(hidden_PD, way_NL.clamp(min=0).flatten()).view_as(way_NL)
        return total_N + nll_NL.where(way_NL >= 0, 0.0).sum(dim=1)

    def _joint(self, hidden_ND: Tensor, width: int | None = None) -> Tensor:
        """Return (N, X) log P of the root and each upper member.

        With `width`, only so many inner nodes of each depth are followed, and others have -inf.
        """
        above_NM = at_least_float32(hidden_ND).new_zeros(hidden_ND.size(0), 1)
        if self.upper is None:
            return above_NM
        within_NA, parts = self.upper.log_within(hidden_ND), [above_NM]
        for start, first_word, end in self._split.levels:
            log_NM = above_NM[:, self.upper_above[start:end]] + within_NA[:, start:end]
            above_NM, words_NW = log_NM.tensor_split([first_word - start], dim=1)
            if width is not None and above_NM.size(1):
                above_NM = followed(above_NM, width)
            parts += [above_NM, words_NW]
        return torch.cat(parts, dim=1)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        log_NX = self._joint(hidden_ND)
        log_NB = log_NX[:, self.lower_parent[self.lower.group]] + self.lower.log_within(hidden_ND)
        return torch.cat([log_NB, log_NX], dim=1)[:, self.word_column]

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of inner nodes expanded."""
        return self._found_below(hidden_ND, self._joint(hidden_ND), k)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words below the `width` likeliest nodes of each depth."""
        return self._found_below(hidden_ND, self._joint(hidden_ND, width), k)[:2]

    def _found_below(self, hidden_ND: Tensor, log_NX: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        log_NH = log_NX[:, self.lower_parent]
        values_NK, member_NK, share_N = self.lower.search(hidden_ND, log_NH, min(k, len(self.lower_word)))
        lower, upper = log_NH.size(1), self._split.upper_groups
        share_N = (upper + lower * share_N) / (upper + lower)
        ids_NK = self.lower_word[member_NK]
        if not len(self.single_word):
            return values_NK, ids_NK, share_N
        single = best_columns(log_NX[:, self.single_column], self.single_word, min(k, len(self.single_word)))
        values_NX, ids_NX = torch.cat([values_NK, single[0]], dim=1), torch.cat([ids_NK, single[1]], dim=1)
        return *best(values_NX, k, lambda rows_R, column_RM: ids_NX[rows_R].gather(1, column_RM)), share_N

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words, drawn with one uniform for each choice on the way down."""
        at_N = torch.zeros(hidden_ND.size(0), dtype=torch.int64, device=hidden_ND.device)  # position among the X
        for depth in range(len(self._split.levels)):
            assert self.upper is not None
            group_N = self.upper_group[at_N]
            rows_R = (group_N >= 0).nonzero()[:, 0]
            at_N[rows_R] = 1 + self.upper.sample(hidden_ND[rows_R], group_N[rows_R], uniforms_NU[rows_R, depth])
        group_N = self.lower_group[at_N]
        rows_R = (group_N >= 0).nonzero()[:, 0]
        word_N = at_N.clone() if self.upper is None else self.upper_word[(at_N - 1).clamp(min=0)]
        member_R = self.lower.sample(hidden_ND[rows_R], group_N[rows_R], uniforms_NU[rows_R, self.depth[at_N[rows_R]]])
        word_N[rows_R] = self.lower_word[member_R]
        return word_N

    def formulation(self) -> str:
        slabs = sum(len(level.shelves) for level in (self.upper, self.lower) if level is not None)
        return f"{self.form.label} on {slabs} slabs of nodes with about as many children"

    def to_canonical(self, tensors: Tensors) -> Tensors:
        by_member: dict[str, list[Tensor]] = {kind: [] for kind in self._kinds}
        for name, level in self._levels():
            prefix = f"{name}."
            own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            for kind, value in level.to_canonical(own).items():
                by_member[kind].append(value)
        canonical: Tensors = {}
        for kind, parts in by_member.items():
            by_row = torch.cat(parts)[self.member_of_row]
            canonical[f"node_{kind}"], canonical[f"leaf_{kind}"] = by_row.tensor_split([self._split.nodes])
        return canonical

    def from_canonical(self, tensors: Tensors) -> Tensors:
        parameters: Tensors = {}
        by_row = {kind: torch.cat([tensors[f"node_{kind}"], tensors[f"leaf_{kind}"]]) for kind in self._kinds}
        for name, level in self._levels():
            rows = self.get_buffer(f"{name}_row")
            by_member = {kind: value[rows.to(value.device)] for kind, value in by_row.items()}
            parameters |= {f"{name}.{key}": value for key, value in level.from_canonical(by_member).items()}
        return parameters

    def _levels(self) -> list[tuple[str, Level]]:
        levels = ("upper", self.upper), ("lower", self.lower)
        return [(name, level) for name, level in levels if level is not None]


LAYER = MultiwayTreeSoftmax
