"""The actions of `vocabench data`: list, get and verify datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

from vocabench.harness import registry
from vocabench.harness.datasets.documents import encoded_documents
from vocabench.harness.datasets.pairs import summary_pairs
from vocabench.harness.datasets.shared import checksums
from vocabench.harness.datasets.shared.dataset import (
    Dataset,
    DocumentDataset,
    PairDataset,
    Progress,
    SpeechDataset,
    TextDataset,
)
from vocabench.harness.datasets.speech import recordings, speech_corpora
from vocabench.harness.datasets.text import corpora
from vocabench.impls.errors import BadInput


@dataclass(frozen=True)
class Entry:
    """A dataset as it is listed.

    Attributes:
        kind: "text", "pairs", "speech" or "documents".
        is_here: Whether it needs neither a build nor a download.
    """

    name: str
    kind: str
    description: str
    licence: str
    source: str
    is_here: bool


def describe() -> list[Entry]:
    """Return an entry for each dataset. This builds and downloads nothing."""
    datasets = [registry.dataset(name) for name in registry.datasets()]
    return [Entry(d.name, d.kind, d.description, d.licence, d.source, d.is_here()) for d in datasets]


def get(name: str, progress: Progress) -> str:
    """Build or download a dataset unless it is here, and return a line that describes it."""
    return f"{name}: {_summary(registry.dataset(name), progress)}"


def verify(name: str, progress: Progress) -> str:
    """Check the files of a dataset against all known checksums, and return the sha256 of its contents.

    Raises:
        BadInput: The dataset is not here, is damaged, or is not the file that was published.
    """
    dataset = registry.dataset(name)
    if not dataset.is_here():
        raise BadInput(f"dataset {name!r} is not here, or is damaged: allowed: 'vocabench data get {name}' first")
    match dataset:
        case TextDataset() | DocumentDataset():
            return checksums.sha256_of_files(dataset.find(progress).files)
        case PairDataset():
            return summary_pairs.load(name, progress=progress).sha256
        case SpeechDataset():
            return recordings.sha256(dataset.find(progress).folder)
    raise TypeError(dataset)


def _summary(dataset: Dataset[Any], progress: Progress) -> str:
    match dataset:
        case TextDataset():
            corpus = corpora.load(dataset.name, progress=progress)
            return f"{len(corpus.words):,} words; tokens: {_counts(corpus.splits)}; sha256 {corpus.sha256}"
        case PairDataset():
            pairs = summary_pairs.load(dataset.name, progress=progress)
            return f"pairs: {_counts(pairs.splits)}; sha256 {pairs.sha256}"
        case SpeechDataset():
            speech = speech_corpora.load(dataset.name, progress=progress)
            hours = sum(utterance.seconds for split in speech.splits.values() for utterance in split) / 3600
            skipped = ", ".join(f"{reason} {len(ids):,}" for reason, ids in speech.skipped.items()) or "none"
            return (
                f"{hours:.2f} hours; utterances: {_counts(speech.splits)}; skipped: {skipped}; sha256 {speech.sha256}"
            )
        case DocumentDataset():
            documents = encoded_documents.load(dataset.name, progress=progress)
            return (
                f"{len(documents.words):,} words; {len(documents.labels):,} labels; "
                f"documents: {_counts(documents.splits)}; sha256 {documents.sha256}"
            )
    raise TypeError(dataset)


def _counts(splits: Mapping[str, Sized]) -> str:
    return ", ".join(f"{split} {len(items):,}" for split, items in splits.items())
