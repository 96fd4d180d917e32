"""Words as rows of character ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST = 20  # characters of a word that are read: longer words, most of them no words at all, are cut
PADDING, BEGIN, END = 0, 1, 2


def spell(words: Sequence[str]) -> tuple[NDArray[np.int32], int]:
    """(V, L) the ids of each word's characters (code points), and how many different ones there are.

    A row begins with the mark of a word's begin and, after at most `LONGEST` characters, has that of its end, whether
    it was cut or not; padding follows, which is no character. Both marks count as characters, with ids 1 and 2; the
    word's own have those above, in the order of their code points. L is what the longest word needs.
    """
    cut = [word[:LONGEST] for word in words]
    alphabet = sorted(set().union(*cut))
    id_of = {character: number for number, character in enumerate(alphabet, start=END + 1)}
    characters_VL = np.full((len(cut), 2 + max(map(len, cut))), PADDING, dtype=np.int32)
    for row_L, word in zip(characters_VL, cut, strict=True):
        row_L[: len(word) + 2] = [BEGIN, *map(id_of.__getitem__, word), END]
    return characters_VL, END + len(alphabet)
