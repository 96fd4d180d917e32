"""Documents as word ids: validated, split, counted and encoded once, then memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.datasets.documents import layouts
from vocabench.harness.datasets.documents.layouts import SPLITS, Document
from vocabench.harness.datasets.pairs.encoded_pairs import Ragged
from vocabench.harness.datasets.shared import checksums
from vocabench.harness.datasets.shared.dataset import DocumentDataset, DocumentFiles, Progress, no_progress
from vocabench.harness.datasets.shared.duplicates import shares_in_training
from vocabench.harness.datasets.text import tokenization, word_ids
from vocabench.harness.datasets.text.corpora import OWN_RULE
from vocabench.harness.datasets.text.tokenization import SYMBOLS, UNK
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput, unknown

RULES = (OWN_RULE, "english", "whitespace")  # the ends of lines have no meaning in documents

_SHARED = "shared.json"
_VERSION = 2  # of the cache; to be raised when the same files would be encoded differently
_HELD_OUT = 0.2  # of the documents of a single file, for testing


@dataclass(frozen=True)
class Labelled:
    """The documents of a split.

    Attributes:
        texts: Word ids of each document; words outside the vocabulary are <unk>.
        labels_N: (N,) index of the label of each document.
    """

    texts: Ragged
    labels_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels_N)

    @property
    def document_T(self) -> NDArray[np.int64]:
        """The document of each word, (tokens,)."""
        return np.repeat(np.arange(len(self)), self.texts.lengths_P)


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents with labels.

    Attributes:
        name: Name of the dataset, or of the user's file or folder; with the tokenization rule, if it is not that of
            the dataset.
        sha256: Checksum of the files, and of the rule, if it is not that of the dataset.
        licence: Licence of the text.
        versions: Versions of what the documents were built from, where these can change.
        words: Words in order of their ids, by decreasing count, ties in alphabetical order.
        counts_V: (V,) int64, occurrences in the training split.
        labels: Labels in alphabetical order.
        splits: Documents by split: "train" and "test".
        rule: Tokenization, a key of `tokenization.RULES`.
        shared_with_training: Share of the documents of "test", by this name, whose text is also one of "train".
    """

    name: str
    sha256: str
    licence: str
    versions: Mapping[str, str]
    words: list[str]
    counts_V: NDArray[np.int64]
    labels: list[str]
    splits: Mapping[str, Labelled]
    rule: str = "english"
    shared_with_training: Mapping[str, float] = field(default_factory=dict)


def find(name: str, progress: Progress = no_progress) -> DocumentFiles:
    """Return the files of a dataset of documents, or those at a path; build them first if they are not here."""
    if name not in registry.datasets() and layouts.is_path(name):
        return layouts.at_path(name)
    return registry.dataset_of_kind(name, DocumentDataset).find(progress)


def load(
    name: str,
    *,
    vocab: int | None = None,
    min_count: int = 3,
    rule: str = OWN_RULE,
    progress: Progress = no_progress,
) -> EncodedDocuments:
    """Validate, split, count and encode documents; the result is cached.

    Args:
        name: Name of a dataset, or a path; see `layouts.at_path`.
        vocab: Size of the vocabulary, <unk> included; None keeps words that occur at least `min_count` times.
        min_count: See `vocab`.
        rule: Tokenization, one of `RULES`. A user's documents are English by default, and are refused by default if
            they are tokenized already.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: As in `layouts.at_path` and `layouts.read`; a document has no word of the vocabulary; a split has no
            document; the vocabulary is below 2 or above the number of distinct words; a user's document contains <unk>
            or <eos> and no rule is given.
    """
    if rule not in RULES:
        raise unknown("text rule", rule, RULES)
    text = find(name, progress)
    sha256 = checksums.sha256_of_files(text.files)
    is_assumed = rule == OWN_RULE and name not in registry.datasets()
    if rule not in (OWN_RULE, text.rule):
        text = replace(text, name=f"{text.name}, text rule {rule}", rule=rule)
        sha256 = hashlib.sha256(json.dumps([sha256, rule]).encode()).hexdigest()
    form = [_VERSION, sha256, text.holds_out, text.rule, is_assumed, vocab or f"min_count {min_count}"]
    key = hashlib.sha256(json.dumps(form).encode()).hexdigest()[:24]

    def fill(scratch: Path) -> None:
        if is_assumed:
            _check_untokenized(text)
        _write(text, vocab, min_count, scratch, progress)

    folder = cache_folder.filled(cache_folder.path() / "documents" / key, fill)
    return EncodedDocuments(
        name=text.name,
        sha256=sha256,
        licence=text.licence,
        versions=text.versions,
        words=word_ids.read_words(folder),
        counts_V=word_ids.read_counts(folder),
        labels=json.loads((folder / "labels.json").read_text(encoding="utf-8")),
        splits={split: _read(folder, split) for split in SPLITS},
        rule=text.rule,
        shared_with_training=json.loads((folder / _SHARED).read_text(encoding="utf-8")),
    )


