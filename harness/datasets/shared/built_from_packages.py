"""Datasets that are built from the sources of installed packages, without a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vocabench.harness.datasets.shared import packages
from vocabench.harness.datasets.shared.dataset import Progress
from vocabench.impls import cache_folder


@dataclass(frozen=True)
class BuiltFromPackages(ABC):
    """A dataset that is built once for each set of versions of its packages, and kept in the cache.

    Attributes:
        name: Name of the dataset.
        packages: Import names of the packages; "python" is the standard library. Those not installed are left out.
        licence: Licence of the text.
    """

    VERSION: ClassVar[int]  # to be raised when the same sources would give other contents

    name: str
    packages: Sequence[str]
    licence: str

    def versions(self) -> dict[str, str]:
        """Return the versions of those packages that are installed."""
        return packages.installed_versions(self.packages)

    def built(self, progress: Progress) -> Path:
        """Return the folder with the dataset; build it first if it is not here."""
        return cache_folder.filled(self._folder(), lambda scratch: self.build(self.versions(), scratch, progress))

    def is_here(self) -> bool:
        """Return whether the dataset has been built from the installed versions."""
        return cache_folder.is_whole(self._folder())

    @abstractmethod
    def build(self, packages: Iterable[str], folder: Path, progress: Progress) -> None:
        """Write the dataset that these packages give to a folder."""

    def _folder(self) -> Path:
        return packages.built_folder(self.name, self.VERSION, self.versions())
