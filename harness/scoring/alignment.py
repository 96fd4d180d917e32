"""Alignment of a hypothesis with a reference, both of which may have alternatives.

The costs are those of sclite: 4 for a substitution and 3 for a deletion or an insertion. Two substitutions therefore
cost more than an insertion and a deletion around a word that agrees, and the number of errors is not always that of
the least edit distance.
"""

from __future__ import annotations

from dataclasses import dataclass

from vocabench.harness.scoring.word_networks import WordNetwork

SUBSTITUTION, DELETION, INSERTION = 4, 3, 3


@dataclass(frozen=True)
class Counts:
    """Numbers of words of the cheapest alignment."""

    correct: int
    substitutions: int
    deletions: int
    insertions: int


# Cost, correct words, substitutions, deletions, insertions.
_Path = tuple[int, int, int, int, int]


def align(reference: WordNetwork, hypothesis: WordNetwork) -> Counts:
    """Return the counts of the cheapest alignment of any reading of the reference with any of the hypothesis."""
    rows: list[list[_Path]] = []
    for own, incoming in enumerate(reference.arcs):
        row: list[_Path] = []
        for place, arriving in enumerate(hypothesis.arcs):
            row.append(_cheapest(rows, row, incoming, arriving, place) if own or place else (0, 0, 0, 0, 0))
        rows.append(row)
    return Counts(*rows[-1][-1][1:])


def _cheapest(
    rows: list[list[_Path]],
    row: list[_Path],
    incoming: tuple[tuple[int, str | None], ...],
    arriving: tuple[tuple[int, str | None], ...],
    place: int,
) -> _Path:
    """Return the cheapest path to a pair of nodes; of several, the first one that is tried."""
    paths: list[_Path] = []
    for before, word in incoming:
        if word is None:
            paths.append(rows[before][place])
            continue
        for earlier, other in arriving:
            if other is not None:
                cost, correct, substitutions, deletions, insertions = rows[before][earlier]
                if word == other:
                    paths.append((cost, correct + 1, substitutions, deletions, insertions))
                else:
                    paths.append((cost + SUBSTITUTION, correct, substitutions + 1, deletions, insertions))
    for earlier, other in arriving:
        cost, correct, substitutions, deletions, insertions = row[earlier]
        if other is None:
            paths.append(row[earlier])
        else:
            paths.append((cost + INSERTION, correct, substitutions, deletions, insertions + 1))
    for before, word in incoming:
        if word is not None:
            cost, correct, substitutions, deletions, insertions = rows[before][place]
            paths.append((cost + DELETION, correct, substitutions, deletions + 1, insertions))
    return min(paths, key=lambda path: path[0])
