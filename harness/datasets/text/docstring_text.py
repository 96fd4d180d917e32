"""Corpora of the docstrings of installed packages, built without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vocabench.harness.datasets.shared import package_sources, packages
from vocabench.harness.datasets.shared.dataset import SPLITS, Progress, TextFiles
from vocabench.harness.datasets.shared.duplicates import Duplicates
from vocabench.impls import cache_folder

_VERSION = 4  # to be raised when the same sources would give another text


@dataclass(frozen=True)
class DocstringText:
    """Docstrings of packages as a corpus in three splits by source file.

    The split of a file depends on its name, nine in ten for training, so that no paragraph of a file that is scored has
    been trained on. Repeated paragraphs are kept once. Packages that are not installed are left out; the versions of
    the others determine the text.

    Attributes:
        name: Name of the dataset.
        packages: Import names of the packages; "python" is the standard library.
        licence: Licence of the text.
    """

    name: str
    packages: Sequence[str]
    licence: str

    def versions(self) -> dict[str, str]:
        """Return the versions of those packages that are installed."""
        return packages.installed_versions(self.packages)

    def find(self, progress: Progress) -> TextFiles:
        """Return the files; build them first if they are not here."""
        versions = self.versions()
        folder = cache_folder.filled(
            packages.built_folder(self.name, _VERSION, versions), lambda scratch: _build(versions, scratch, progress)
        )
        files = {split: folder / f"{split}.txt" for split in SPLITS}
        return TextFiles(self.name, files, "lines", self.licence, min_count=3, versions=versions)

    def is_here(self) -> bool:
        """Return whether the corpus has been built from the installed versions."""
        return cache_folder.is_whole(packages.built_folder(self.name, _VERSION, self.versions()))


def _build(versions: Mapping[str, str], folder: Path, progress: Progress) -> None:
    program = "vocabench.harness.datasets.text.docstrings"
    duplicates = Duplicates()
    with ExitStack() as stack:
        outputs = {
            split: stack.enter_context((folder / f"{split}.txt").open("w", encoding="utf-8")) for split in SPLITS
        }
        for name, paragraphs in package_sources.read(program, list(versions), folder, progress, stack):
            output = outputs[package_sources.split_of(name)]
            for paragraph in paragraphs:
                if duplicates.is_new(paragraph):
                    output.write(paragraph + "\n")
