"""`vocabench calibrate`: how often the intervals of times hold on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vocabench.harness.commands.command import Command, add_framework_filter, integer
from vocabench.impls.errors import BadInput

if TYPE_CHECKING:
    from vocabench.harness.run.rows import Row

_SUITE = "calibrate"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_framework_filter(parser)
    parser.add_argument("-v", "--vocab", type=integer, metavar="V", help="size of the vocabulary (default: 10,000)")
    parser.add_argument("--processes", type=integer, metavar="N", help="processes to measure in (default: 20)")
    parser.add_argument(
        "--each", type=integer, default=3, metavar="P", help="processes of the runs whose intervals are judged (3)"
    )
    parser.add_argument("--device", help="cpu (default), cuda or cuda:1")
    parser.add_argument("--out", help="results file (default: results/local/calibrate-CODE.jsonl)")


def _run(arguments: argparse.Namespace) -> int:
    from vocabench.harness.commands.run import run
    from vocabench.harness.run import results_files
    from vocabench.harness.run.settings import Selection

    if arguments.each < 2:
        raise BadInput(f"--each {arguments.each}: allowed: from 2")
    if arguments.processes is not None and arguments.processes < arguments.each:
        raise BadInput(f"--processes {arguments.processes}: allowed: at least --each, {arguments.each}")
    selection = Selection(
        frameworks=arguments.framework,
        vocab=None if arguments.vocab is None else [arguments.vocab],
        device=arguments.device,
        settings={} if arguments.processes is None else {"processes": str(arguments.processes)},
    )
    path = results_files.default_path(_SUITE) if arguments.out is None else Path(arguments.out)
    code = run(_SUITE, selection, out=str(path), retry=True)
    print(table(results_files.rows(path), arguments.each))
    return code


COMMAND = Command("calibrate", "how often the confidence intervals of times hold on this machine", _add_arguments, _run)


def table(rows: Sequence[Row], each: int) -> str:
    """Return a Markdown table of the coverage of intervals over `each` processes, by class of times.

    Raises:
        BadInput: No time was measured in that many processes.
    """
    import pandas as pd

    from vocabench.harness.measure.calibration import coverage
    from vocabench.harness.report.formats import section
    from vocabench.harness.run.processes import class_of, ratio_centres

    by_class: dict[str, list[list[float]]] = {}
    for row in rows:
        for measurement in row.measurements:
            if len(measurement.processes) >= each:
                by_class.setdefault(class_of(measurement), []).append(ratio_centres(measurement))
    if not by_class:
        raise BadInput(f"no time was measured in {each} processes: allowed: rows of 'vocabench calibrate'")
    found = coverage(by_class, processes=each)
    lines = [
        [name, str(c.times), f"{c.deviation:.1%}", f"{c.coverage:.3f}", f"{c.half_width:.1%}"]
        for name, c in found.items()
    ]
    total = sum(c.times for c in found.values())
    mean = sum(c.times * c.coverage for c in found.values()) / total
    lines.append(["all", str(total), "", f"{mean:.3f}", ""])
    columns = ["times", "number", "deviation between processes", "coverage", "half width"]
    title = f"Coverage of 95 % intervals over {each} processes, in comparisons of equal layers"
    return section(title, pd.DataFrame(lines, columns=columns), "markdown")
