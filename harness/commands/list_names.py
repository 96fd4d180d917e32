"""`vocabench list`: the names of methods, frameworks, tasks, datasets or suites."""

from __future__ import annotations

import argparse

from vocabench.harness.commands.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=["methods", "frameworks", "tasks", "datasets", "suites"], help="what to list")


def _run(arguments: argparse.Namespace) -> int:
    from vocabench.harness import registry

    names = {
        "methods": lambda: [*registry.methods(), *registry.extra_methods()],
        "frameworks": registry.frameworks,
        "tasks": registry.tasks,
        "datasets": registry.datasets,
        "suites": registry.suites,
    }[arguments.kind]()
    print("\n".join(names))
    return 0


COMMAND = Command("list", "names of methods, frameworks, tasks, datasets or suites", _add_arguments, _run)
