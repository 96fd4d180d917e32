"""`vocabench check`: numerical agreement of every method, framework and precision with the definitions."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from vocabench.harness.commands.command import (
    Command,
    add_framework_filter,
    add_method_filter,
    add_output_arguments,
)
from vocabench.harness.commands.output import print_table

if TYPE_CHECKING:
    from vocabench.harness.run.settings import Selection


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_framework_filter(parser)
    add_method_filter(parser)
    parser.add_argument("--precision", action="append", help="float32, tf32, float64 or bfloat16; may be repeated")
    parser.add_argument("--device", help="cpu (default), cuda or cuda:1")
    parser.add_argument("--out", help="results file (default: a new one below results/local)")
    add_output_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    from vocabench.harness.run.settings import Selection

    selection = Selection(
        frameworks=arguments.framework,
        methods=arguments.method,
        precision=arguments.precision,
        device=arguments.device,
    )
    return check(selection, out=arguments.out, quiet=arguments.quiet, as_json=arguments.json)


COMMAND = Command(
    "check",
    "numerical agreement of every method and framework; exits with 1 if one disagrees",
    _add_arguments,
    _run,
)


def check(selection: Selection, *, out: str | None, quiet: bool = False, as_json: bool = False) -> int:
    """Measure the agreement of all selected layers, and print each cell and quantity that disagrees.

    Rows that the file `out` already holds are measured again.

    Returns:
        0 if all layers that can run here agree, otherwise 1.
    """
    from vocabench.harness import registry
    from vocabench.harness.commands.measuring import measure
    from vocabench.harness.commands.reporter import Reporter
    from vocabench.harness.run import devices, pool, results_files
    from vocabench.harness.run.rows import STATUSES
    from vocabench.harness.run.store import Store
    from vocabench.harness.run.suites import Suite

    reporter = Reporter(quiet=quiet, as_json=as_json)
    suite = Suite.load("check")
    plan = suite.plan(selection)
    installed = [name for name in plan.frameworks if registry.is_installed(name)]
    devices.check(installed, selection.device or "cpu", every=selection.frameworks is not None)
    cells = plan.cells()
    path = Path(out) if out is not None else results_files.LOCAL / f"check-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    start = time.perf_counter()
    with Store(path, again=STATUSES) as store:
        rows = measure(cells, store, suite.deadline_seconds, reporter, pool.run_side_by_side)
    checked = [row for row in rows if row.status != "skipped"]
    failed = [row for row in checked if row.status != "ok"]
    disagreements = [(row, line) for row in failed for line in row.disagreements or [row.message]]
    reporter.event(
        "end",
        file=str(path),
        statuses=dict(Counter(row.status for row in rows)),
        disagreements=[{"key": row.key, "label": row.cell.label, "message": line} for row, line in disagreements],
        exit_code=1 if failed else 0,
    )
    if as_json:
        return 1 if failed else 0
    if not quiet:
        print_table(rows)
    for row, line in disagreements:
        print(f"{row.cell.label}: {row.status}: {line}")
    skipped = f", {len(rows) - len(checked)} skipped" if len(checked) < len(rows) else ""
    seconds = time.perf_counter() - start
    print(f"{len(checked) - len(failed)} of {len(checked)} cells agree{skipped}, {seconds:.0f} s; rows: {path}")
    return 1 if failed else 0
