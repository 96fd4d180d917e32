"""What a dataset gives before its words are counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Text:
    """Text files ready to be counted.

    Attributes:
        name: Of the dataset.
        files: Split to file; "train" and "valid" at least.
        rule: One of `text.RULES`.
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
    """A folder of utterances in the one form that `recordings` writes.

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
