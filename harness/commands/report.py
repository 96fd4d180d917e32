"""`vocabench report`: stored rows as one HTML page that opens offline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vocabench.harness.atomic_write import write_atomically
from vocabench.harness.commands.command import Command, add_runs, runs_of

_MOST_NAMES = 4  # of runs in the title


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument("--out", default="report.html", help="HTML file to write (default: report.html)")
    parser.add_argument("--title", help="heading of the page (default: the names of the runs)")


def _run(arguments: argparse.Namespace) -> int:
    return report(runs_of(arguments), out=arguments.out, title=arguments.title)


COMMAND = Command("report", "one HTML page of stored rows, which opens offline", _add_arguments, _run)


def report(runs: Sequence[str], *, out: str, title: str | None) -> int:
    """Write one page for one or more runs.

    A cell that is in several runs of a machine is shown as in the last of them.
    """
    from vocabench.harness.report.machines import latest_by_machine
    from vocabench.harness.report.page import build
    from vocabench.harness.run import results_files

    paths = [Path(run) for run in runs] if runs else [results_files.latest()]
    rows = latest_by_machine(row for path in paths for row in results_files.rows_of_command(path))
    files = ", ".join(path.name for path in paths)
    names = ", ".join(path.stem for path in paths)
    default_title = f"Vocabench: {names if len(paths) <= _MOST_NAMES else f'{len(paths)} runs'}"
    page = build(rows, title=default_title if title is None else title, files=files)
    write_atomically(Path(out), page)
    print(f"{out}: {len(rows):,} rows, {len(page.encode()) / 1000:,.0f} kB")
    return 0
