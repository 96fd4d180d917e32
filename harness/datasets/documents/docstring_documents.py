"""Labelled documents from the docstrings of installed packages, built without a network."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from vocabench.harness.datasets.documents import layouts
from vocabench.harness.datasets.shared import package_sources
from vocabench.harness.datasets.shared.built_from_packages import BuiltFromPackages
from vocabench.harness.datasets.shared.dataset import DocumentFiles, Progress
from vocabench.harness.datasets.shared.duplicates import Duplicates


class DocstringDocuments(BuiltFromPackages):
    """Docstrings of packages as documents, by the rules in `pydoc_documents`."""

    VERSION = 1

    def find(self, progress: Progress) -> DocumentFiles:
        """Return the files; build them first if they are not here."""
        files = {"train": self.built(progress) / "documents.jsonl"}
        return DocumentFiles(self.name, files, "lines", self.licence, holds_out=True, versions=self.versions())

    def build(self, packages: Iterable[str], folder: Path, progress: Progress) -> None:
        program = "vocabench.harness.datasets.documents.docstrings"
        duplicates = Duplicates()
        with ExitStack() as stack:
            output = stack.enter_context((folder / "documents.jsonl").open("wb"))
            for name, documents in package_sources.read(program, list(packages), folder, progress, stack):
                for text in documents:
                    if duplicates.is_new(text):
                        output.write(layouts.line_of(text, _module(name)))


def _module(name: str) -> str:
    """Return the module of a source file, such as numpy.linalg for numpy/linalg/__init__.py."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
