"""Words to ids: one pass over the text, whatever its size, then a renumbering of what was written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.shared.local_files import Progress
from vocabench.harness.datasets.text import tokenization
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
    """Write words.txt, counts.npy and the ids of each split into `folder`.

    Ids are first given out in the order in which words come, so that text is read only once; only then are the words
    of the training split ranked, and the ids on disk put right.

    Args:
        name: Of the dataset.
        splits: Split to its words, some at a time; "train" at least.
        vocab: So many words, <unk> among them, and <eos> where the text has it; None keeps those that occur
            `min_count` times in the training split.
        min_count: See `vocab`.
        folder: Where to write.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: A split without a word; a vocabulary below 2 or above the number of words there are.
    """
    first_ids: defaultdict[str, int] = defaultdict(count().__next__)
    paths: dict[str, Path] = {}
    for split in ("train", *(split for split in splits if split != "train")):
        progress(f"{name}: counting and encoding {split}")
        paths[split] = ids_path(folder, split)
        with paths[split].open("wb") as file:
            for words in splits[split]:
                np.fromiter(map(first_ids.__getitem__, words), _IDS, len(words)).tofile(file)
        if not paths[split].stat().st_size:
            raise BadInput(f"dataset {name!r}: no words in its {split} split: allowed: text")

    words = list(first_ids)
    counts_W = np.zeros(len(words), dtype=np.int64)
    for ids_T in _blocks(paths["train"], "r"):
        counts_W += np.bincount(ids_T, minlength=len(words))
    kept, new_id_W = _vocabulary(name, words, counts_W, vocab, min_count)
    counts_V = np.zeros(len(kept), dtype=np.int64)
    np.add.at(counts_V, new_id_W, counts_W)
    for path in paths.values():
        for ids_T in _blocks(path, "r+"):
            ids_T[:] = new_id_W[ids_T]
    np.save(folder / "counts.npy", counts_V)
    (folder / "words.txt").write_text("\n".join(kept), encoding="utf-8")


def ids_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.int32"


def read_ids(folder: Path, split: str) -> NDArray[np.int32]:
    """The ids of a split, (tokens,), mapped and read-only."""
    return np.memmap(ids_path(folder, split), dtype=_IDS, mode="r")


def read_words(folder: Path) -> list[str]:
    """Id to word."""
    return (folder / "words.txt").read_text(encoding="utf-8").split("\n")


def read_counts(folder: Path) -> NDArray[np.int64]:
    """(V,) occurrences in the training split."""
    return np.load(folder / "counts.npy", allow_pickle=False)


def _blocks(path: Path, mode: str) -> Iterator[NDArray[np.int32]]:
    ids_T = np.memmap(path, dtype=_IDS, mode=mode)  # type: ignore[call-overload]
    for start in range(0, len(ids_T), _BLOCK):
        yield ids_T[start : start + _BLOCK]


def _vocabulary(
    name: str, words: list[str], counts_W: NDArray[np.int64], vocab: int | None, min_count: int
) -> tuple[list[str], NDArray[np.int32]]:
    """Words by falling count, then alphabetically, and where each of all words goes.

    <unk> is always one of them, and <eos> where the text has it; <unk> stands where its own count puts it.
    """
    counts = dict(zip(words, counts_W.tolist(), strict=True))
    already_unknown = counts.pop(tokenization.UNK, 0)
    special = [tokenization.EOS] if counts.pop(tokenization.EOS, 0) else []
    ranked = sorted((word for word in counts if counts[word]), key=lambda word: (-counts[word], word))
    most = len(ranked) + len(special) + 1
    if vocab is None:
        kept = [word for word in ranked if counts[word] >= min_count]
    elif 2 <= vocab <= most:
        kept = ranked[: vocab - len(special) - 1]
    else:
        raise BadInput(f"vocabulary of {vocab} for dataset {name!r}: allowed: from 2 to {most:,}, the words it has")
    total = {word: counts[word] for word in kept}
    total[tokenization.UNK] = already_unknown + sum(counts[word] for word in ranked[len(kept) :])
    if special:
        total[tokenization.EOS] = int(counts_W[words.index(tokenization.EOS)])
    by_count = sorted(total, key=lambda word: (-total[word], word))
    ids = {word: number for number, word in enumerate(by_count)}
    unknown_id = ids[tokenization.UNK]
    return by_count, np.fromiter((ids.get(word, unknown_id) for word in words), np.int32, len(words))
