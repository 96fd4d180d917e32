"""One level of a class-based layer: a softmax within each group, for groups of very different sizes.

Groups of about the same size share a slab (`impls/structures/shelves.py`). Each slab is the lower half of a two-level
layer: `cluster_softmax.py` trains it and `decoding.py` decodes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.forms import Form
from vocabench.impls.on_torch import objectives
from vocabench.impls.on_torch.ops.topk import best
from vocabench.impls.on_torch.tensors import Tensors
from vocabench.impls.on_torch.tracing import is_tracing
from vocabench.impls.on_torch.two_level import cluster_softmax, decoding
from vocabench.impls.on_torch.two_level.decoding import followed
from vocabench.impls.on_torch.two_level.words import WordRows, WordsByCluster
from vocabench.impls.structures.shelves import Shelves


class Level(nn.Module):
    """log P(member | group, h) of M members.

    Parameters: for each shelf b `weight{b}` (G, S, D) and, if it is one of `kinds`, `bias{b}` (G, S), zero in empty
    slots. Buffers: `group`,
    `shelf`, `row`, `slot` and `place` (M,) of each member; for each shelf `member{b}` (G, S), M in empty slots,
    `size{b}` (G,), the number of members of each group, and `groups{b}` (G,).
    """

    group: Tensor
    shelf: Tensor
    row: Tensor
    slot: Tensor
    place: Tensor

    def __init__(
        self, shelves: Shelves, dim: int, dtype: torch.dtype, requested: Form | None, kinds: Sequence[str]
    ) -> None:
        super().__init__()
        self._kinds = kinds
        self._requested, self._forms = requested, cluster_softmax.forms(0, dim, dtype)
        self.shelves, self.members = shelves.shelves, len(shelves.group_M)
        self._sizes = [(int(shelf.members), len(shelf.groups_G)) for shelf in self.shelves]
        for name, array in (
            ("group", shelves.group_M), ("shelf", shelves.shelf_M), ("row", shelves.row_M), ("slot", shelves.slot_M),
            ("place", shelves.place_M),
        ):  # fmt: skip
            self.register_buffer(name, torch.from_numpy(array), persistent=False)
        for number, shelf in enumerate(self.shelves):
            member_GS = torch.from_numpy(shelf.member_GS)
            self.register_buffer(f"member{number}", member_GS.where(member_GS >= 0, self.members), persistent=False)
            self.register_buffer(f"size{number}", (member_GS >= 0).sum(dim=1), persistent=False)
            self.register_buffer(f"groups{number}", torch.from_numpy(shelf.groups_G), persistent=False)
            size = shelf.member_GS.shape
            self.register_parameter(f"weight{number}", nn.Parameter(torch.zeros(*size, dim, dtype=dtype)))
            bias = nn.Parameter(torch.zeros(*size, dtype=dtype)) if "bias" in kinds else None
            self.register_parameter(f"bias{number}", bias)

    @property
    def form(self) -> Form:
        """The form of the products with the slabs."""
        return self._requested or cluster_softmax.preferred(self._forms, self._of(0, "weight"))

    def nll(self, hidden_ND: Tensor, member_N: Tensor) -> Tensor:
        """Return (N,) -log P(member | its group, h)."""
        row_N, slot_N = cluster_softmax.places(self.row, self.slot, member_N, self.form)
        if len(self.shelves) == 1:
            return self._nll_on_shelf(hidden_ND, row_N, slot_N, 0)
        if is_tracing():
            shelf_N, numbers = self.shelf[member_N], range(len(self.shelves))
            parts = [self._nll_of_those(shelf_N == number, hidden_ND, row_N, slot_N, number) for number in numbers]
            return torch.stack(parts).sum(dim=0)
        shelf_sorted_N, order_N = torch.sort(self.shelf[member_N], stable=True)
        shelves = torch.arange(-1, len(self.shelves), device=member_N.device)
        ends = torch.searchsorted(shelf_sorted_N, shelves, right=True).tolist()
        parts = []
        for number, (start, end) in enumerate(pairwise(ends)):
            # A shelf without tokens is computed too: optimizers treat a zero gradient differently from a missing one.
            rows_R = order_N[start:end]
            parts.append(self._nll_on_shelf(hidden_ND.index_select(0, rows_R), row_N[rows_R], slot_N[rows_R], number))
        sorted_N = torch.cat(parts)
        return torch.empty_like(sorted_N).index_copy(0, order_N, sorted_N)

    def _nll_on_shelf(self, hidden_RD: Tensor, row_R: Tensor, slot_R: Tensor, number: int) -> Tensor:
        words = self._of(number, "weight"), self._of(number, "bias")
        return cluster_softmax.in_cluster_nll(hidden_RD, *words, row_R, slot_R, self._rows(number), self.form)

    def _nll_of_those(self, inside_N: Tensor, hidden_ND: Tensor, row_N: Tensor, slot_N: Tensor, number: int) -> Tensor:
        """Return the (N,) losses of the tokens on a shelf, and 0 for the others: a trace cannot select tokens."""
        row_N, slot_N = row_N.where(inside_N, 0), slot_N.where(inside_N, 0)
        return self._nll_on_shelf(hidden_ND, row_N, slot_N, number).where(inside_N, 0.0)

    def log_within(self, hidden_ND: Tensor) -> Tensor:
        """Return (N, M) log P(member | its group, h)."""
        parts = [scores_NGS.log_softmax(dim=2).flatten(1) for scores_NGS in self._scores(hidden_ND)]
        return torch.cat(parts, dim=1)[:, self.place]

    def mean_entropy(self, hidden_ND: Tensor, log_group_NC: Tensor) -> Tensor:
        """Return the (N,) means over groups of the entropies in nats of their members."""
        groups = (log_group_NC[:, self._of(number, "groups")].exp() for number in range(len(self.shelves)))
        pairs = zip(groups, self._scores(hidden_ND), strict=True)
        means = [(group_NG * objectives.entropy_within(scores_NGS)).sum(dim=1) for group_NG, scores_NGS in pairs]
        return torch.stack(means).sum(dim=0)

    def _scores(self, hidden_ND: Tensor) -> Iterator[Tensor]:
        """Return the (N, G, S) scores of the members of each shelf's groups, -inf in empty slots."""
        cast_ND = hidden_ND.to(self._of(0, "weight").dtype)
        return (self._words(number).scores_of_all(cast_ND) for number in range(len(self.shelves)))

    def search(self, hidden_ND: Tensor, log_group_NC: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and members (N, K) of the likeliest members, and the (N,) share of groups expanded."""
        cast_ND, results = self._cast(hidden_ND), []
        for number, (members, _) in enumerate(self._sizes):
            log_group_NG = log_group_NC[:, self._of(number, "groups")]
            results.append(decoding.search(cast_ND, log_group_NG, self._words(number), min(k, members)))
        expanded = [share_N * groups for (_, groups), (*_, share_N) in zip(self._sizes, results, strict=True)]
        groups = sum(groups for _, groups in self._sizes)
        return *_best_of([result[:2] for result in results], k), torch.stack(expanded).sum(dim=0) / groups

    def beam(self, hidden_ND: Tensor, log_group_NC: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and members (N, K) of the k likeliest members of the `width` likeliest groups."""
        log_group_NC = followed(log_group_NC, width)
        cast_ND, results = self._cast(hidden_ND), []
        for number, (members, _) in enumerate(self._sizes):
            log_group_NG = log_group_NC[:, self._of(number, "groups")]
            results.append(decoding.beam(cast_ND, log_group_NG, self._words(number), min(k, members), width))
        return _best_of(results, k)

    def sample(self, hidden_ND: Tensor, group_N: Tensor, uniforms_N: Tensor) -> Tensor:
        """Return (N,) members, each drawn from the token's group."""
        member_N = torch.empty_like(group_N)
        cast_ND = self._cast(hidden_ND)
        for number in range(len(self.shelves)):
            words, groups_G = self._words(number), self._of(number, "groups")
            place_N = torch.searchsorted(groups_G, group_N).clamp_(max=len(groups_G) - 1)
            rows_R = (groups_G[place_N] == group_N).nonzero()[:, 0]
            member_N[rows_R] = decoding.sample(cast_ND[rows_R], place_N[rows_R], words, uniforms_N[rows_R])
        return member_N

    def vectors(self, member_N: Tensor) -> Tensor:
        """Return the (N, D) vectors of members."""
        place_N, parts = self.place.index_select(0, member_N), []
        for number, shelf in enumerate(self.shelves):
            slots = shelf.member_GS.size
            inside_N = (place_N >= 0) & (place_N < slots)
            vectors_ND = F.embedding(place_N.where(inside_N, 0), self._of(number, "weight").flatten(0, 1))
            parts.append(vectors_ND.where(inside_N[:, None], 0.0))
            place_N = place_N - slots
        return torch.stack(parts).sum(dim=0)

    def to_canonical(self, tensors: Tensors) -> Tensors:
        """Return (M, D) weights and (M,) biases, or their gradients or optimizer slots, in the order of the members."""
        return {kind: self._by_member(tensors, kind) for kind in self._kinds}

    def _by_member(self, tensors: Tensors, name: str) -> Tensor:
        slabs = [tensors[f"{name}{number}"].flatten(0, 1) for number in range(len(self.shelves))]
        return torch.cat(slabs)[self.place]

    def from_canonical(self, canonical: Tensors) -> Tensors:
        tensors: Tensors = {}
        sizes = [shelf.member_GS.size for shelf in self.shelves]
        for name, by_member in canonical.items():
            flat = by_member.new_zeros(sum(sizes), *by_member.shape[1:])
            flat[self.place] = by_member
            for number, (part, shelf) in enumerate(zip(flat.split(sizes), self.shelves, strict=True)):
                tensors[f"{name}{number}"] = part.unflatten(0, shelf.member_GS.shape)
        return tensors

    def _of(self, number: int, name: str) -> Tensor:
        return getattr(self, f"{name}{number}")

    def _cast(self, hidden_ND: Tensor) -> Tensor:
        return hidden_ND.to(self._of(0, "weight").dtype)

    def _words(self, number: int) -> WordsByCluster:
        weight_GSD, bias_GS = self._of(number, "weight"), self._of(number, "bias")
        form = cluster_softmax.form_to_decode(self.form, weight_GSD)
        return WordsByCluster(weight_GSD, bias_GS, self._of(number, "member"), self._rows(number), form)

    def _rows(self, number: int) -> WordRows:
        return WordRows.of(self._of(number, "size"), self._of(number, "weight").shape[1], in_slab=True)


def _best_of(results: list[tuple[Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of the values and ids found on each shelf."""
    if len(results) == 1:
        return results[0]
    values_NX, ids_NX = (torch.cat(parts, dim=1) for parts in zip(*results, strict=True))
    return best(values_NX, k, lambda rows_R, column_RM: ids_NX[rows_R].gather(1, column_RM))
