"""Summaries that are there without a network: the docstrings of installed packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vocabench.harness.datasets.pairs import collection
from vocabench.harness.datasets.shared.local_files import Progress
from vocabench.harness.datasets.shared.source import SPLITS, PairText
from vocabench.harness.datasets.text import pydoc
from vocabench.impls import cache_folder

_FORMAT = 2  # raised when the same sources would give other pairs


@dataclass(frozen=True)
class Summaries:
    """Docstrings of packages as pairs, by the rules of `pydoc_summaries`.

    Attributes:
        name: Of the dataset.
        packages: As they are imported; "python" is the standard library. Those that are not installed are left out.
        licence: Of the text.
    """

    name: str
    packages: Sequence[str]
    licence: str

    def pairs(self, progress: Progress) -> PairText:
        versions = pydoc.installed_versions(self.packages)
        place = pydoc.built_folder(self.name, _FORMAT, versions)
        folder = cache_folder.filled(place, lambda scratch: _build(versions, scratch, progress))
        files = {split: (folder / f"{split}.jsonl",) for split in SPLITS}
        return PairText(self.name, files, self.licence, versions=versions)

    def is_here(self) -> bool:
        return cache_folder.is_whole(pydoc.built_folder(self.name, _FORMAT, pydoc.installed_versions(self.packages)))


def _build(versions: Mapping[str, str], folder: Path, progress: Progress) -> None:
    sources: set[bytes] = set()
    summaries: set[bytes] = set()
    with ExitStack() as stack:
        outputs = {split: stack.enter_context((folder / f"{split}.jsonl").open("wb")) for split in SPLITS}
        for split, found in pydoc.from_sources(
            "vocabench.harness.datasets.pairs.docstrings", versions, folder, progress, stack
        ):
            for source, summary in found:
                # Both are noted, whichever came before: `and` would skip the second.
                if all([pydoc.is_new(source, sources), pydoc.is_new(summary, summaries)]):
                    outputs[split].write(collection.line_of(source, [summary]))
