"""Summaries with what they sum up, from the docstrings of source files; run as a program as `docstrings` is."""

from __future__ import annotations

from vocabench.harness.datasets.text import docstrings

_FEWEST_LETTERS = 3  # words of letters in a summary: below that it is a name or a heading
_MOST_WORDS = 30  # in a summary: above that it is no title but a paragraph on one line
_FEWEST_SOURCE = 10  # words of a source


def summaries_of_file(path: str) -> list[tuple[str, str]]:
    """(source, summary) of a module's docstrings, words with spaces between; none where it does not parse."""
    found = map(summary_of, docstrings.docstrings_of_file(path))
    return [pair for pair in found if pair]


def summary_of(docstring: str) -> tuple[str, str] | None:
    """(source, summary) of a docstring, or None where it breaks one of the rules that `pydoc_summaries` lists."""
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
    docstrings.print_each(summaries_of_file)
