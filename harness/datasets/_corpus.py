"""Corpora: text files counted and encoded once, then memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness import registry
from harness.datasets import _files, _text
from harness.datasets._files import Progress
from impls.errors import BadInput, unknown

_FORMAT = 1  # of the cache: raised when encoded files would differ
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Text:
    """Text files ready to be counted.

    Attributes:
        name: Of the dataset.
        files: Split to file; "train" and "valid" at least.
        rule: One of `_text.RULES`.
        min_count: A word that occurs less often in the training split becomes <unk>, unless a size is asked for.
        licence: Of the text.
        versions: What the text was made from, where that can change.
    """

    name: str
    files: Mapping[str, Path]
    rule: str
    licence: str
    min_count: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)


class Dataset(Protocol):
    """What a file in this folder defines."""

    DESCRIPTION: str
    SOURCE: str
    LICENCE: str

    def text(self, progress: Progress) -> Text:
        """Build, find or download the text."""
        ...

    def is_here(self) -> bool:
        """Whether `text` would need neither building nor a network."""
        ...


@dataclass(frozen=True)
class Corpus:
    """Encoded text.

    Attributes:
        sha256: Of the text files.
        words: Id to word, by falling count.
        counts_V: (V,) int64: occurrences in the training split.
        splits: Split to memory-mapped (tokens,) int32 ids.
    """

    name: str
    sha256: str
    licence: str
    versions: Mapping[str, str]
    words: list[str]
    counts_V: NDArray[np.int64]
    splits: Mapping[str, NDArray[np.int32]]


def find(name: str, progress: Progress) -> Text:
    """The text of a dataset, or of a file or folder by its path.

    A folder holds train.txt and valid.txt, and test.txt if it likes; of a single file, the last 5 % are held out, half
    for validation and half for testing.
    """
    if name in registry.datasets():
        return registry.dataset(name).text(progress)
    path = Path(name)
    if path.is_dir():
        files = {split: path / f"{split}.txt" for split in SPLITS if (path / f"{split}.txt").is_file()}
        return Text(path.name, files, "english", "the user's own")
    if path.is_file():
        return Text(path.stem, _cut(path), "english", "the user's own")
    if "/" in name or name.endswith(".txt"):
        raise BadInput(
            f"text {name!r}: no such file or folder: allowed: a path, or one of {', '.join(registry.datasets())}"
        )
    raise unknown("dataset", name, registry.datasets())


def load(
    name: str, *, vocab: int | None = None, min_count: int | None = None, progress: Progress = lambda text: None
) -> Corpus:
    """Count, encode and map a dataset, from the cache where it has been done before.

    Args:
        name: A dataset, or a path.
        vocab: So many words, <unk> among them; None takes those that occur `min_count` times.
        min_count: In place of the dataset's own.

    Raises:
        BadInput: No such dataset; a split is missing or empty; text that is not UTF-8; a vocabulary below 2 or above
        the
            number of words there are; a cache that cannot be written.
    """
    text = find(name, progress)
    for split in ("train", "valid"):
        if split not in text.files:
            raise BadInput(f"dataset {name!r} has no {split} split: allowed: train, valid and perhaps test")
    sha256 = _files.sha256_of(*text.files.values())
    rule = {"format": _FORMAT, "rule": text.rule, "vocab": vocab, "min_count": min_count or text.min_count}
    key = hashlib.sha256(json.dumps([sha256, sorted(text.files), rule], sort_keys=True).encode()).hexdigest()[:24]
    folder = _files.cache_folder() / "corpora" / key
    if not folder.is_dir():
        with _files.finished_folder(folder) as scratch:
            _encode(text, vocab, min_count or text.min_count, scratch, progress)
    counts_V = np.load(folder / "counts.npy", allow_pickle=False)
    return Corpus(
        name=text.name,
        sha256=sha256,
        licence=text.licence,
        versions=text.versions,
        words=(folder / "words.txt").read_text(encoding="utf-8").split("\n"),
        counts_V=counts_V,
        splits={split: np.load(folder / f"{split}.npy", mmap_mode="r", allow_pickle=False) for split in text.files},
    )


def _encode(text: Text, vocab: int | None, min_count: int, folder: Path, progress: Progress) -> None:
    progress(f"{text.name}: counting")
    counts: Counter[str] = Counter()
    for words in _text.tokens(text.files["train"], text.rule):
        counts.update(words)
    if not counts:
        raise BadInput(f"dataset {text.name!r}: the training split {text.files['train']} is empty: allowed: text")
    kept = _vocabulary(text.name, counts, vocab, min_count)
    ids = {word: number for number, word in enumerate(kept)}
    unknown_id = ids[_text.UNK]
    for split, path in text.files.items():
        progress(f"{text.name}: encoding {split}")
        total = _encode_file(path, text.rule, ids, unknown_id, folder / f"{split}.npy")
        if not total:
            raise BadInput(f"dataset {text.name!r}: the {split} split {path} is empty: allowed: text")
    train_T = np.load(folder / "train.npy", mmap_mode="r", allow_pickle=False)
    counts_V = np.zeros(len(kept), dtype=np.int64)
    for start in range(0, len(train_T), 1 << 24):
        counts_V += np.bincount(train_T[start : start + (1 << 24)], minlength=len(kept))
    np.save(folder / "counts.npy", counts_V)
    (folder / "words.txt").write_text("\n".join(kept), encoding="utf-8")


def _vocabulary(name: str, counts: Counter[str], vocab: int | None, min_count: int) -> list[str]:
    """Words by falling count, then alphabetically; <unk> stands where its own count puts it."""
    unknown_count = counts.pop(_text.UNK, 0)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    if vocab is None:
        kept = [word for word in ranked if counts[word] >= min_count]
    else:
        if not 2 <= vocab <= len(ranked) + 1:
            raise BadInput(
                f"vocabulary of {vocab} for dataset {name!r}: allowed: from 2 to {len(ranked) + 1:,}, the words it has"
            )
        kept = ranked[: vocab - 1]
    unknown_count += sum(counts[word] for word in ranked[len(kept) :])
    place = sum(counts[word] >= unknown_count for word in kept)
    return [*kept[:place], _text.UNK, *kept[place:]]


def _encode_file(path: Path, rule: str, ids: Mapping[str, int], unknown_id: int, target: Path) -> int:
    """Write the ids of a file as .npy, whose header is put right at the end; returns how many there are."""
    raw = target.with_suffix(".raw")
    total = 0
    with raw.open("wb") as file:
        for words in _text.tokens(path, rule):
            piece = np.fromiter((ids.get(word, unknown_id) for word in words), dtype=np.int32, count=len(words))
            piece.tofile(file)
            total += len(piece)
    if total:
        mapped = np.lib.format.open_memmap(target, mode="w+", dtype=np.int32, shape=(total,))
        source = np.memmap(raw, dtype=np.int32, mode="r")
        for start in range(0, total, 1 << 24):
            mapped[start : start + (1 << 24)] = source[start : start + (1 << 24)]
        mapped.flush()
    raw.unlink()
    return total


def _cut(path: Path) -> dict[str, Path]:
    """A single file in three, by lines: the first 95 %, and two halves of the rest."""
    sha256 = _files.sha256_of(path)
    folder = _files.cache_folder() / "texts" / f"{path.stem}-{sha256[:16]}"
    if not folder.is_dir():
        ends = [int(path.stat().st_size * share) for share in (0.95, 0.975, 1.0)]
        with _files.finished_folder(folder) as scratch, path.open("rb") as source:
            at = 0
            for split, end in zip(SPLITS, ends, strict=True):
                with (scratch / f"{split}.txt").open("wb") as target:
                    while at < end and (line := source.readline()):
                        at += len(line)
                        target.write(line)
    return {split: folder / f"{split}.txt" for split in SPLITS}
