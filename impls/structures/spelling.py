"""Words as rows of character ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST = 20  # characters kept of a word; most longer strings are not words, and are cut
PADDING, BEGIN, END = 0, 1, 2


def spell(words: Sequence[str]) -> tuple[NDArray[np.int32], int]:
    """Return the ids (V, L) of the characters (code points) of each word, and the number of distinct characters.

    A row starts with the begin mark, followed by at most `LONGEST` characters, the end mark and padding. A word that
    was cut has an end mark, too. Both marks count as characters, with ids 1 and 2; padding does not. The characters of
    words have higher ids, in the order of their code points. L is the length that the longest word needs.
    """
    stems = [word[:LONGEST] for word in words]
    letters = alphabet(words)
    id_of = {character: number for number, character in enumerate(letters, start=END + 1)}
    characters_VL = np.full((len(stems), 2 + max(map(len, stems))), PADDING, dtype=np.int32)
    for row_L, word in zip(characters_VL, stems, strict=True):
        row_L[: len(word) + 2] = [BEGIN, *map(id_of.__getitem__, word), END]
    return characters_VL, END + len(letters)


def alphabet(words: Sequence[str]) -> list[str]:
    """Return the characters of the words, in the order of their ids, which start after the two marks."""
    return sorted(set().union(*(word[:LONGEST] for word in words)))
