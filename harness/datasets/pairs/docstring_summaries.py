"""Pairs from the docstrings of installed packages, built without a network."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from vocabench.harness.datasets.pairs import summary_pairs
from vocabench.harness.datasets.shared import package_sources
from vocabench.harness.datasets.shared.built_from_packages import BuiltFromPackages
from vocabench.harness.datasets.shared.dataset import SPLITS, PairFiles, Progress
from vocabench.harness.datasets.shared.duplicates import Duplicates


class DocstringSummaries(BuiltFromPackages):
    """Docstrings of packages as pairs of a body and its summary, by the rules in `pydoc_summaries`."""

    VERSION = 2

    def find(self, progress: Progress) -> PairFiles:
        """Return the files; build them first if they are not here."""
        folder = self.built(progress)
        files = {split: (folder / f"{split}.jsonl",) for split in SPLITS}
        return PairFiles(self.name, files, self.licence, versions=self.versions())

    def build(self, packages: Iterable[str], folder: Path, progress: Progress) -> None:
        program = "vocabench.harness.datasets.pairs.docstrings"
        sources, summaries = Duplicates(), Duplicates()
        with ExitStack() as stack:
            outputs = {split: stack.enter_context((folder / f"{split}.jsonl").open("wb")) for split in SPLITS}
            for name, pairs in package_sources.read(program, list(packages), folder, progress, stack):
                output = outputs[package_sources.split_of(name)]
                for source, summary in pairs:
                    # A list, because `and` would not record the summary of a repeated source.
                    if all([sources.is_new(source), summaries.is_new(summary)]):
                        output.write(summary_pairs.line_of(source, [summary]))
