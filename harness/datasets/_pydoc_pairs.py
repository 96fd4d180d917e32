"""Summaries that are there without a network: the docstrings of installed packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vocabench.harness.datasets import _pairs, _pydoc
from vocabench.harness.datasets._files import Progress
from vocabench.harness.datasets._source import SPLITS, PairText
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
        versions = _pydoc.installed_versions(self.packages)
        place = _pydoc.built_folder(self.name, _FORMAT, versions)
        folder = cache_folder.filled(place, lambda scratch: _build(versions, scratch, progress))
        files = {split: (folder / f"{split}.jsonl",) for split in SPLITS}
        return PairText(self.name, files, self.licence, versions=versions)

    def is_here(self) -> bool:
        return cache_folder.is_whole(_pydoc.built_folder(self.name, _FORMAT, _pydoc.installed_versions(self.packages)))


def _build(versions: Mapping[str, str], folder: Path, progress: Progress) -> None:
    sources: set[bytes] = set()
    summaries: set[bytes] = set()
    with ExitStack() as stack:
        outputs = {split: stack.enter_context((folder / f"{split}.jsonl").open("wb")) for split in SPLITS}
        for split, found in _pydoc.from_sources(
            "vocabench.harness.datasets._summaries", versions, folder, progress, stack
        ):
            for source, summary in found:
                # Both are noted, whichever came before: `and` would skip the second.
                if all([_pydoc.is_new(source, sources), _pydoc.is_new(summary, summaries)]):
                    outputs[split].write(_pairs.line_of(source, [summary]))
