"""The data of a cell, for tasks that read a dataset. They must be the same throughout a run.

Such a task has a function `load`. The suite calls it to create its cells, and the task calls it to run one.
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
        name: Name of the dataset, or of the user's file or folder.
        sha256: Checksum of its content.
        licence: Licence of its content.
        versions: Versions of what it was built from, if these can change.
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
# Takes the name of a dataset or a path, a number of words or None for the rule of the task, and the settings.
Load = Callable[[str, int | None, Mapping[str, Any], Progress], Found]


def data_of(cell: Cell, load: Load[Found], progress: Progress) -> tuple[Found, dict[str, Any]]:
    """Load the data of the cell, with its provenance for the row.

    Raises:
        BadInput: The data differ from those at the start of the run.
    """
    data = load(cell.dataset, cell.vocab, cell.settings, progress)
    if data.sha256 != cell.dataset_sha256:
        raise BadInput(
            f"dataset {cell.dataset!r} has sha256 {data.sha256[:12]}..., the run began with "
            f"{cell.dataset_sha256[:12]}...: allowed: the same data throughout a run"
        )
    return data, {"dataset": data.name, "sha256": data.sha256, "licence": data.licence, "versions": data.versions}
