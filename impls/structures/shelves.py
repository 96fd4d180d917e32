"""Memory layout of groups with very different sizes: slabs for groups of about the same size.

A single slab of all groups is as wide as the largest group, which can be hundreds of times the size of the smallest one
in classes by count. Groups are therefore put on shelves, each of which is a (G, S, ...) slab. No group of a shelf is
more than three times as large as another, except that all groups below a small size share a shelf.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.structures import clusters

_RATIO = 3  # largest ratio of the group sizes of a shelf
_SMALL = 32  # groups up to this size share a shelf, where the caller gives no other


@dataclass(frozen=True)
class Shelf:
    """Groups of about the same size.

    Attributes:
        groups_G: Numbers of the groups, ascending.
        member_GS: Member in each slot, ascending within a group; -1 for empty slots.
        share: Share of the members of the shelf in the total weight.
    """

    groups_G: NDArray[np.int64]
    member_GS: NDArray[np.int64]
    share: float

    @property
    def members(self) -> int:
        return int((self.member_GS >= 0).sum())


@dataclass(frozen=True)
class Shelves:
    """Shelves of all groups, with the position of each member.

    Attributes:
        shelves: Shelves, from narrow to wide.
        group_M: Group of each member.
        shelf_M, row_M, slot_M: Shelf of each member, its row (one per group) on the shelf, and its slot in the row.
        groups: Number of groups, none of them empty.
    """

    shelves: list[Shelf]
    group_M: NDArray[np.int64]
    shelf_M: NDArray[np.int64]
    row_M: NDArray[np.int64]
    slot_M: NDArray[np.int64]
    groups: int

    @property
    def place_M(self) -> NDArray[np.int64]:
        """Position of each member if the slots of all shelves are concatenated."""
        slots = np.array([shelf.member_GS.size for shelf in self.shelves])
        width = np.array([shelf.member_GS.shape[1] for shelf in self.shelves])
        before = np.cumsum(slots) - slots
        return before[self.shelf_M] + self.row_M * width[self.shelf_M] + self.slot_M

    @classmethod
    def of(cls, group_M: NDArray[np.int64], weights_M: NDArray[np.integer], *, small: int = _SMALL) -> Shelves:
        """Build shelves from the group and the weight of each member. No group up to the highest may be empty.

        Groups of up to `small` members share a shelf, whatever their sizes.
        """
        size_C = np.bincount(group_M)
        slot_M = clusters.slots(group_M, len(size_C))
        shelf_C, row_C = np.empty_like(size_C), np.empty_like(size_C)
        by_size = _by_size(size_C, small)
        for number, groups_G in enumerate(by_size):
            shelf_C[groups_G], row_C[groups_G] = number, np.arange(len(groups_G))
        shelf_M, row_M = shelf_C[group_M], row_C[group_M]

        shelves, total = [], max(1, int(weights_M.sum()))
        for number, groups_G in enumerate(by_size):
            members = np.flatnonzero(shelf_M == number)
            width = clusters.slab_width(int(size_C[groups_G].max()))
            member_GS = np.full((len(groups_G), width), -1, dtype=np.int64)
            member_GS[row_M[members], slot_M[members]] = members
            shelves.append(Shelf(groups_G, member_GS, float(weights_M[members].sum()) / total))
        return cls(shelves, group_M, shelf_M, row_M, slot_M, len(size_C))


def _by_size(size_C: NDArray[np.int64], small: int) -> list[NDArray[np.int64]]:
    """Return the groups of each shelf, from narrow to wide."""
    remaining = np.argsort(-size_C, kind="stable")
    shelves = []
    while len(remaining):
        largest = int(size_C[remaining[0]])
        count = len(remaining) if largest <= small else int((size_C[remaining] * _RATIO >= largest).sum())
        shelves.append(np.sort(remaining[:count]))
        remaining = remaining[count:]
    return shelves[::-1]
