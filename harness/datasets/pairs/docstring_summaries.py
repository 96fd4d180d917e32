"""Pairs from the docstrings of installed packages, built without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vocabench.harness.datasets.pairs import summary_pairs
from vocabench.harness.datasets.shared import package_sources, packages
from vocabench.harness.datasets.shared.dataset import SPLITS, PairFiles, Progress
from vocabench.harness.datasets.shared.duplicates import Duplicates
from vocabench.impls import cache_folder

_VERSION = 2  # to be raised when the same sources would give other pairs


@dataclass(frozen=True)
class DocstringSummaries:
    """Docstrings of packages as pairs of a body and its summary, by the rules in `pydoc_summaries`.

    Attributes:
        name: Name of the dataset.
        packages: Import names of the packages; "python" is the standard library. Those not installed are left out.
        licence: Licence of the text.
    """

    name: str
    packages: Sequence[str]
    licence: str

    def find(self, progress: Progress) -> PairFiles:
        """Return the files; build them first if they are not here."""
        versions = packages.installed_versions(self.packages)
        folder = cache_folder.filled(
            packages.built_folder(self.name, _VERSION, versions), lambda scratch: _build(versions, scratch, progress)
        )
        files = {split: (folder / f"{split}.jsonl",) for split in SPLITS}
        return PairFiles(self.name, files, self.licence, versions=versions)

    def is_here(self) -> bool:
        """Return whether the pairs have been built from the installed versions."""
        versions = packages.installed_versions(self.packages)
        return cache_folder.is_whole(packages.built_folder(self.name, _VERSION, versions))


def _build(versions: Mapping[str, str], folder: Path, progress: Progress) -> None:
    program = "vocabench.harness.datasets.pairs.docstrings"
    sources, summaries = Duplicates(), Duplicates()
    with ExitStack() as stack:
        outputs = {split: stack.enter_context((folder / f"{split}.jsonl").open("wb")) for split in SPLITS}
        for name, pairs in package_sources.read(program, list(versions), folder, progress, stack):
            output = outputs[package_sources.split_of(name)]
            for source, summary in pairs:
                # A list, because `and` would not record the summary of a repeated source.
                if all([sources.is_new(source), summaries.is_new(summary)]):
                    output.write(summary_pairs.line_of(source, [summary]))
