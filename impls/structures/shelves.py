"""How the members of groups of very different size lie in memory: slabs for groups of about the same size.

One slab of all groups is as wide as the largest one, which for classes by count is hundreds of times the smallest. So
groups are put on shelves: a shelf holds groups of which none is more than three times as large as another, beyond the
smallest width that is worth a shelf of its own, and is a (G, S, ...) slab.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.structures import clusters

_RATIO = 3  # of the largest to the smallest group of a shelf
_SMALL = 32  # groups up to this size share a shelf


@dataclass(frozen=True)
class Shelf:
    """Groups of about the same size.

    Attributes:
        groups_G: Their numbers, rising.
        member_GS: The member in each slot, those of a group by rising number; -1 where the slot is empty.
        share: Of the weight of all members.
    """

    groups_G: NDArray[np.int64]
    member_GS: NDArray[np.int64]
    share: float

    @property
    def members(self) -> int:
        return int((self.member_GS >= 0).sum())


@dataclass(frozen=True)
class Shelves:
    """Every member's place.

    Attributes:
        shelves: The narrow first.
        group_M: The group of each member.
        shelf_M, row_M, slot_M: Where it stands: on which shelf, in which of its rows (a group each), at which place.
        groups: How many groups there are, none of them empty.
    """

    shelves: list[Shelf]
    group_M: NDArray[np.int64]
    shelf_M: NDArray[np.int64]
    row_M: NDArray[np.int64]
    slot_M: NDArray[np.int64]
    groups: int

    @property
    def place_M(self) -> NDArray[np.int64]:
        """Where each member stands when the slots of all shelves lie end to end."""
        slots = np.array([shelf.member_GS.size for shelf in self.shelves])
        width = np.array([shelf.member_GS.shape[1] for shelf in self.shelves])
        before = np.cumsum(slots) - slots
        return before[self.shelf_M] + self.row_M * width[self.shelf_M] + self.slot_M

    @classmethod
    def of(cls, group_M: NDArray[np.int64], weights_M: NDArray[np.integer]) -> Shelves:
        """From the group of each member, every number up to the highest being used, and the members' weights."""
        size_C = np.bincount(group_M)
        slot_M = clusters.slots(group_M, len(size_C))
        shelf_C, row_C = np.empty_like(size_C), np.empty_like(size_C)
        by_size = _by_size(size_C)
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


def _by_size(size_C: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The groups of each shelf, the narrow first: from the largest group down, what is not much smaller."""
    left = np.argsort(-size_C, kind="stable")
    found = []
    while len(left):
        largest = int(size_C[left[0]])
        here = len(left) if largest <= _SMALL else int((size_C[left] * _RATIO >= largest).sum())
        found.append(np.sort(left[:here]))
        left = left[here:]
    return found[::-1]
