"""Detection of repeated texts, within a dataset and between its splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping


class Duplicates:
    """The texts seen so far, as digests."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def is_new(self, text: str) -> bool:
        """Return whether this is the first call with `text`."""
        before = len(self._digests)
        self._digests.add(_digest(text))
        return len(self._digests) > before


def shares_in_training(splits: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """Return, for each split but "train", the share of its texts that are also texts of "train".

    Memory is needed for the digests of the other splits only.
    """
    held_out = {split: [_digest(text) for text in texts] for split, texts in splits.items() if split != "train"}
    wanted = set[bytes]().union(*held_out.values())
    repeated = {digest for text in splits["train"] if (digest := _digest(text)) in wanted}
    return {
        split: sum(digest in repeated for digest in digests) / max(len(digests), 1)
        for split, digests in held_out.items()
    }


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]
