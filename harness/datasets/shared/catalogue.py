"""What `vocabench data` shows and does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass

from vocabench.harness import registry
from vocabench.harness.datasets.pairs import collection
from vocabench.harness.datasets.shared import local_files
from vocabench.harness.datasets.shared.local_files import Progress
from vocabench.harness.datasets.speech import recordings, transcribed
from vocabench.harness.datasets.text import corpora
from vocabench.impls.errors import BadInput


@dataclass(frozen=True)
class Entry:
    """A dataset as it is listed.

    Attributes:
        kind: "text", "pairs" or "speech".
        is_here: Whether it needs neither building nor a network.
    """

    name: str
    kind: str
    description: str
    licence: str
    source: str
    is_here: bool


def describe() -> list[Entry]:
    """Every dataset there is. This builds and downloads nothing."""
    return [_entry(name) for name in registry.datasets()]


def _entry(name: str) -> Entry:
    module = registry.dataset(name)
    return Entry(name, module.KIND, module.DESCRIPTION, module.LICENCE, module.SOURCE, module.is_here())


def get(name: str, progress: Progress) -> str:
    """Download or build a dataset, unless it is here, and say what is in it, in one line."""
    return f"{name}: {_GET[registry.dataset(name).KIND](name, progress)}"


def verify(name: str, progress: Progress) -> str:
    """The sha256 of a dataset's text, once its files have been held against every checksum that is known.

    Raises:
        BadInput: It is not here, is damaged, or is not the file that was published.
    """
    if not registry.dataset(name).is_here():
        raise BadInput(f"dataset {name!r} is not here, or is damaged: allowed: 'vocabench data get {name}' first")
    return _VERIFY[registry.dataset(name).KIND](name, progress)


def _get_text(name: str, progress: Progress) -> str:
    corpus = corpora.load(name, progress=progress)
    return f"{len(corpus.words):,} words; tokens: {_counts(corpus.splits)}; sha256 {corpus.sha256}"


def _get_pairs(name: str, progress: Progress) -> str:
    pairs = collection.load(name, progress=progress)
    return f"pairs: {_counts(pairs.splits)}; sha256 {pairs.sha256}"


def _get_speech(name: str, progress: Progress) -> str:
    speech = transcribed.load(name, progress=progress)
    hours = sum(utterance.seconds for split in speech.splits.values() for utterance in split) / 3600
    skipped = ", ".join(f"{reason} {len(ids):,}" for reason, ids in speech.skipped.items()) or "none"
    return f"{hours:.2f} hours; utterances: {_counts(speech.splits)}; skipped: {skipped}; sha256 {speech.sha256}"


def _counts(splits: Mapping[str, Sized]) -> str:
    return ", ".join(f"{split} {len(each):,}" for split, each in splits.items())


_GET = {"text": _get_text, "pairs": _get_pairs, "speech": _get_speech}
_VERIFY: dict[str, Callable[[str, Progress], str]] = {
    "text": lambda name, progress: local_files.sha256_of(corpora.find(name, progress).files),
    "pairs": lambda name, progress: collection.load(name, progress=progress).sha256,
    "speech": lambda name, progress: recordings.sha256(transcribed.find(name, progress).folder),
}
