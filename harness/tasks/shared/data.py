"""What tasks that read a dataset share: the data of their cell, the same throughout a run.

Such a task has a function `load`, which the suite calls to make its cells and the task to run one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.run.cells import Cell
from vocabench.impls.errors import BadInput

Progress = Callable[[str], None]


class Data(Protocol):
    """
    Attributes:
        name: Of the dataset, or of the user's file or folder.
        sha256: Of all that it holds.
        licence: Of that.
        versions: What it was made from, where that can change.
        counts_V: (V,) occurrences of each word of the output layer in the training split.
    """

    @property
    def name(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def licence(self) -> str: ...
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def counts_V(self) -> NDArray[np.int64]: ...


Found = TypeVar("Found", bound=Data)
# From a dataset's name or a path, a number of words or None for the task's own rule, and the task's settings.
Load = Callable[[str, int | None, Mapping[str, Any], Progress], Found]


def data_of(cell: Cell, load: Load[Found], progress: Progress) -> tuple[Found, dict[str, Any]]:
    """The cell's data, and its provenance for the row.

    Raises:
        BadInput: It is not the data that the run began with.
    """
    data = load(cell.dataset, cell.vocab, cell.settings, progress)
    if data.sha256 != cell.dataset_sha256:
        raise BadInput(
            f"dataset {cell.dataset!r} has sha256 {data.sha256[:12]}..., the run began with "
            f"{cell.dataset_sha256[:12]}...: allowed: the same data throughout a run"
        )
    return data, {"dataset": data.name, "sha256": data.sha256, "licence": data.licence, "versions": data.versions}
