"""Where the words of a two-level layer lie: one cluster after the other, with or without room for more.

A (C, S, ...) slab, as wide as the largest cluster may become, is what batched products and kernels take. On a CPU a
loop over clusters takes them end to end as well: learned clusters differ in size, so that a third of a slab's slots
hold no word, and are memory, gradient and optimizer state all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_for_training_too = torch.inference_mode(False)  # what is kept from decoding under inference mode


@dataclass(frozen=True)
class WordRows:
    """The rows (F, ...) of all words, by cluster.

    Attributes:
        start_C: The first row of each cluster.
        size_C: Its words, which are in its first rows.
        slots: S, as many as the words of the largest cluster at least.
        in_slab: Whether every cluster has S rows, and arrays by row are (C, S, ...); else there are V rows.
    """

    start_C: Tensor
    size_C: Tensor
    slots: int
    in_slab: bool

    @classmethod
    @_for_training_too
    def of(cls, size_C: Tensor, slots: int, *, in_slab: bool) -> WordRows:
        before_C = torch.arange(len(size_C), device=size_C.device) * slots if in_slab else size_C.cumsum(0) - size_C
        return cls(before_C, size_C, slots, in_slab)

    @cached_property
    def starts(self) -> list[int]:
        """`start_C` on the host."""
        return self.start_C.tolist()

    @cached_property
    def sizes(self) -> list[int]:
        """`size_C` on the host."""
        return self.size_C.tolist()

    @cached_property
    @_for_training_too
    def empty_CS(self) -> Tensor:
        """True where a slot holds no word."""
        return empty_slots(self.size_C, self.slots)

    @cached_property
    @_for_training_too
    def row_F(self) -> Tensor:
        """Of each slot (C S,); of an empty one, any row."""
        row_CS = self.start_C[:, None] + torch.arange(self.slots, device=self.start_C.device)
        return row_CS.clamp_(max=int(self.size_C.sum()) - 1).flatten()

    @cached_property
    @_for_training_too
    def blank_CS(self) -> Tensor:
        """float32: 0 where a slot holds a word, else -inf."""
        return torch.zeros_like(self.empty_CS, dtype=torch.float32).masked_fill_(self.empty_CS, -torch.inf)

    def flat(self, by_row: Tensor) -> Tensor:
        """(F, ...) of an array by row."""
        return by_row.flatten(0, 1) if self.in_slab else by_row

    def of_cluster(self, by_row: Tensor, cluster: int) -> Tensor:
        """The rows (size, ...) of a cluster's words."""
        return self.flat(by_row).narrow(0, self.starts[cluster], self.sizes[cluster])

    def by_cluster(self, by_row: Tensor) -> Sequence[Tensor]:
        """`of_cluster` of each."""
        return self.flat(by_row).split(self._bounds)[:: 2 if self.in_slab else 1]

    @cached_property
    def _bounds(self) -> list[int]:
        return [rows for size in self.sizes for rows in (size, self.slots - size)] if self.in_slab else self.sizes

    def by_slot(self, values_F: Tensor) -> Tensor:
        """(..., C, S) of (..., F), with any number in an empty slot."""
        of_slots_F = values_F if self.in_slab else values_F.index_select(-1, self.row_F)
        return of_slots_F.unflatten(-1, (len(self.size_C), self.slots))

    def of_slots(self, by_row_FX: Tensor) -> Tensor:
        """(C, S, X) of (F, X), with any numbers in an empty slot."""
        of_slots_FX = by_row_FX if self.in_slab else by_row_FX.index_select(0, self.row_F)
        return of_slots_FX.unflatten(0, (len(self.size_C), self.slots))

    def of_clusters(self, values: Tensor, cluster_M: Tensor) -> Tensor:
        """(M, S) of (C, S) or (V,) by row, with any number in an empty slot."""
        return values[cluster_M] if self.in_slab else values[self.row_F.view(-1, self.slots)[cluster_M]]

    def from_slots(self, values_CS: Tensor) -> Tensor:
        """By row: (C, S) as they are, or (V,)."""
        return values_CS if self.in_slab else values_CS[~self.empty_CS]


def empty_slots(size_M: Tensor, slots: int) -> Tensor:
    """(M, S) True where a slot of clusters of these sizes holds no word."""
    return torch.arange(slots, device=size_M.device) >= size_M[:, None]
