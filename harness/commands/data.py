"""`vocabench data`: what text there is, getting it, and checking it."""

from __future__ import annotations

import sys

from vocabench.harness import registry
from vocabench.harness.datasets.shared import catalogue
from vocabench.impls.errors import BadInput


def data(action: str, name: str | None) -> int:
    if action == "list":
        if name is not None:
            raise BadInput(f"data list {name}: allowed: 'vocabench data list', which lists all")
        return _list()
    if action == "get" and name is None:
        raise BadInput(f"data get: which dataset? allowed: {', '.join(registry.datasets())}")
    names = [name] if name is not None else [entry.name for entry in catalogue.describe() if entry.is_here]
    if not names:
        print("no dataset is here: 'vocabench data get NAME' brings one")
    for each in names:
        if action == "get":
            print(catalogue.get(each, _say))
        else:
            print(f"{each}: verified, sha256 {catalogue.verify(each, _say)}")
    return 0


def _list() -> int:
    for entry in catalogue.describe():
        here = "here" if entry.is_here else "not here"
        print(f"{entry.name:<17}{entry.kind:<7}{here:<10}{entry.description}")
        print(f"{'':<34}{entry.source}; licence: {entry.licence}")
    return 0


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)
