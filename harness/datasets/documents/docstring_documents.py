"""Labelled documents from the docstrings of installed packages, built without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vocabench.harness.datasets.documents import layouts
from vocabench.harness.datasets.shared import package_sources, packages
from vocabench.harness.datasets.shared.dataset import DocumentFiles, Progress
from vocabench.harness.datasets.shared.duplicates import Duplicates
from vocabench.impls import cache_folder

_VERSION = 1  # to be raised when the same sources would give other documents


@dataclass(frozen=True)
class DocstringDocuments:
    """Docstrings of packages as documents, by the rules in `pydoc_documents`.

    Attributes:
        name: Name of the dataset.
        packages: Import names of the packages; "python" is the standard library. Those not installed are left out.
        licence: Licence of the text.
    """

    name: str
    packages: Sequence[str]
    licence: str

    def find(self, progress: Progress) -> DocumentFiles:
        """Return the files; build them first if they are not here."""
        versions = packages.installed_versions(self.packages)
        folder = cache_folder.filled(
            packages.built_folder(self.name, _VERSION, versions), lambda scratch: _build(versions, scratch, progress)
        )
        files = {"train": folder / "documents.jsonl"}
        return DocumentFiles(self.name, files, "lines", self.licence, holds_out=True, versions=versions)

    def is_here(self) -> bool:
        """Return whether the documents have been built from the installed versions."""
        versions = packages.installed_versions(self.packages)
        return cache_folder.is_whole(packages.built_folder(self.name, _VERSION, versions))


def _build(versions: Mapping[str, str], folder: Path, progress: Progress) -> None:
    program = "vocabench.harness.datasets.documents.docstrings"
    duplicates = Duplicates()
    with ExitStack() as stack:
        output = stack.enter_context((folder / "documents.jsonl").open("wb"))
        for name, documents in package_sources.read(program, list(versions), folder, progress, stack):
            for text in documents:
                if duplicates.is_new(text):
                    output.write(layouts.line_of(text, _module(name)))


def _module(name: str) -> str:
    """Return the module of a source file, such as numpy.linalg for numpy/linalg/__init__.py."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
