"""The layouts of users' own text: a file, or a folder with a file for each split."""

from __future__ import annotations

from pathlib import Path

from vocabench.harness.datasets.shared.dataset import SPLITS, TextFiles
from vocabench.harness.datasets.text import splitting
from vocabench.impls.errors import BadInput

_LICENCE = "the user's own"
_FEWEST_LINES = 41  # so that both halves of the last 5 % have a line after cuts move to line ends


def is_path(name: str) -> bool:
    """Return whether `name` is a path rather than the name of a dataset."""
    return "/" in name or name.endswith(".txt") or Path(name).exists()


def at_path(name: str) -> TextFiles:
    """Return the text at a path.

    A folder contains train.txt, valid.txt and optionally test.txt. The last 5 % of a single file are held out, half for
    validation and half for testing.

    Raises:
        BadInput: The path does not exist, or a split is missing or would be empty.
    """
    path = Path(name)
    if path.is_dir():
        files = {split: path / f"{split}.txt" for split in SPLITS if (path / f"{split}.txt").is_file()}
        for split in ("train", "valid"):
            if split not in files:
                raise BadInput(f"folder {name}: no {split}.txt: allowed: train.txt, valid.txt and optionally test.txt")
        return TextFiles(path.resolve().name, files, "english", _LICENCE, min_count=0)
    if not path.is_file():
        raise BadInput(
            f"text {name}: no such file or folder: allowed: a text file, or a folder with one for each split"
        )
    size = path.stat().st_size
    if not size:
        raise BadInput(f"text file {name}: it is empty: allowed: text")
    ends = {split: int(size * share) for split, share in zip(SPLITS, (0.95, 0.975, 1.0), strict=True)}
    files = splitting.split(path, ends)
    for split, file in files.items():
        if not file.stat().st_size:
            raise BadInput(
                f"text file {name}: too short to hold out a {split} split: allowed: {_FEWEST_LINES} lines or more of "
                "about the same length, or a folder with train.txt and valid.txt"
            )
    return TextFiles(path.stem, files, "english", _LICENCE, min_count=0)
