"""A random layout of what is timed, drawn anew in each process.

Where arrays lie in memory, and which layer was created or called first, changes times by a few per cent. With another
layout in each process, the interval over processes covers this.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

import numpy as np

_LARGEST_OFFSET = 1 << 22  # bytes: many pages, and more than the caches that are private to a core

_T = TypeVar("_T")


class Layout:
    """Order of creation and calls, and an allocation that shifts those after it, for as long as this object lives.

    Args:
        draw: Draws a whole number below its argument: the same one in all processes that measure together. None draws
            one for this process.

    Attributes:
        baseline_created_first: Whether the baseline is created before the other layer.
        baseline_called_first: Whether the baseline is called before the other layer.
        offset: Size of the allocation in bytes.
    """

    def __init__(self, draw: Callable[[int], int] | None = None) -> None:
        draw = draw or secrets.randbelow
        self.baseline_created_first = bool(draw(2))
        self.baseline_called_first = bool(draw(2))
        self.offset = draw(_LARGEST_OFFSET)
        self._block = np.empty(self.offset, np.uint8)

    def create(self, baseline: Callable[[], _T], other: Callable[[], _T]) -> tuple[_T, _T]:
        """Call both functions in the order of creation, and return the baseline and the other."""
        if self.baseline_created_first:
            made = baseline()
            return made, other()
        made = other()
        return baseline(), made