def _check_untokenized(text: DocumentFiles) -> None:
    """Raise `BadInput` for documents that are tokenized already, of whose <unk> the English rule makes a word."""
    for path in text.files.values():
        for document in layouts.read(path):
            if symbol := next((word for word in document.text.split() if word in SYMBOLS), None):
                raise BadInput(
                    f"{path}, line {document.line:,}: {symbol}, as in text that is tokenized already: allowed: "
                    "--text-rule whitespace to take its words as they are, or --text-rule english"
                )


def _documents(text: DocumentFiles, split: str) -> Iterator[Document]:
    """Yield the documents of a split. Of a single file, equal texts are in the same split, whatever their order."""
    if not text.holds_out:
        yield from layouts.read(text.files[split])
        return
    for document in layouts.read(text.files["train"]):
        draw = int.from_bytes(hashlib.sha256(document.text.encode()).digest()[:4], "big") / 2**32
        if (draw < _HELD_OUT) == (split == "test"):
            yield document


def _write(text: DocumentFiles, vocab: int | None, min_count: int, folder: Path, progress: Progress) -> None:
    words_of = tokenization.RULES[text.rule].split
    lengths: dict[str, list[int]] = {split: [] for split in SPLITS}
    lines: dict[str, list[int]] = {split: [] for split in SPLITS}
    labels: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        progress(f"{text.name}: checking {split}")
        labels[split] = [document.label for document in _documents(text, split)]
        if not labels[split]:
            raise BadInput(
                f"documents {text.name}: none in the {split} split: allowed: more documents, or a folder with "
                "train.jsonl and test.jsonl"
            )

    def texts(split: str) -> Iterator[list[str]]:
        for document in _documents(text, split):
            words = words_of(document.text)
            lines[split].append(document.line)
            lengths[split].append(len(words))
            yield words

    word_ids.encode(text.name, {split: texts(split) for split in SPLITS}, vocab, min_count, folder, progress)
    shares = shares_in_training({split: (document.text for document in _documents(text, split)) for split in SPLITS})
    (folder / _SHARED).write_text(json.dumps(shares), encoding="utf-8")
    names = sorted({label for of_split in labels.values() for label in of_split})
    number_of = {label: number for number, label in enumerate(names)}
    (folder / "labels.json").write_text(json.dumps(names), encoding="utf-8")
    for split in SPLITS:
        np.save(folder / f"{split}.starts.npy", np.cumsum([0, *lengths[split]]))
        np.save(folder / f"{split}.labels.npy", np.array([number_of[label] for label in labels[split]]))
    for split in SPLITS:
        _check_known(text, split, _read(folder, split), word_ids.read_words(folder).index(UNK), lines[split])


def _check_known(text: DocumentFiles, split: str, documents: Labelled, unknown: int, lines: list[int]) -> None:
    """Raise `BadInput` for the first document without a word of the vocabulary."""
    is_known_T = documents.texts.ids_T != unknown
    known_N = np.bincount(documents.document_T[is_known_T], minlength=len(documents))
    if not known_N.all():
        path = text.files["train" if text.holds_out else split]
        raise BadInput(
            f"{path}, line {lines[int(known_N.argmin())]:,}: no word of its text is in the vocabulary: allowed: at "
            "least one, so a larger vocabulary or another text"
        )


def _read(folder: Path, split: str) -> Labelled:
    texts = Ragged(word_ids.read_ids(folder, split), np.load(folder / f"{split}.starts.npy", allow_pickle=False))
    return Labelled(texts, np.load(folder / f"{split}.labels.npy", allow_pickle=False))
