"""The user's own text: any file, or any folder with a file a split."""

from __future__ import annotations

from pathlib import Path

from vocabench.harness.datasets.shared import local_files
from vocabench.harness.datasets.shared.source import SPLITS, Text
from vocabench.impls.errors import BadInput

_LICENCE = "the user's own"
_FEWEST = 41  # so that a cut after a line leaves lines for both halves of the last 5 %


def is_path(name: str) -> bool:
    return "/" in name or name.endswith(".txt") or Path(name).exists()


def text(name: str) -> Text:
    """The text at a path.

    A folder holds train.txt and valid.txt, and test.txt if it likes; of a single file the last 5 % are held out, half
    for validation and half for testing.

    Raises:
        BadInput: Nothing is there, or a split is missing or would be empty.
    """
    path = Path(name)
    if path.is_dir():
        files = {split: path / f"{split}.txt" for split in SPLITS if (path / f"{split}.txt").is_file()}
        for split in ("train", "valid"):
            if split not in files:
                raise BadInput(f"folder {name}: no {split}.txt: allowed: train.txt, valid.txt and perhaps test.txt")
        return Text(path.resolve().name, files, "english", _LICENCE)
    if not path.is_file():
        raise BadInput(
            f"text {name}: no such file or folder: allowed: a text file, or a folder with one for each split"
        )
    size = path.stat().st_size
    if not size:
        raise BadInput(f"text file {name}: it is empty: allowed: text")
    ends = {split: int(size * share) for split, share in zip(SPLITS, (0.95, 0.975, 1.0), strict=True)}
    files = local_files.hold_out(path, ends)
    for split, file in files.items():
        if not file.stat().st_size:
            raise BadInput(
                f"text file {name}: too short to hold out a {split} split: allowed: {_FEWEST} lines of about the same "
                "length or more, or a folder with train.txt and valid.txt"
            )
    return Text(path.stem, files, "english", _LICENCE)
