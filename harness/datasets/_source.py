"""What a dataset is before its words are counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.datasets._files import Progress

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Text:
    """Text files ready to be counted.

    Attributes:
        name: Of the dataset.
        files: Split to file; "train" and "valid" at least.
        rule: One of `_text.RULES`.
        licence: Of the text.
        min_count: A word that occurs less often in the training split becomes <unk>, unless a size is asked for.
        versions: What the text was made from, where that can change.
    """

    name: str
    files: Mapping[str, Path]
    rule: str
    licence: str
    min_count: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PairText:
    """Files with pairs of source and summary, ready to be checked.

    Attributes:
        name: Of the dataset.
        files: Split to a JSON lines file, or to a file of sources and one or more of references, line by line.
        licence: Of the text.
        holds_out: Whether "train" is all there is, and the other splits are cut from its end.
        versions: What the text was made from, where that can change.
    """

    name: str
    files: Mapping[str, tuple[Path, ...]]
    licence: str
    holds_out: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """A folder of utterances in the one form that `_recordings` writes.

    Attributes:
        name: Of the dataset.
        folder: Where it is.
        licence: Of sound and transcripts.
        versions: What they were made from, where that can change.
    """

    name: str
    folder: Path
    licence: str
    versions: Mapping[str, str] = field(default_factory=dict)


class Dataset(Protocol):
    """What a file in this folder defines that holds running text."""

    KIND: str  # "text"
    DESCRIPTION: str
    SOURCE: str
    LICENCE: str

    def text(self, progress: Progress) -> Text:
        """Build, find or download the text, and check it where its checksum is known."""
        ...

    def is_here(self) -> bool:
        """Whether `text` would need neither building nor a network."""
        ...


class PairDataset(Protocol):
    """What a file in this folder defines that holds pairs."""

    KIND: str  # "pairs"
    DESCRIPTION: str
    SOURCE: str
    LICENCE: str
    MAY_QUOTE: bool  # whether rows may show a few of its pairs, which go where the rows go

    def pairs(self, progress: Progress) -> PairText:
        """Build the pairs."""
        ...

    def is_here(self) -> bool:
        """Whether `pairs` would need no building."""
        ...


class SpeechDataset(Protocol):
    """What a file in this folder defines that holds speech."""

    KIND: str  # "speech"
    DESCRIPTION: str
    SOURCE: str
    LICENCE: str
    MAY_QUOTE: bool  # whether rows may show a few of its transcripts, which go where the rows go

    def recorded(self, progress: Progress) -> Recorded:
        """Build the utterances."""
        ...

    def is_here(self) -> bool:
        """Whether `recorded` would need no building."""
        ...
