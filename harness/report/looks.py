"""Colours, marks and short labels of methods, the same in all drawings.

A method always has the same colour and mark. Forms of a method that differ by their options share the colour and have
different marks.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from vocabench.harness import registry
from vocabench.harness.tasks.shared.paired import BASELINE

# Legible on white and on black: the palette of Okabe and Ito for colour-blind readers without its yellow and black,
# and five more colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2559c", "#b07c00", "#3f97cf", "#8a6a2b", "#8b5cc4", "#129a9a", "#6a8029")
DARK_COLOURS = (
    *("#4aa8e8", "#ff8a3d", "#2fc79a", "#e58fc3", "#e5ae2e", "#8cccf5", "#c9a765", "#b795ea", "#45cccc", "#a5bd5c"),
)
GREY, DARK_GREY = "#6b7680", "#98a3ad"  # of full softmax
MARKS = ("circle", "square", "triangle", "diamond", "triangle-down", "plus", "cross", "star")

# These have the plain mark; the others share their colours and have another one.
_FIRST = (
    "sohsm",
    "huffman",
    "class_hsm",
    "adaptive_softmax",
    "fused_softmax",
    "binary_tree",
    "sampled_softmax",
    "negative_sampling",
    "d_softmax",
    "nce",
)


class Look(NamedTuple):
    """Numbers of a colour and a mark; the colour of full softmax has the number of colours, and is grey."""

    colour: int
    mark: int


def of_forms(forms: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """Return the look of each form by its name.

    Args:
        forms: Methods, each with its options as text.
    """
    options: dict[str, set[str]] = {}
    for method, variant in forms:
        options.setdefault(method, set()).add(variant)
    looks = {}
    for method, variants in options.items():
        colour, mark = _of_method(method)
        for number, variant in enumerate(sorted(variants | {""})):
            looks[name(method, variant)] = Look(colour, (mark + number) % len(MARKS))
    return looks


def name(method: str, options: str) -> str:
    """Return the method with its options."""
    return f"{method} {options}".strip()


def labels(forms: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return labels of methods with options, for a drawing in which these forms occur.

    A label leaves out the options that all forms of the method share, and the names of options whose value says enough:
    `sohsm [bias=True,projection=residual]` and `sohsm [bias=True,projection=none]` become "sohsm, residual" and
    "sohsm, no projection".
    """
    by_method: dict[str, dict[str, list[str]]] = {}
    for method, options in forms:
        by_method.setdefault(method, {})[options] = _words(options)
    found = {}
    for method, words_by_options in by_method.items():
        shared = set.intersection(*map(set, words_by_options.values())) if len(words_by_options) > 1 else set()
        for options, words in words_by_options.items():
            found[method, options] = ", ".join([method, *(word for word in words if word not in shared)])
    return found


def _words(options: str) -> list[str]:
    """Return options such as "[bias=True,interval=0,projection=none]" as ["bias", "interval 0", "no projection"]."""
    words = []
    for option in re.split(r",(?=\w+=)", options.removeprefix("[").removesuffix("]")):
        key, _, value = option.partition("=")
        if value in ("", "True"):
            words.append(key)
        elif value in ("False", "none", "None"):
            words.append(f"no {key}")
        elif re.fullmatch(r"[\d.e+-]+", value):
            words.append(f"{key} {value}")
        else:
            words.append(value)
    return [word for word in words if word]


@cache
def _of_method(method: str) -> Look:
    if method == BASELINE:
        return Look(len(COLOURS), 0)
    known = [*_FIRST, *(m for m in (*registry.methods(), *registry.extra_methods()) if m not in (*_FIRST, BASELINE))]
    # A method of another version has the same look in each of its reports too.
    number = known.index(method) if method in known else zlib.crc32(method.encode())
    return Look(number % len(COLOURS), number // len(COLOURS) % len(MARKS))
