"""Detection of repeated texts."""

from __future__ import annotations

import hashlib


class Duplicates:
    """The texts seen so far, as digests."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def is_new(self, text: str) -> bool:
        """Return whether this is the first call with `text`."""
        before = len(self._digests)
        self._digests.add(hashlib.sha256(text.encode()).digest()[:16])
        return len(self._digests) > before
