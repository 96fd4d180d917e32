"""English paragraphs from the docstrings of source files, which are parsed and never imported.

`python -m vocabench.harness.datasets.text.docstrings LIST FIRST STEP` prints a JSON list of paragraphs for every
STEP-th file named in LIST, starting from the FIRST.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from vocabench.harness.datasets.text import tokenization

_ADD_DOCSTRING = {"add_newdoc", "add_docstr", "_add_docstr", "add_docstr_all"}  # docstrings of extension modules

_MARKUP = re.compile(r"https?://\S+|:[a-z:+-]+:(?=`)|<[^<>\n]{3,}>|[`*|]|\\\w*")
_ABBREVIATION = re.compile(r"\b(?:i\.e|e\.g|a\.k\.a)\.", re.IGNORECASE)
_JOINED = re.compile(r"(?<=\w)[_./](?=\w)")
_UNDERLINE = re.compile(r"\s*([=~^#*+-])\1{2,}[\s=+-]*$")
_TABLE = re.compile(r"^\s*(?:[=+-]+(?:[ +|]+[=+-]+)+|\|.*\|)\s*$", re.MULTILINE)
_CODE = re.compile(r"^\s*(?:>>>|\.\. |\$ |%|@|#|In \[|from \w+ import|import \w+$|def |class \w+[(:])", re.MULTILINE)
# "x : array_like" starts the description of a parameter on the lines below it.
_PARAMETER = re.compile(r"\s*\*{0,2}\w+(?:, \*{0,2}\w+)*\s:(?:\s.*)?$")
_HEADING = re.compile(r"\s*[\w.*`]+(?: \w+)?\s?(?:\([^)]*\))?:\s*$")  # "Returns:", "ValueError:"
# "name (type): text", ":param name: text", "- text" and "1. text" start one on the same line.
_ITEM = re.compile(
    r"\s*(?:\*{0,2}[\w.`*]+(?:\s?\([^)]*\))?:(?=\s)|:\w+(?:\s[^:]*)?:(?=\s)|[-*\u2022](?=\s)|\(?\d+[.)](?=\s))\s+(?P<text>.*)$"
)

_FEWEST_WORDS = 6
_LEAST_MEAN_LETTERS = 2.5  # a word; formulas in words have fewer
# A paragraph without one of these is a list of names, or not English.
_COMMON = frozenset(("the", "a", "an", "of", "to", "is", "in", "and", "for", "that", "are", "be", "this", "with", "it"))


def paragraphs_of_file(path: str) -> list[str]:
    """Return the paragraphs of a module's docstrings, words separated by spaces; none if it does not parse."""
    return [paragraph for docstring in docstrings_of_file(path) for paragraph in paragraphs(docstring)]


def docstrings_of_file(path: str) -> list[str]:
    """Return a module's docstrings without their indentation; none if it does not parse."""
    try:
        source = Path(path).read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other packages
            tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return list(_docstrings(tree))


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                yield docstring
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in _ADD_DOCSTRING:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inspect.cleandoc(inner.value)


def paragraphs(docstring: str) -> list[str]:
    """Return the English paragraphs: no code, doctests, tables, directives, headings or bare lists of names."""
    kept = []
    literal_indent = -1  # indentation of the paragraph that announced a literal block with "::"
    for block in re.split(r"\n\s*\n", docstring):
        indent = len(block) - len(block.lstrip())
        if 0 <= literal_indent < indent:
            continue
        literal_indent = indent if block.rstrip().endswith("::") else -1
        if is_code(block):
            continue
        for item in _items(block):
            words = plain_words(item)
            if _is_english(item, words):
                kept.append(" ".join(words))
    return kept


def is_code(block: str) -> bool:
    """Return whether a block is code, a doctest, a directive or a table."""
    return bool(_CODE.search(block) or _TABLE.search(block))


def plain_words(text: str) -> list[str]:
    """Return the words of a text without its markup."""
    plain = _ABBREVIATION.sub(lambda short: short[0].replace(".", ""), _MARKUP.sub("", text.replace("::", ":")))
    return tokenization.words_of(_JOINED.sub(" ", plain))


def _items(block: str) -> Iterator[str]:
    """Cut a block where list items, parameters and headings begin, and drop the names that start them."""
    lines = block.split("\n")
    item: list[str] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        is_heading = any(mark.match(line) for mark in (_PARAMETER, _HEADING, _UNDERLINE)) or _UNDERLINE.match(below)
        start = None if is_heading else _ITEM.match(line)
        if is_heading or start:
            yield " ".join(item)
            item = [start["text"]] if start else []
        else:
            item.append(line.strip())
    yield " ".join(item)


def _is_english(item: str, words: list[str]) -> bool:
    letters = [word for word in words if word[0].isalpha()]
    return len(letters) >= _FEWEST_WORDS and not _COMMON.isdisjoint(letters) and is_prose(item, words)


def is_prose(item: str, words: list[str]) -> bool:
    """Return whether brackets, operators and underscores are as rare, and words as long, as in prose."""
    letters = [word for word in words if word[0].isalpha()]
    pieces = item.split()
    odd = sum(any(sign in piece for sign in "=(){}[]<>_/\\$@|&%+^") for piece in pieces)
    return odd <= 0.3 * len(pieces) and sum(map(len, letters)) >= _LEAST_MEAN_LETTERS * len(letters)


def print_for_each_file(extract: Callable[[str], list]) -> None:
    """Run the program: print what `extract` returns for each of the files selected by the command line."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end silently when the reader has ended
    paths = Path(sys.argv[1]).read_text(encoding="utf-8").split("\n")
    for path in paths[int(sys.argv[2]) :: int(sys.argv[3])]:
        print(json.dumps(extract(path)))


if __name__ == "__main__":
    print_for_each_file(paragraphs_of_file)
