"""`vocabench run`: measure the cells of a suite that the results file does not hold yet."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vocabench.harness.commands.command import Command, add_filters, count, integer, pairs
from vocabench.harness.commands.output import print_table
from vocabench.impls.errors import BadInput

if TYPE_CHECKING:
    from vocabench.harness.run.rows import Row
    from vocabench.harness.run.settings import Selection
    from vocabench.harness.run.store import Store

_MOST_SEEDS = 1000
_RETRIED = ("error", "timeout", "oom", "refused", "skipped")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", nargs="?", default="quick", help="see 'vocabench list suites' (default: quick)")
    add_filters(parser)
    parser.add_argument("--dim", type=count, metavar="D", help="width of the hidden vectors (default: the suite's)")
    parser.add_argument("--tokens", type=count, metavar="N", help="tokens of a batch (default: the suite's)")
    parser.add_argument("--device", help="cpu (default), cuda or cuda:1")
    parser.add_argument("--precision", action="append", help="float32, tf32, float64 or bfloat16; may be repeated")
    parser.add_argument("--dataset", help="name of a dataset, or path of a text file or folder (default: the suite's)")
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
    parser.add_argument("--executor", choices=["local", "ray"], default="local", help="this machine, or a Ray cluster")
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
        precision=arguments.precision,
        dataset=arguments.dataset,
        seeds=_seeds(arguments.seed, arguments.seeds),
        options=pairs(arguments.option, "--option"),
        settings=pairs(arguments.set, "--set") | _given(arguments, "processes", "rounds"),
    )
    return run(
        arguments.suite,
        selection,
        out=arguments.out,
        retry=arguments.retry,
        executor=arguments.executor,
        address=arguments.address,
        cores=arguments.cores,
    )


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, str]:
    """Return the settings that have options of their own and were given."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: str(value) for name, value in values.items() if value is not None}


def _seeds(seed: int | None, number: int | None) -> Sequence[int] | None:
    """Return the seeds of both arguments; None for those of the suite."""
    if number is None:
        return None if seed is None else [seed]
    if seed is not None:
        raise BadInput("--seed and --seeds: allowed: one of them")
    if not 1 <= number <= _MOST_SEEDS:
        raise BadInput(f"--seeds {number}: allowed: a whole number from 1 to {_MOST_SEEDS}")
    return range(number)


COMMAND = Command("run", "measure a suite; the same command again resumes", _add_arguments, _run)


def run(
    suite_name: str,
    selection: Selection,
    *,
    out: str | None,
    retry: bool,
    executor: str = "local",
    address: str | None = None,
    cores: int | None = None,
) -> int:
    """Measure a suite and print its tables.

    Args:
        retry: Measure cells that failed or were skipped again.
        executor: "local" or "ray".
        address, cores: Address of the Ray cluster and cores per cell, as `ray_pool.run` takes them.

    Returns:
        0 if every cell was measured and agrees, 2 if a cell refused its input, otherwise 1.
    """
    from rich.console import Console

    from vocabench.harness import registry
    from vocabench.harness.commands.measuring import measure
    from vocabench.harness.run import doubts, pool, ray_pool, results_files
    from vocabench.harness.run.store import Store
    from vocabench.harness.run.suites import Suite

    console = Console(stderr=True)
    suite = Suite.load(suite_name)
    plan = suite.plan(selection)
    if plan.sweeps and (lacking := plan.lacking_methods):
        console.print(f"left out, because no task of the suite has them: {', '.join(lacking)}")
    with_layer = [method for method in selection.methods or () if method in registry.methods()]
    for framework in selection.frameworks or ():
        lacking = [method for method in with_layer if method not in registry.methods(framework)]
        if lacking:
            console.print(f"left out, because {framework} does not have them: {', '.join(lacking)}")
    device = selection.device or "cpu"
    if executor == "ray":
        ray_pool.check(device, address, cores)
    elif address is not None or cores is not None:
        raise BadInput("--address and --cores are for a cluster: allowed: with --executor ray")
    with console.status("preparing"):
        cells = plan.cells()
    run_cells = partial(ray_pool.run, address=address, cores=cores) if executor == "ray" else pool.run
    if executor == "local":
        pool.check_device({cell.framework for cell in cells if cell.method in registry.methods()}, device)
    path = Path(out) if out is not None else results_files.default_path(suite_name)
    keys = {cell.key for cell in cells}
    with Store(path, again=_RETRIED if retry else ()) as store:
        # Reading the rows here also refuses a file that could not be shown, before anything is measured.
        kept = [row for row in results_files.rows(path) if row.key in keys and row.key in store]
        if old := _count_from_other_code(kept):
            console.print(f"{old} cells of {path} were measured by other code: another --out measures them anew")
        measure(cells, store, suite.deadline_seconds, console, run_cells)
        rows = [row for row in results_files.rows(path) if row.key in keys]
        rows = _with_pooled_intervals(rows, store)
    print_table(rows)
    for line in doubts.warnings(rows):
        console.print(f"warning: {line}", highlight=False)
    console.print(f"rows: {path}")
    statuses = {row.status for row in rows}
    return 2 if "refused" in statuses else 0 if statuses <= {"ok", "skipped"} else 1


def _with_pooled_intervals(rows: Sequence[Row], store: Store) -> list[Row]:
    """Return the rows with their intervals over processes, and store those that this changes."""
    from vocabench.harness.run import processes

    pooled = processes.pool(rows)
    for before, after in zip(rows, pooled, strict=True):
        if after != before:
            store.append(after)
    return pooled


def _count_from_other_code(rows: Sequence[Row]) -> int:
    from vocabench.harness.run.provenance import code_fingerprint

    return sum(row.provenance.code.get("fingerprint") != code_fingerprint() for row in rows)
