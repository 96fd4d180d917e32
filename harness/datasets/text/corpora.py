"""Corpora: text counted and encoded once, then memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.datasets.shared import local_files
from vocabench.harness.datasets.shared.local_files import Progress
from vocabench.harness.datasets.shared.source import Text
from vocabench.harness.datasets.text import encode, own, tokenization
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput

_FORMAT = 3  # of the cache: raised when the same text would be encoded otherwise


@dataclass(frozen=True)
class Corpus:
    """Encoded text.

    Attributes:
        name: Of the dataset, or of the user's file or folder.
        sha256: Of the text of all splits.
        licence: Of the text.
        versions: What the text was made from, where that can change.
        words: Id to word, by falling count, then alphabetically.
        counts_V: (V,) int64: occurrences in the training split.
        splits: Split to memory-mapped (tokens,) int32 ids: "train", "valid", and "test" where there is one.
    """

    name: str
    sha256: str
    licence: str
    versions: Mapping[str, str]
    words: list[str]
    counts_V: NDArray[np.int64]
    splits: Mapping[str, NDArray[np.int32]]


def _silent(_: str) -> None:
    pass


def find(name: str, progress: Progress = _silent) -> Text:
    """The text of a dataset, or of a file or folder by its path; built or downloaded where it must be."""
    if name not in registry.datasets() and own.is_path(name):
        return own.text(name)
    return registry.dataset_of_kind(name, "text").text(progress)


def _tokens(text: Text) -> dict[str, Iterator[list[str]]]:
    return {split: tokenization.tokens(path, text.rule) for split, path in text.files.items()}


def load(name: str, *, vocab: int | None = None, min_count: int | None = None, progress: Progress = _silent) -> Corpus:
    """Count, encode and map a dataset, from the cache where it has been done before.

    Args:
        name: A dataset, or a path.
        vocab: So many words, <unk> and <eos> among them; None keeps those that occur often enough.
        min_count: How often that is, in place of the dataset's own rule.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: No such dataset; a split is missing or empty; text that is not UTF-8; a vocabulary below 2 or above
            the number of words there are; a failed download; a cache that cannot be written.
    """
    if vocab is not None and min_count is not None:
        raise BadInput(f"vocab={vocab} and min_count={min_count}: allowed: one of them")
    if vocab is not None and vocab < 2:
        raise BadInput(f"vocabulary of {vocab} for dataset {name!r}: allowed: from 2")
    if min_count is not None and min_count < 1:
        raise BadInput(f"min_count={min_count} for dataset {name!r}: allowed: from 1")
    text = find(name, progress)
    sha256 = local_files.sha256_of(text.files)
    fewest = min_count or text.min_count
    rule = [_FORMAT, sha256, text.rule, vocab or f"min_count {fewest}"]
    key = hashlib.sha256(json.dumps(rule).encode()).hexdigest()[:24]
    folder = cache_folder.filled(
        cache_folder.path() / "corpora" / key,
        lambda scratch: encode.encode(text.name, _tokens(text), vocab, fewest, scratch, progress),
    )
    return Corpus(
        name=text.name,
        sha256=sha256,
        licence=text.licence,
        versions=text.versions,
        words=encode.read_words(folder),
        counts_V=encode.read_counts(folder),
        splits={split: encode.read_ids(folder, split) for split in text.files},
    )
