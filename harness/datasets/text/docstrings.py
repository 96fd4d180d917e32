"""English paragraphs from the docstrings of source files, which are read and never imported.

Run as a program, `python -m vocabench.harness.datasets.text.docstrings LIST FIRST STEP`, it prints one JSON list a
file,
for every STEP-th file in LIST from the FIRST on.
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

_ADD_DOCSTRING = {"add_newdoc", "add_docstr", "_add_docstr", "add_docstr_all"}  # how extension modules get theirs

_MARKUP = re.compile(r"https?://\S+|:[a-z:+-]+:(?=`)|<[^<>\n]{3,}>|[`*|]|\\\w*")
_ABBREVIATION = re.compile(r"\b(?:i\.e|e\.g|a\.k\.a)\.", re.IGNORECASE)
_JOINED = re.compile(r"(?<=\w)[_./](?=\w)")
_UNDERLINE = re.compile(r"\s*([=~^#*+-])\1{2,}[\s=+-]*$")
_TABLE = re.compile(r"^\s*(?:[=+-]+(?:[ +|]+[=+-]+)+|\|.*\|)\s*$", re.MULTILINE)
_CODE = re.compile(r"^\s*(?:>>>|\.\. |\$ |%|@|#|In \[|from \w+ import|import \w+$|def |class \w+[(:])", re.MULTILINE)
# "x : array_like" opens the description of a parameter on the lines below it.
_PARAMETER = re.compile(r"\s*\*{0,2}\w+(?:, \*{0,2}\w+)*\s:(?:\s.*)?$")
_HEADING = re.compile(r"\s*[\w.*`]+(?: \w+)?\s?(?:\([^)]*\))?:\s*$")  # "Returns:", "ValueError:"
# "name (type): text", ":param name: text", "- text" and "1. text" open one on the same line.
_ITEM = re.compile(
    r"\s*(?:\*{0,2}[\w.`*]+(?:\s?\([^)]*\))?:(?=\s)|:\w+(?:\s[^:]*)?:(?=\s)|[-*\u2022](?=\s)|\(?\d+[.)](?=\s))\s+(?P<text>.*)$"
)

_FEWEST_WORDS = 6
_SHORTEST_MEAN = 2.5  # letters in a word: formulas written out have fewer
# A paragraph without one of these is a list of names, or not English.
_COMMON = frozenset(("the", "a", "an", "of", "to", "is", "in", "and", "for", "that", "are", "be", "this", "with", "it"))


def paragraphs_of_file(path: str) -> list[str]:
    """The paragraphs of a module's docstrings, words with spaces between; none where it does not parse."""
    return [paragraph for docstring in docstrings_of_file(path) for paragraph in paragraphs(docstring)]


def docstrings_of_file(path: str) -> list[str]:
    """A module's docstrings as they are written, without their indentation; none where it does not parse."""
    try:
        source = Path(path).read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
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
    """The paragraphs that are English: no code, doctest, table, directive, heading, or bare list of names."""
    found = []
    literal_indent = -1  # of the paragraph that announced a literal block with "::"
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
                found.append(" ".join(words))
    return found


def is_code(block: str) -> bool:
    """Whether a block is code, a doctest, a directive or a table."""
    return bool(_CODE.search(block) or _TABLE.search(block))


def plain_words(text: str) -> list[str]:
    """The words of text without its markup."""
    plain = _ABBREVIATION.sub(lambda short: short[0].replace(".", ""), _MARKUP.sub("", text.replace("::", ":")))
    return tokenization.words_of(_JOINED.sub(" ", plain))


def _items(block: str) -> Iterator[str]:
    """A block cut where list items, parameters and headings begin, without the names that open them."""
    lines = block.split("\n")
    item: list[str] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        is_heading = any(mark.match(line) for mark in (_PARAMETER, _HEADING, _UNDERLINE)) or _UNDERLINE.match(below)
        opened = None if is_heading else _ITEM.match(line)
        if is_heading or opened:
            yield " ".join(item)
            item = [opened["text"]] if opened else []
        else:
            item.append(line.strip())
    yield " ".join(item)


def _is_english(item: str, words: list[str]) -> bool:
    letters = [word for word in words if word[0].isalpha()]
    return len(letters) >= _FEWEST_WORDS and not _COMMON.isdisjoint(letters) and is_prose(item, words)


def is_prose(item: str, words: list[str]) -> bool:
    """Brackets, operators and underscores stand in prose too, but not in every third word."""
    letters = [word for word in words if word[0].isalpha()]
    pieces = item.split()
    odd = sum(any(sign in piece for sign in "=(){}[]<>_/\\$@|&%+^") for piece in pieces)
    return odd <= 0.3 * len(pieces) and sum(map(len, letters)) >= _SHORTEST_MEAN * len(letters)


def print_each(find: Callable[[str], list]) -> None:
    """The program: what `find` finds in each of the files that the command line asks for."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends without a word when whoever reads is gone
    listed = Path(sys.argv[1]).read_text(encoding="utf-8").split("\n")
    for path in listed[int(sys.argv[2]) :: int(sys.argv[3])]:
        print(json.dumps(find(path)))


if __name__ == "__main__":
    print_each(paragraphs_of_file)
