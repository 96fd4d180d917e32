"""`vocabench data`: list, get and verify datasets."""

from __future__ import annotations

import argparse
import sys

from vocabench.harness.commands.command import Command
from vocabench.impls.errors import BadInput


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "get", "verify"], help="what to do")
    parser.add_argument("name", nargs="?", help="name of a dataset (default for verify: all that are here)")


def _run(arguments: argparse.Namespace) -> int:
    return data(arguments.action, arguments.name)


COMMAND = Command("data", "list, get or verify datasets", _add_arguments, _run)


def data(action: str, name: str | None) -> int:
    """List all datasets, or get or verify one; without a name, verify all that are here."""
    from vocabench.harness import registry
    from vocabench.harness.datasets.shared import catalogue

    if action == "list":
        if name is not None:
            raise BadInput(f"data list {name}: allowed: 'vocabench data list', which lists all")
        return _list()
    if action == "get" and name is None:
        raise BadInput(f"data get: which dataset? allowed: {', '.join(registry.datasets())}")
    names = [name] if name is not None else [entry.name for entry in catalogue.describe() if entry.is_here]
    if not names:
        print("no dataset is here: 'vocabench data get NAME' gets one")
    for dataset in names:
        if action == "get":
            print(catalogue.get(dataset, _show_progress))
        else:
            print(f"{dataset}: verified, sha256 {catalogue.verify(dataset, _show_progress)}")
    return 0


def _list() -> int:
    from vocabench.harness.datasets.shared import catalogue

    for entry in catalogue.describe():
        here = "here" if entry.is_here else "not here"
        print(f"{entry.name:<17}{entry.kind:<11}{here:<10}{entry.description}")
        print(f"{'':<34}{entry.source}; licence: {entry.licence}")
    return 0


def _show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)
