"""Words to ids: one pass over the text, whatever its size, followed by a renumbering of the ids on disk."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.shared.dataset import Progress
from vocabench.harness.datasets.text.tokenization import EOS, UNK
from vocabench.impls.errors import BadInput

_IDS = np.dtype("<i4")
_BLOCK = 1 << 24  # ids renumbered at a time


def encode(
    name: str,
    splits: Mapping[str, Iterable[list[str]]],
    vocab: int | None,
    min_count: int,
    folder: Path,
    progress: Progress,
) -> None:
    """Write words.txt, counts.npy, unseen.json and the ids of each split into a folder.

    Words first get ids in order of appearance, so that the text is read only once. The words of the training split are
    then ranked, and the ids on disk renumbered.

    Args:
        name: Name of the dataset.
        splits: Words by split, in batches; at least "train".
        vocab: Size of the vocabulary, with <unk>, and with <eos> if the text has it; None keeps the words that occur
            at least `min_count` times in the training split.
        min_count: See `vocab`; 0 for the rule of `TextFiles.min_count`.
        folder: Folder to write to.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: A split has no words, or the vocabulary is below 2 or above the number of distinct words.
    """
    first_ids: defaultdict[str, int] = defaultdict(count().__next__)
    paths: dict[str, Path] = {}
    for split in ("train", *(split for split in splits if split != "train")):
        progress(f"{name}: counting and encoding {split}")
        paths[split] = _ids_path(folder, split)
        with paths[split].open("wb") as file:
            for words in splits[split]:
                np.fromiter(map(first_ids.__getitem__, words), _IDS, len(words)).tofile(file)
        if not paths[split].stat().st_size:
            raise BadInput(f"dataset {name!r}: no words in its {split} split: allowed: text")

    words = list(first_ids)
    counts_W = np.zeros(len(words), dtype=np.int64)
    for ids_T in _blocks(paths["train"], "r"):
        counts_W += np.bincount(ids_T, minlength=len(words))
    if not min_count:
        min_count = _least_that_trains_unknown(words, counts_W)
    kept, new_id_W = _vocabulary(name, words, counts_W, vocab, min_count)
    counts_V = np.zeros(len(kept), dtype=np.int64)
    np.add.at(counts_V, new_id_W, counts_W)
    is_unseen_W = (counts_W == 0) & ~np.isin(words, (UNK, EOS))
    unseen = dict.fromkeys(paths, 0)
    for split, path in paths.items():
        for ids_T in _blocks(path, "r+"):
            unseen[split] += int(is_unseen_W[ids_T].sum())
            ids_T[:] = new_id_W[ids_T]
    (folder / "unseen.json").write_text(json.dumps(unseen), encoding="utf-8")
    np.save(folder / "counts.npy", counts_V)
    (folder / "words.txt").write_text("\n".join(kept), encoding="utf-8")


def read_ids(folder: Path, split: str) -> NDArray[np.int32]:
    """Return the ids of a split, (tokens,), memory-mapped and read-only."""
    return np.memmap(_ids_path(folder, split), dtype=_IDS, mode="r")


def read_words(folder: Path) -> list[str]:
    """Return the words in order of their ids."""
    return (folder / "words.txt").read_text(encoding="utf-8").split("\n")


def read_counts(folder: Path) -> NDArray[np.int64]:
    """Return the number of occurrences of each word in the training split, (V,)."""
    return np.load(folder / "counts.npy", allow_pickle=False)


def read_unseen(folder: Path) -> dict[str, int]:
    """Return the number of words of each split that do not occur in the training split, <unk> and <eos> aside."""
    return json.loads((folder / "unseen.json").read_text(encoding="utf-8"))


def _ids_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.int32"


def _blocks(path: Path, mode: str) -> Iterator[NDArray[np.int32]]:
    ids_T = np.memmap(path, dtype=_IDS, mode=mode)  # type: ignore[call-overload]
    for start in range(0, len(ids_T), _BLOCK):
        yield ids_T[start : start + _BLOCK]


def _least_that_trains_unknown(words: list[str], counts_W: NDArray[np.int64]) -> int:
    """Return 2 if words outside of the training split would be the only <unk> of the text, and 1 otherwise."""
    return 2 if UNK not in words and (counts_W == 0).any() else 1


def _vocabulary(
    name: str, words: list[str], counts_W: NDArray[np.int64], vocab: int | None, min_count: int
) -> tuple[list[str], NDArray[np.int32]]:
    """Return the vocabulary by decreasing count, ties in alphabetical order, and the new id of each word.

    The vocabulary always contains <unk>, and <eos> if the text has it. Both are ranked by their counts like any word.
    """
    counts = dict(zip(words, counts_W.tolist(), strict=True))
    unknown_count = counts.pop(UNK, 0)
    special = [EOS] if counts.pop(EOS, 0) else []
    ranked = sorted((word for word in counts if counts[word]), key=lambda word: (-counts[word], word))
    most = len(ranked) + len(special) + 1
    if vocab is None:
        kept = [word for word in ranked if counts[word] >= min_count]
    elif 2 <= vocab <= most:
        kept = ranked[: vocab - len(special) - 1]
    else:
        raise BadInput(f"vocabulary of {vocab} for dataset {name!r}: allowed: from 2 to {most:,}, the words it has")
    total = {word: counts[word] for word in kept}
    total[UNK] = unknown_count + sum(counts[word] for word in ranked[len(kept) :])
    if special:
        total[EOS] = int(counts_W[words.index(EOS)])
    by_count = sorted(total, key=lambda word: (-total[word], word))
    ids = {word: number for number, word in enumerate(by_count)}
    unknown_id = ids[UNK]
    return by_count, np.fromiter((ids.get(word, unknown_id) for word in words), np.int32, len(words))
