"""Transcripts with alternatives, as networks of words.

In SCTK's notation, `{ a / b c / @ }` stands for one of several sequences of words, and `@` for no word. Alternatives
may be nested, and need no spaces around the braces and slashes. A slash outside braces is part of a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vocabench.impls.errors import BadInput

_NO_WORD = "@"

_TOKENS = re.compile(r"[{}]|[^\s{}]+")
_TOKENS_INSIDE = re.compile(r"[{}/]|[^\s{}/]+")


@dataclass(frozen=True)
class Choice:
    """Alternative sequences, of which one was spoken."""

    alternatives: tuple[Sequence_, ...]


Sequence_ = tuple["str | Choice | None", ...]  # None for no word


@dataclass(frozen=True)
class WordNetwork:
    """A directed acyclic graph whose paths from the first to the last node are the readings of a transcript.

    Attributes:
        arcs: For each node, its incoming arcs as (earlier node, word); the word is None for an arc without one. The
            nodes are in topological order.
    """

    arcs: tuple[tuple[tuple[int, str | None], ...], ...]


def parse(text: str) -> Sequence_:
    """Return the words and choices of a transcript.

    Raises:
        BadInput: Braces do not match, or an alternative is empty. The message does not name the file.
    """
    tokens: list[str] = []
    depth = place = 0
    while match := (_TOKENS_INSIDE if depth else _TOKENS).search(text, place):
        tokens.append(match[0])
        depth += (match[0] == "{") - (match[0] == "}")
        if depth < 0:
            break
        place = match.end()
    if depth:
        raise BadInput(f"{text[:60]!r}: a brace without its partner: allowed: {{ a / b }}, with @ for no word")
    sequence, _ = _sequence(tokens, 0)
    return sequence


def _sequence(tokens: Sequence[str], place: int) -> tuple[Sequence_, int]:
    """Return the sequence that starts at `place`, and the place of what ends it."""
    items: list[str | Choice | None] = []
    while place < len(tokens) and tokens[place] not in ("}", "/"):
        if tokens[place] != "{":
            items.append(None if tokens[place] == _NO_WORD else tokens[place])
            place += 1
            continue
        alternatives: list[Sequence_] = []
        while tokens[place] != "}":
            alternative, place = _sequence(tokens, place + 1)
            if not alternative:
                raise BadInput(f"an empty alternative in {' '.join(tokens)[:60]!r}: allowed: @ for no word")
            alternatives.append(alternative)
        items.append(Choice(tuple(alternatives)))
        place += 1
    return tuple(items), place


def mapped(sequence: Sequence_, words_of: Callable[[str], Iterable[str]]) -> Sequence_:
    """Return the sequence with each word replaced by those that `words_of` returns, which may be none."""
    items: list[str | Choice | None] = []
    for item in sequence:
        if isinstance(item, Choice):
            items.append(Choice(tuple(mapped(each, words_of) for each in item.alternatives)))
        elif item is not None:
            items += words_of(item)
    return tuple(items)


def only_reading(sequence: Sequence_) -> list[str]:
    """Return the words of a sequence without choices.

    Raises:
        BadInput: The sequence has a choice.
    """
    if any(isinstance(item, Choice) for item in sequence):
        raise BadInput("alternatives in braces: allowed with --alignment sclite only")
    return [item for item in sequence if isinstance(item, str)]


def network(sequence: Sequence_) -> WordNetwork:
    """Return the network of a sequence."""
    arcs: list[tuple[tuple[int, str | None], ...]] = [()]

    def extend(start: int, items: Sequence_) -> int:
        for item in items:
            if isinstance(item, Choice):
                ends = [(extend(start, alternative), None) for alternative in item.alternatives]
                arcs.append(tuple(ends))
            else:
                arcs.append(((start, item),))
            start = len(arcs) - 1
        return start

    extend(0, sequence)
    return WordNetwork(tuple(arcs))
