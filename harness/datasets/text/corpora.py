"""Text corpora, counted and encoded once and then memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.datasets.shared import checksums
from vocabench.harness.datasets.shared.dataset import Progress, TextDataset, TextFiles, no_progress
from vocabench.harness.datasets.shared.duplicates import shares_in_training
from vocabench.harness.datasets.text import layouts, tokenization, word_ids
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput, unknown

OWN_RULE = "dataset"  # the tokenization rule of the dataset itself
RULES = (OWN_RULE, *tokenization.RULES)

_SHARED = "shared.json"
_VERSION = 4  # of the cache; to be raised when the same text would be encoded differently


@dataclass(frozen=True)
class Corpus:
    """Encoded text.

    Attributes:
        name: Name of the dataset, or of the user's file or folder; with the tokenization rule, if it is not that of
            the dataset.
        sha256: Checksum of the text of all splits, and of the rule, if it is not that of the dataset.
        licence: Licence of the text.
        versions: Versions of what the text was built from, where these can change.
        words: Words in order of their ids, by decreasing count, ties in alphabetical order.
        counts_V: (V,) int64, occurrences in the training split.
        splits: (tokens,) int32 ids by split, memory-mapped: "train", "valid", and "test" if there is one.
        rule: Tokenization, a key of `tokenization.RULES`.
        unseen: Number of words by split that do not occur in the training split, and are therefore <unk>.
        shared_with_training: Share of the lines of each other split that are also lines of the training split, blank
            ones aside; empty for text without lines.
    """

    name: str
    sha256: str
    licence: str
    versions: Mapping[str, str]
    words: list[str]
    counts_V: NDArray[np.int64]
    splits: Mapping[str, NDArray[np.int32]]
    rule: str = "whitespace"
    unseen: Mapping[str, int] = field(default_factory=dict)
    shared_with_training: Mapping[str, float] = field(default_factory=dict)


def find(name: str, progress: Progress = no_progress) -> TextFiles:
    """Return the text of a dataset, or the text at a path; build or download it first if it is not here."""
    if name not in registry.datasets() and layouts.is_path(name):
        return layouts.at_path(name)
    return registry.dataset_of_kind(name, TextDataset).find(progress)


def load(
    name: str,
    *,
    vocab: int | None = None,
    min_count: int | None = None,
    rule: str = OWN_RULE,
    progress: Progress = no_progress,
) -> Corpus:
    """Count, encode and map a corpus; the encoded text is cached.

    Args:
        name: Name of a dataset, or a path; see `layouts.at_path`.
        vocab: Size of the vocabulary, <unk> and <eos> included; None keeps the words that occur often enough.
        min_count: Fewest occurrences of a kept word; None takes the dataset's own number.
        rule: Tokenization, one of `RULES`. A user's text is English by default, and is refused by default if it is
            tokenized already.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: The dataset does not exist; a split is missing or empty; the text is not UTF-8; the vocabulary is
            below 2 or above the number of distinct words; a user's text contains <unk> or <eos> and no rule is given; a
            download fails; the cache cannot be written.
    """
    if vocab is not None and min_count is not None:
        raise BadInput(f"vocab={vocab} and min_count={min_count}: allowed: one of them")
    if vocab is not None and vocab < 2:
        raise BadInput(f"vocabulary of {vocab} for dataset {name!r}: allowed: from 2")
    if min_count is not None and min_count < 1:
        raise BadInput(f"min_count={min_count} for dataset {name!r}: allowed: from 1")
    if rule not in RULES:
        raise unknown("text rule", rule, RULES)
    text = find(name, progress)
    sha256 = checksums.sha256_of_files(text.files)
    is_assumed = rule == OWN_RULE and name not in registry.datasets() and text.rule == "english"
    if rule not in (OWN_RULE, text.rule):
        text = replace(text, name=f"{text.name}, text rule {rule}", rule=rule)
        sha256 = hashlib.sha256(json.dumps([sha256, rule]).encode()).hexdigest()
    fewest = text.min_count if min_count is None else min_count
    key = hashlib.sha256(
        json.dumps([_VERSION, sha256, text.rule, is_assumed, vocab or f"min_count {fewest}"]).encode()
    ).hexdigest()[:24]

    def fill(folder: Path) -> None:
        if is_assumed:
            _check_untokenized(text)
        word_ids.encode(text.name, _tokens(text), vocab, fewest, folder, progress)
        has_lines = tokenization.RULES[text.rule].ends_lines != "none"
        lines = {split: tokenization.filled_lines(path) for split, path in text.files.items()}
        (folder / _SHARED).write_text(json.dumps(shares_in_training(lines) if has_lines else {}), encoding="utf-8")

    folder = cache_folder.filled(cache_folder.path() / "corpora" / key, fill)
    return Corpus(
        name=text.name,
        sha256=sha256,
        licence=text.licence,
        versions=text.versions,
        words=word_ids.read_words(folder),
        counts_V=word_ids.read_counts(folder),
        splits={split: word_ids.read_ids(folder, split) for split in text.files},
        rule=text.rule,
        unseen=word_ids.read_unseen(folder),
        shared_with_training=json.loads((folder / _SHARED).read_text(encoding="utf-8")),
    )


def _check_untokenized(text: TextFiles) -> None:
    """Raise `BadInput` for text that is tokenized already, whose symbols the English rule would turn into words."""
    for split, path in text.files.items():
        if (found := tokenization.first_symbol(path)) is not None:
            number, symbol = found
            raise BadInput(
                f"dataset {text.name!r}, line {number:,} of its {split} split: {symbol}, as in text that is tokenized "
                "already: allowed: --text-rule lines or whitespace to take its words as they are, or --text-rule "
                "english"
            )


def _tokens(text: TextFiles) -> dict[str, Iterator[list[str]]]:
    return {split: tokenization.tokens(path, text.rule) for split, path in text.files.items()}
