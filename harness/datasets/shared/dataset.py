"""Types for datasets: a description, and an origin that finds, builds or downloads the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

SPLITS = ("train", "valid", "test")

Progress = Callable[[str], None]  # called with a line of text now and then


def no_progress(_: str) -> None:
    """Ignore progress messages."""


@dataclass(frozen=True)
class TextFiles:
    """Running text, before its words are counted.

    Attributes:
        name: Name of the dataset.
        files: Path by split; at least "train" and "valid".
        rule: Tokenization, a key of `tokenization.RULES`.
        licence: Licence of the text.
        min_count: Words that occur less often in the training split become <unk>, unless a vocabulary size is given.
            0 stands for 2 if another split has words that the training split lacks and no split has <unk> itself, so
            that <unk> is trained, and otherwise for 1.
        versions: Versions of what the text was built from, where these can change.
    """

    name: str
    files: Mapping[str, Path]
    rule: str
    licence: str
    min_count: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PairFiles:
    """Pairs of a source and its summaries, before they are validated.

    Attributes:
        name: Name of the dataset.
        files: By split, either one JSON lines file, or a file of sources followed by one or more of references.
        licence: Licence of the text.
        holds_out: Whether "train" is the only split, and the others are cut from its end.
        versions: Versions of what the text was built from, where these can change.
    """

    name: str
    files: Mapping[str, tuple[Path, ...]]
    licence: str
    holds_out: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SpeechFiles:
    """A folder of utterances as `recordings` writes it.

    Attributes:
        name: Name of the dataset.
        folder: Path of the folder.
        licence: Licence of the audio and the transcripts.
        versions: Versions of what the utterances were built from, where these can change.
    """

    name: str
    folder: Path
    licence: str
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DocumentFiles:
    """Documents with labels, as JSON lines, before they are validated.

    Attributes:
        name: Name of the dataset.
        files: JSON lines file by split: "train" and "test", or "train" alone.
        rule: Tokenization, a key of `tokenization.RULES`.
        licence: Licence of the text.
        holds_out: Whether "train" is the only split, and a part of its documents is held out for testing.
        versions: Versions of what the documents were built from, where these can change.
    """

    name: str
    files: Mapping[str, Path]
    rule: str
    licence: str
    holds_out: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)


Files = TypeVar("Files", covariant=True)


class Origin(Protocol[Files]):
    """The origin of a dataset's files: a build, a download, or the user's own folder."""

    @property
    def name(self) -> str: ...

    @property
    def licence(self) -> str: ...

    def is_here(self) -> bool:
        """Return whether `find` needs neither a build nor a download."""
        ...

    def find(self, progress: Progress) -> Files:
        """Return the files; build or download them first if they are not here."""
        ...


@dataclass(frozen=True)
class Dataset(Generic[Files]):
    """A dataset; one of the kinds below.

    Attributes:
        description: Contents in one line, for `vocabench data list`.
        source: Address of a download, or how the files are made.
        origin: Finds, builds or downloads the files.
        may_quote: Whether stored rows may quote a few of its texts.
        kind: Name of the kind.
        contents: Description of the kind in error messages.
    """

    kind: ClassVar[str]
    contents: ClassVar[str]

    description: str
    source: str
    origin: Origin[Files]
    may_quote: bool = False

    @property
    def name(self) -> str:
        return self.origin.name

    @property
    def licence(self) -> str:
        return self.origin.licence

    def is_here(self) -> bool:
        """Return whether `find` needs neither a build nor a download."""
        return self.origin.is_here()

    def find(self, progress: Progress) -> Files:
        """Return the files; build or download them first if they are not here."""
        return self.origin.find(progress)


@dataclass(frozen=True)
class TextDataset(Dataset[TextFiles]):
    """Running text."""

    kind = "text"
    contents = "running text"


@dataclass(frozen=True)
class PairDataset(Dataset[PairFiles]):
    """Pairs of a source and its summaries."""

    kind = "pairs"
    contents = "pairs of source and summary"


@dataclass(frozen=True)
class SpeechDataset(Dataset[SpeechFiles]):
    """Transcribed speech."""

    kind = "speech"
    contents = "speech"


@dataclass(frozen=True)
class DocumentDataset(Dataset[DocumentFiles]):
    """Documents with labels."""

    kind = "documents"
    contents = "documents with labels"
