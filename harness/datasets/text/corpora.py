"""Text corpora, counted and encoded once and then memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.datasets.shared import checksums
from vocabench.harness.datasets.shared.dataset import Progress, TextDataset, TextFiles, no_progress
from vocabench.harness.datasets.text import layouts, tokenization, word_ids
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput

_VERSION = 3  # of the cache; to be raised when the same text would be encoded differently


@dataclass(frozen=True)
class Corpus:
    """Encoded text.

    Attributes:
        name: Name of the dataset, or of the user's file or folder.
        sha256: Checksum of the text of all splits.
        licence: Licence of the text.
        versions: Versions of what the text was built from, where these can change.
        words: Words in order of their ids, by decreasing count, ties in alphabetical order.
        counts_V: (V,) int64, occurrences in the training split.
        splits: (tokens,) int32 ids by split, memory-mapped: "train", "valid", and "test" if there is one.
    """

    name: str
    sha256: str
    licence: str
    versions: Mapping[str, str]
    words: list[str]
    counts_V: NDArray[np.int64]
    splits: Mapping[str, NDArray[np.int32]]


def find(name: str, progress: Progress = no_progress) -> TextFiles:
    """Return the text of a dataset, or the text at a path; build or download it first if it is not here."""
    if name not in registry.datasets() and layouts.is_path(name):
        return layouts.at_path(name)
    return registry.dataset_of_kind(name, TextDataset).find(progress)


def load(
    name: str, *, vocab: int | None = None, min_count: int | None = None, progress: Progress = no_progress
) -> Corpus:
    """Count, encode and map a corpus; the encoded text is cached.

    Args:
        name: Name of a dataset, or a path; see `layouts.at_path`.
        vocab: Size of the vocabulary, <unk> and <eos> included; None keeps the words that occur often enough.
        min_count: Fewest occurrences of a kept word; None takes the dataset's own rule.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: The dataset does not exist; a split is missing or empty; the text is not UTF-8; the vocabulary is
            below 2 or above the number of distinct words; a download fails; the cache cannot be written.
    """
    if vocab is not None and min_count is not None:
        raise BadInput(f"vocab={vocab} and min_count={min_count}: allowed: one of them")
    if vocab is not None and vocab < 2:
        raise BadInput(f"vocabulary of {vocab} for dataset {name!r}: allowed: from 2")
    if min_count is not None and min_count < 1:
        raise BadInput(f"min_count={min_count} for dataset {name!r}: allowed: from 1")
    text = find(name, progress)
    sha256 = checksums.sha256_of_files(text.files)
    fewest = min_count or text.min_count
    rule = [_VERSION, sha256, text.rule, vocab or f"min_count {fewest}"]
    key = hashlib.sha256(json.dumps(rule).encode()).hexdigest()[:24]
    folder = cache_folder.filled(
        cache_folder.path() / "corpora" / key,
        lambda scratch: word_ids.encode(text.name, _tokens(text), vocab, fewest, scratch, progress),
    )
    return Corpus(
        name=text.name,
        sha256=sha256,
        licence=text.licence,
        versions=text.versions,
        words=word_ids.read_words(folder),
        counts_V=word_ids.read_counts(folder),
        splits={split: word_ids.read_ids(folder, split) for split in text.files},
    )


def _tokens(text: TextFiles) -> dict[str, Iterator[list[str]]]:
    return {split: tokenization.tokens(path, text.rule) for split, path in text.files.items()}
