"""Pairs of a source and its summaries, read from any layout, validated and cached, then read from disk on demand."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.datasets.pairs import layouts
from vocabench.harness.datasets.shared import checksums
from vocabench.harness.datasets.shared.dataset import SPLITS, PairDataset, PairFiles, Progress, no_progress
from vocabench.harness.datasets.shared.duplicates import shares_in_training
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput

Pair = tuple[str, list[str]]  # a source, and one or more references

_SHARED = "shared.json"
_VERSION = 3  # of the cache; to be raised when the same files would give other pairs
_DIGIT = re.compile("[0-9]")
_HELD_OUT = 0.025  # of a single file, for validation; as much again for testing


@dataclass(frozen=True)
class Pairs:
    """Sources with their summaries.

    Attributes:
        name: Name of the dataset, or of the user's file or folder.
        sha256: Checksum of the pairs of all splits, independent of the layout of the files.
        licence: Licence of the text.
        versions: Versions of what the text was built from, where these can change.
        shared_with_training: Share of the pairs of each other split whose source and first reference are also a pair of
            the training split; empty if there is no training split.
        splits: Pairs by split, those of "train", "valid" and "test" that exist; read from disk on demand.
    """

    name: str
    sha256: str
    licence: str
    versions: Mapping[str, str]
    splits: Mapping[str, Sequence[Pair]]
    shared_with_training: Mapping[str, float] = field(default_factory=dict)


class _Lines(Sequence[Pair]):
    """The pairs of a split; only those that are accessed are read.

    Args:
        path: JSON lines file.
        starts_P: (pairs + 1,) byte where each line starts, and where the last one ends.
    """

    def __init__(self, path: Path, starts_P: NDArray[np.int64]) -> None:
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self._starts_P = starts_P

    def __len__(self) -> int:
        return len(self._starts_P) - 1

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | list[Pair]:
        if isinstance(index, slice):
            return [self._read(number) for number in range(len(self))[index]]
        return self._read(range(len(self))[index])

    def _read(self, number: int) -> Pair:
        line = self._bytes[self._starts_P[number] : self._starts_P[number + 1]].tobytes()
        record = json.loads(line)
        return record["text"], record["summaries"]


def find(name: str, progress: Progress = no_progress) -> PairFiles:
    """Return the files of a dataset of pairs, or those at a path; build them first if they are not here."""
    if name not in registry.datasets() and layouts.is_path(name):
        return layouts.at_path(name)
    return registry.dataset_of_kind(name, PairDataset).find(progress)


def load(name: str, *, digits: bool = False, progress: Progress = no_progress) -> Pairs:
    """Validate and map pairs; the validated pairs are cached.

    Args:
        name: Name of a dataset, or a path; see `layouts.at_path`.
        digits: Whether each digit 0-9 becomes "#" in sources and references, as in Rush et al.'s Gigaword.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: The dataset or file does not exist; a line is empty, not UTF-8 or, in JSON lines, not such an object;
            the files differ in length; a reference file is missing; the cache cannot be written.
    """
    text = find(name, progress)
    digests = {split: [checksums.sha256_of_file(path) for path in paths] for split, paths in text.files.items()}
    rule = [_VERSION, digests, text.holds_out, digits]
    key = hashlib.sha256(json.dumps(rule, sort_keys=True).encode()).hexdigest()[:24]
    folder = cache_folder.filled(
        cache_folder.path() / "pairs" / key, lambda scratch: _write_all(text, digits, scratch, progress)
    )
    files = {split: folder / f"{split}.jsonl" for split in SPLITS if (folder / f"{split}.jsonl").is_file()}
    return Pairs(
        name=text.name,
        sha256=checksums.sha256_of_files(files),
        licence=text.licence,
        versions=text.versions,
        splits={
            split: _Lines(path, np.load(folder / f"{split}.npy", allow_pickle=False)) for split, path in files.items()
        },
        # Pairs that differ in their digits only are different pairs.
        shared_with_training=load(name, progress=progress).shared_with_training if digits else _shared(folder),
    )


def line_of(source: str, references: Sequence[str]) -> bytes:
    """Return a pair as a line of a JSON lines file."""
    record = {"text": source, "summaries": list(references)}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _write_all(text: PairFiles, digits: bool, folder: Path, progress: Progress) -> None:
    for split, paths in text.files.items():
        progress(f"{text.name}: checking {split}")
        starts_P = _write(layouts.read(paths), digits, folder / f"{split}.jsonl")
        if len(starts_P) == 1:
            raise BadInput(f"{paths[0]}: it is empty: allowed: a line or more")
        np.save(folder / f"{split}.npy", starts_P)
    if text.holds_out:
        _hold_out(folder, text.name)
    files = {split: folder / f"{split}.jsonl" for split in SPLITS}
    written = {split: _first_pairs(path) for split, path in files.items() if path.is_file()}
    shares = shares_in_training(written) if "train" in written else {}
    (folder / _SHARED).write_text(json.dumps(shares), encoding="utf-8")


def _shared(folder: Path) -> dict[str, float]:
    return json.loads((folder / _SHARED).read_text(encoding="utf-8"))


def _first_pairs(path: Path) -> Iterator[str]:
    """Yield the source and the first reference of each line, as one text."""
    with path.open("rb") as file:
        for line in file:
            record = json.loads(line)
            yield f"{record['text']}\n{record['summaries'][0]}"


def _write(pairs: Iterator[Pair], digits: bool, path: Path) -> NDArray[np.int64]:
    starts = [0]
    with path.open("wb") as file:
        for source, references in pairs:
            if digits:
                source, references = _DIGIT.sub("#", source), [_DIGIT.sub("#", text) for text in references]
            starts.append(starts[-1] + file.write(line_of(source, references)))
    return np.array(starts, dtype=np.int64)


def _hold_out(folder: Path, name: str) -> None:
    """Cut "train" into three: the last pairs are for testing, those before them for validation."""
    whole, starts_P = folder / "whole.jsonl", np.load(folder / "train.npy")
    (folder / "train.jsonl").rename(whole)
    count = len(starts_P) - 1
    held_out = max(1, int(count * _HELD_OUT))
    if count < 3:
        raise BadInput(f"pairs {name}: {count} of them: allowed: from 3, one for each split, or a folder of splits")
    ends = {"train": count - 2 * held_out, "valid": count - held_out, "test": count}
    first = 0
    with whole.open("rb") as source:
        for split, end in ends.items():
            (folder / f"{split}.jsonl").write_bytes(source.read(starts_P[end] - starts_P[first]))
            np.save(folder / f"{split}.npy", starts_P[first : end + 1] - starts_P[first])
            first = end
    whole.unlink()
