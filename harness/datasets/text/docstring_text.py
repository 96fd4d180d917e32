"""Corpora of the docstrings of installed packages, built without a network."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from vocabench.harness.datasets.shared import package_sources
from vocabench.harness.datasets.shared.built_from_packages import BuiltFromPackages
from vocabench.harness.datasets.shared.dataset import SPLITS, Progress, TextFiles
from vocabench.harness.datasets.shared.duplicates import Duplicates


class DocstringText(BuiltFromPackages):
    """Docstrings of packages as a corpus in three splits by source file.

    The split of a file depends on its name, nine in ten for training, so that no paragraph of a file that is scored has
    been trained on. Repeated paragraphs are kept once.
    """

    VERSION = 4

    def find(self, progress: Progress) -> TextFiles:
        """Return the files; build them first if they are not here."""
        folder = self.built(progress)
        files = {split: folder / f"{split}.txt" for split in SPLITS}
        return TextFiles(self.name, files, "lines", self.licence, min_count=3, versions=self.versions())

    def build(self, packages: Iterable[str], folder: Path, progress: Progress) -> None:
        program = "vocabench.harness.datasets.text.docstrings"
        duplicates = Duplicates()
        with ExitStack() as stack:
            outputs = {
                split: stack.enter_context((folder / f"{split}.txt").open("w", encoding="utf-8")) for split in SPLITS
            }
            for name, paragraphs in package_sources.read(program, list(packages), folder, progress, stack):
                output = outputs[package_sources.split_of(name)]
                for paragraph in paragraphs:
                    if duplicates.is_new(paragraph):
                        output.write(paragraph + "\n")
