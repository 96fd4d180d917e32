"""Word vectors scored by analogies and by the similarity of pairs of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from vocabench.harness.word_vectors.question_files import ScoredPair, Section, read_analogies, read_similarity

_BATCH_SCORES = 1 << 24  # cosines of the questions that are answered at once, 128 MiB


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


def analogies(source: Path | Sequence[Section], vectors_VE: NDArray, word_ids: Mapping[str, int]) -> Score:
    """Return the share of questions "a b c d" for which d is the nearest word to b - a + c by cosine.

    The words a, b and c are excluded (Mikolov et al. 2013).

    Args:
        source: The questions, or a file of them in the format of word2vec's questions-words.txt.
        vectors_VE: (V, E) vectors.
        word_ids: Row of each word, in lower case.

    Raises:
        BadInput: The file cannot be read, see `read_analogies`.
    """
    sections = read_analogies(source) if isinstance(source, Path) else source
    ids = [[tuple(word_ids.get(word, -1) for word in asked) for asked in section.questions] for section in sections]
    known = [[question for question in questions if min(question) >= 0] for questions in ids]
    used = sum(map(len, known))
    skipped = sum(map(len, ids)) - used
    if not used:
        return Score(None, 0, skipped, {})
    unit_VE = _unit(vectors_VE)
    detail: dict[str, tuple[int, int]] = {}
    for section, questions in zip(sections, known, strict=True):
        if questions:
            ids_Q4 = np.array(questions)
            right, asked = detail.get(section.name, (0, 0))
            right += int((_answers(unit_VE, ids_Q4) == ids_Q4[:, 3]).sum())
            detail[section.name] = (right, asked + len(questions))
    return Score(sum(right for right, _ in detail.values()) / used, used, skipped, detail)


def _answers(unit_VE: NDArray[np.float64], ids_Q4: NDArray[np.int64]) -> NDArray[np.int64]:
    answers = []
    batch = max(1, _BATCH_SCORES // len(unit_VE))
    for piece_N4 in np.split(ids_Q4, range(batch, len(ids_Q4), batch)):
        a, b, c = piece_N4[:, :3].T
        cosine_NV = (unit_VE[b] - unit_VE[a] + unit_VE[c]) @ unit_VE.T
        np.put_along_axis(cosine_NV, piece_N4[:, :3], -np.inf, axis=1)
        answers.append(cosine_NV.argmax(axis=1))
    return np.concatenate(answers)


def similarity(source: Path | Sequence[ScoredPair], vectors_VE: NDArray, word_ids: Mapping[str, int]) -> Score:
    """Return Spearman's correlation between the cosines and the scores of word pairs.

    Args:
        source: The pairs, or a file of them in the format of WordSim-353.
        vectors_VE: (V, E) vectors.
        word_ids: Row of each word, in lower case.

    Raises:
        BadInput: The file cannot be read, see `read_similarity`.
    """
    pairs = read_similarity(source) if isinstance(source, Path) else source
    known = [pair for pair in pairs if pair.first in word_ids and pair.second in word_ids]
    skipped = len(pairs) - len(known)
    if len(known) < 3:
        return Score(None, len(known), skipped, {})
    unit_VE = _unit(vectors_VE)
    first_P = [word_ids[pair.first] for pair in known]
    second_P = [word_ids[pair.second] for pair in known]
    cosine_P = (unit_VE[first_P] * unit_VE[second_P]).sum(axis=1)
    score_P = np.array([pair.score for pair in known])
    if np.ptp(cosine_P) == 0 or np.ptp(score_P) == 0:
        return Score(None, len(known), skipped, {})
    return Score(float(spearmanr(cosine_P, score_P).statistic), len(known), skipped, {})


def _unit(vectors_VE: NDArray) -> NDArray[np.float64]:
    vectors_VE = vectors_VE.astype(np.float64)
    length_V1 = np.linalg.norm(vectors_VE, axis=1, keepdims=True)
    return vectors_VE / np.where(length_V1 > 0, length_V1, 1.0)
