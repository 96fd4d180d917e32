"""`vocabench run`: measure the cells of a suite that the results file does not hold yet."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vocabench.harness.commands.command import Command, add_filters, add_output_arguments, count, integer, pairs
from vocabench.harness.commands.output import print_table
from vocabench.harness.run.executor import KINDS, LOCAL, Executor
from vocabench.impls.errors import BadInput

if TYPE_CHECKING:
    from vocabench.harness.run.settings import Selection

_MOST_SEEDS = 1000


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suite", nargs="?", default="quick", help="a name of 'vocabench list suites', or a TOML file (default: quick)"
    )
    add_filters(parser)
    parser.add_argument("--dim", type=count, metavar="D", help="width of the hidden vectors (default: the suite's)")
    parser.add_argument("--tokens", type=count, metavar="N", help="tokens of a batch (default: the suite's)")
    parser.add_argument("--device", help="cpu (default), cuda or cuda:1")
    parser.add_argument(
        "--devices",
        type=integer,
        metavar="N",
        help="measure the timing cells of the suite with the words of their layers split over N devices",
    )
    parser.add_argument("--precision", action="append", help="float32, tf32, float64 or bfloat16; may be repeated")
    parser.add_argument("--dataset", help="name of a dataset, or path of a text file or folder (default: the suite's)")
    parser.add_argument("--text-rule", help="tokenization of the text: english, lines or whitespace (default: its own)")
    parser.add_argument("--seed", type=integer, help="random seed (default: the suite's)")
    parser.add_argument("--seeds", type=count, metavar="N", help="measure each cell with the seeds 0 to N-1")
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="option of a method; may be repeated"
    )
    parser.add_argument(
        "-s", "--set", action="append", default=[], metavar="NAME=VALUE", help="setting of a task; may be repeated"
    )
    parser.add_argument("--processes", type=integer, metavar="N", help="processes in which times are measured")
    parser.add_argument("--rounds", type=integer, metavar="N", help="interleaved rounds of each process")
    parser.add_argument("--out", help="results file (default: results/local/SUITE-CODE.jsonl)")
    parser.add_argument("--retry", action="store_true", help="measure cells that failed or were skipped again")
    parser.add_argument("--dry-run", action="store_true", help="print the cells and an estimate of the time, and end")
    add_output_arguments(parser)
    parser.add_argument("--executor", choices=KINDS, default="local", help="this machine, or a Ray cluster")
    parser.add_argument(
        "--address", help="HOST:PORT of the cluster (default: the one that runs on this machine, or a new one)"
    )
    parser.add_argument(
        "--cores", type=integer, metavar="N", help="cores per cell on the cluster (default: a whole node)"
    )


def _run(arguments: argparse.Namespace) -> int:
    from vocabench.harness.run.settings import Selection

    selection = Selection(
        frameworks=arguments.framework,
        methods=arguments.method,
        vocab=arguments.vocab,
        tasks=arguments.task,
        dim=arguments.dim,
        tokens=arguments.tokens,
        device=arguments.device,
        devices=arguments.devices,
        precision=arguments.precision,
        dataset=arguments.dataset,
        seeds=seeds_of(arguments.seed, arguments.seeds),
        options=pairs(arguments.option, "--option"),
        settings=pairs(arguments.set, "--set") | _given(arguments, "processes", "rounds", "text_rule"),
    )
    return run(
        arguments.suite,
        selection,
        out=arguments.out,
        retry=arguments.retry,
        executor=Executor(arguments.executor, arguments.address, arguments.cores),
        dry_run=arguments.dry_run,
        quiet=arguments.quiet,
        as_json=arguments.json,
    )


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, str]:
    """Return the settings that have options of their own and were given."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: str(value) for name, value in values.items() if value is not None}


def seeds_of(seed: int | None, number: int | None) -> Sequence[int] | None:
    """Return the seeds that --seed and --seeds select; None for those of the suite."""
    if number is None:
        return None if seed is None else [seed]
    if seed is not None:
        raise BadInput("--seed and --seeds: allowed: one of them")
    if not 1 <= number <= _MOST_SEEDS:
        raise BadInput(f"--seeds {number}: allowed: a whole number from 1 to {_MOST_SEEDS}")
    return range(number)


COMMAND = Command("run", "measure a suite; the same command again resumes", _add_arguments, _run)


def run(
    suite: str,
    selection: Selection,
    *,
    out: str | None,
    retry: bool,
    executor: Executor = LOCAL,
    dry_run: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Measure a suite and print its tables.

    Args:
        suite: Name of a suite, or path of its file.
        retry: Measure cells that failed or were skipped again.
        dry_run: Print the cells and an estimate of the time instead.
        quiet: Print nothing but errors and the path of the rows.
        as_json: Print events as JSON lines instead of tables.

    Returns:
        0 if every cell was measured and agrees, 2 if a cell refused its input, otherwise 1.
    """
    from vocabench.harness.commands.reporter import Reporter
    from vocabench.harness.commands.suite_run import SuiteRun
    from vocabench.harness.run import doubts

    reporter = Reporter(quiet=quiet, as_json=as_json)
    suite_run = SuiteRun(suite, selection, out=out, retry=retry, executor=executor, reporter=reporter)
    if dry_run:
        suite_run.describe()
        return 0
    rows = suite_run.measure()
    if not (quiet or as_json):
        print_table([*rows, *suite_run.skipped])
    for line in doubts.warnings(rows):
        reporter.note(f"warning: {line}")
    statuses = {row.status for row in rows}
    code = 2 if "refused" in statuses else 0 if statuses <= {"ok", "skipped"} else 1
    reporter.event("end", file=str(suite_run.path), statuses=suite_run.statuses(rows), exit_code=code)
    reporter.always(f"rows: {suite_run.path}")
    return code
