"""Docstring bodies with their summaries from source files; a program with the command line of `text.docstrings`."""

from __future__ import annotations

from vocabench.harness.datasets.text import docstrings

_FEWEST_LETTERS = 3  # words of letters in a summary; with fewer it is a name or a heading
_MOST_WORDS = 30  # in a summary; with more it is a paragraph on one line
_FEWEST_SOURCE = 10  # words in a source


def summaries_of_file(path: str) -> list[tuple[str, str]]:
    """Return the source and summary of a module's docstrings, words separated by spaces; none if it does not parse."""
    pairs = map(summary_of, docstrings.docstrings_of_file(path))
    return [pair for pair in pairs if pair]


def summary_of(docstring: str) -> tuple[str, str] | None:
    """Return the source and summary of a docstring, or None if it breaks a rule listed in `pydoc_summaries`."""
    first, _, rest = docstring.strip().partition("\n")
    if not rest or rest.split("\n", 1)[0].strip() or docstrings.is_code(first):
        return None
    summary = docstrings.plain_words(first)
    letters = sum(word[0].isalpha() for word in summary)
    if letters < _FEWEST_LETTERS or len(summary) > _MOST_WORDS or not docstrings.is_prose(first, summary):
        return None
    source = " ".join(docstrings.paragraphs(rest)).split()
    if len(source) < _FEWEST_SOURCE or len(source) <= len(summary):
        return None
    return " ".join(source), " ".join(summary)


if __name__ == "__main__":
    docstrings.print_for_each_file(summaries_of_file)
