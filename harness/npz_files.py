"""Archives of arrays in NumPy's .npz format, read without pickles."""

from __future__ import annotations

import zipfile
from pathlib import Path

from numpy.typing import NDArray

from vocabench.harness.datasets.shared.archives import DAMAGED_ZIP
from vocabench.impls.errors import BadInput
from vocabench.impls.options import read_npy

SUFFIX = ".npz"


def read_npz(path: Path) -> dict[str, NDArray]:
    """Read the arrays of a file by name, without writing to disk and without loading pickles.

    Raises:
        BadInput: The file cannot be read or is damaged, or an array holds neither numbers nor text. The message does
            not name the file.
    """
    arrays: dict[str, NDArray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                with archive.open(info) as file:
                    try:
                        arrays[info.filename.removesuffix(".npy")] = read_npy(file, info.file_size)
                    except ValueError as error:
                        raise BadInput(f"{info.filename} {error}") from None
    except (*DAMAGED_ZIP, OSError, MemoryError) as error:
        raise BadInput(f"{error}: allowed: an {SUFFIX} file that fits into memory") from None
    return arrays
