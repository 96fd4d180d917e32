"""Word vectors scored by analogies (word2vec's questions-words.txt) and by similarity of pairs (WordSim-353)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from vocabench.impls.errors import BadInput

_AT_ONCE = 1024  # questions per batch


@dataclass(frozen=True)
class Score:
    """
    Attributes:
        value: In [0, 1] for analogies and in [-1, 1] for similarity; None if no line could be used.
        used, skipped: Numbers of lines with all words known, and of lines with a word that has no vector.
        detail: Correct and used questions of each section of the analogies.
    """

    value: float | None
    used: int
    skipped: int
    detail: dict[str, tuple[int, int]]


def analogies(path: Path, vectors_VE: NDArray, word_ids: Mapping[str, int]) -> Score:
    """Return the share of questions "a b c d" for which d is the nearest word to b - a + c by cosine.

    The words a, b and c are excluded (Mikolov et al. 2013). Lines of the form ": name" start a section.

    Raises:
        BadInput: A line has another form, or the file is not UTF-8.
    """
    sections: list[str] = []
    questions: list[tuple[int, ...]] = []
    section, skipped = "", 0
    for number, line in _lines(path):
        if line.startswith(":"):
            section = line[1:].strip()
            continue
        words = line.lower().split()
        if len(words) != 4:
            raise BadInput(f"{path.name}, line {number}: {len(words)} words: allowed: four, or ': name of a section'")
        ids = tuple(word_ids.get(word, -1) for word in words)
        if min(ids) < 0:
            skipped += 1
            continue
        sections.append(section)
        questions.append(ids)
    if not questions:
        return Score(None, 0, skipped, {})
    ids_Q4 = np.array(questions)
    right_Q = np.concatenate(
        [
            _answers(vectors_VE, piece) == piece[:, 3]
            for piece in np.split(ids_Q4, range(_AT_ONCE, len(ids_Q4), _AT_ONCE))
        ]
    )
    detail = {}
    for name in dict.fromkeys(sections):
        here = np.array([each == name for each in sections])
        detail[name] = (int(right_Q[here].sum()), int(here.sum()))
    return Score(float(right_Q.mean()), len(right_Q), skipped, detail)


def _answers(vectors_VE: NDArray, ids_Q4: NDArray[np.int64]) -> NDArray[np.int64]:
    unit_VE = _unit(vectors_VE)
    a, b, c = ids_Q4[:, :3].T
    cosine_QV = (unit_VE[b] - unit_VE[a] + unit_VE[c]) @ unit_VE.T
    np.put_along_axis(cosine_QV, ids_Q4[:, :3], -np.inf, axis=1)
    return cosine_QV.argmax(axis=1)


def similarity(path: Path, vectors_VE: NDArray, word_ids: Mapping[str, int]) -> Score:
    """Return Spearman's correlation between the cosines and the scores of word pairs.

    Lines have the form "word word score", separated by tabs, commas or spaces. A first line that does not end in a
    number is a heading; lines with # are comments.

    Raises:
        BadInput: A line has another form, or the file is not UTF-8.
    """
    pairs, scores, skipped = [], [], 0
    lines = [(number, re.split(r"[\s,;]+", line)) for number, line in _lines(path) if not line.startswith("#")]
    for place, (number, parts) in enumerate(lines):
        try:
            score = float(parts[2])
        except (IndexError, ValueError):
            if place == 0:
                continue
            raise BadInput(
                f"{path.name}, line {number}: {' '.join(parts)!r}: allowed: two words and a number"
            ) from None
        ids = [word_ids.get(word.lower(), -1) for word in parts[:2]]
        if min(ids) < 0:
            skipped += 1
            continue
        pairs.append(ids)
        scores.append(score)
    if len(pairs) < 3:
        return Score(None, len(pairs), skipped, {})
    unit_VE = _unit(vectors_VE)
    first, second = np.array(pairs).T
    cosine_P = (unit_VE[first] * unit_VE[second]).sum(axis=1)
    if np.ptp(cosine_P) == 0 or np.ptp(scores) == 0:
        return Score(None, len(pairs), skipped, {})
    return Score(float(spearmanr(cosine_P, scores).statistic), len(pairs), skipped, {})


def _unit(vectors_VE: NDArray) -> NDArray[np.float64]:
    vectors_VE = vectors_VE.astype(np.float64)
    length_V1 = np.linalg.norm(vectors_VE, axis=1, keepdims=True)
    return vectors_VE / np.where(length_V1 > 0, length_V1, 1.0)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line numbers, from 1, and the non-empty lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path.name}: byte {error.start} is no UTF-8: allowed: UTF-8 text") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield number, line.strip()
