"""`vocabench data`: what text there is, getting it, and checking it."""

from __future__ import annotations

import sys

from harness import registry
from harness.datasets import _catalogue, _corpus
from impls.errors import BadInput


def data(action: str, name: str | None) -> int:
    if action == "list":
        return _list()
    if action == "get" and name is None:
        raise BadInput(f"data get: which dataset? allowed: {', '.join(registry.datasets())}")
    names = [name] if name else [entry.name for entry in _catalogue.describe() if entry.is_here]
    for each in names:
        if action == "get":
            _catalogue.get(each, _say)
            corpus = _corpus.load(each, progress=_say)
            tokens = ", ".join(f"{split} {len(ids):,}" for split, ids in corpus.splits.items())
            print(f"{each}: {len(corpus.words):,} words; tokens: {tokens}; sha256 {corpus.sha256}")
        else:
            print(f"{each}: verified, sha256 {_catalogue.verify(each, _say)}")
    return 0


def _list() -> int:
    for entry in _catalogue.describe():
        here = "here" if entry.is_here else "not here"
        print(f"{entry.name:<14}{here:<10}{entry.description}\n{'':<24}{entry.source}; licence: {entry.licence}")
    return 0


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)
