"""Docstrings of source files as documents; a program with the command line of `text.docstrings`."""

from __future__ import annotations

from vocabench.harness.datasets.text import docstrings

_FEWEST_WORDS = 20


def documents_of_file(path: str) -> list[str]:
    """Return the text of each of a module's docstrings, words separated by spaces; none if it does not parse."""
    texts = (" ".join(docstrings.paragraphs(docstring)) for docstring in docstrings.docstrings_of_file(path))
    return [text for text in texts if len(text.split()) >= _FEWEST_WORDS]


if __name__ == "__main__":
    docstrings.print_for_each_file(documents_of_file)
