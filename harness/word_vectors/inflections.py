"""Analogy questions about English endings, made from the words of a text.

A question such as "value values return returns" joins two pairs of words, each a word and the same word with an ending:
`s`, `ed` or `ing`, or `d` after an e. Nobody has checked the pairs, some of which are no inflections. The questions
serve to compare vectors of one text, whatever it is about, and not vectors of different texts.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.word_vectors.question_files import Question, Section

FEWEST = 50  # occurrences of each word
MOST_PAIRS = 60  # of a section, the most frequent ones by their rarer word

_SHORTEST = 4  # letters; shorter words have endings by chance, such as "a" and "as"
_ENDINGS = {"s": ("", "s"), "ed": ("e", "ed"), "ing": ("", "ing")}  # what is taken off, and what is put on
_MOST_QUESTIONS = 1_000


def questions(words: Sequence[str], counts_V: NDArray[np.integer]) -> list[Section]:
    """Return a section for each ending, the same for the same words and counts."""
    counts = {
        word: int(count)
        for word, count in zip(words, counts_V.tolist(), strict=True)
        if count >= FEWEST and len(word) >= _SHORTEST and word.isascii() and word.isalpha() and word.islower()
    }
    return [Section(f"ending-{name}", _asked(counts, *ending)) for name, ending in _ENDINGS.items()]


def _asked(counts: dict[str, int], taken_off: str, put_on: str) -> tuple[Question, ...]:
    pairs = []
    for word, count in counts.items():
        if word.endswith(taken_off):
            with_ending = word.removesuffix(taken_off) + put_on
            if with_ending in counts:
                pairs.append((min(count, counts[with_ending]), word, with_ending))
    most_frequent = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:MOST_PAIRS]
    asked: list[Question] = [
        (a, b, c, d) for (_, a, b), (_, c, d) in itertools.permutations(most_frequent, 2) if len({a, b, c, d}) == 4
    ]
    # Chosen by a hash, which does not depend on the version of a random number generator.
    asked.sort(key=lambda question: hashlib.sha256(" ".join(question).encode()).digest())
    return tuple(sorted(asked[:_MOST_QUESTIONS]))
