"""`vocabench compare`: decide whether one run is worse than another."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vocabench.harness.commands.command import Command, number
from vocabench.harness.commands.output import emit
from vocabench.impls.errors import BadInput, unknown

if TYPE_CHECKING:
    from vocabench.harness.compare.gate import Limits
    from vocabench.harness.run.rows import Row

FORMATS = ("markdown", "json")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "before", metavar="A", help="results file of the older run, or folder of results files of the same code"
    )
    parser.add_argument("after", metavar="B", help="the same for the newer run")
    parser.add_argument("--frameworks", metavar="X,Y", help="judge framework X relative to framework Y")
    parser.add_argument(
        "--threshold", type=number, default=0.05, help="smallest change of a time or of memory that counts (0.05)"
    )
    parser.add_argument(
        "--quality-threshold", type=number, default=0.01, help="smallest change of anything else that counts (0.01)"
    )
    parser.add_argument("--strict", action="store_true", help="count what B lacks as worse")
    parser.add_argument(
        "--fail-on-unclear", action="store_true", help="exit with 1 as well if a change is neither seen nor excluded"
    )
    parser.add_argument("--format", default="markdown", help="markdown (default) or json")
    parser.add_argument("--out", help="file to write to, in addition to the screen")


def _run(arguments: argparse.Namespace) -> int:
    from vocabench.harness.compare.gate import Limits

    return compare(
        arguments.before,
        arguments.after,
        frameworks=arguments.frameworks,
        limits=Limits(cost=arguments.threshold, quality=arguments.quality_threshold),
        strict=arguments.strict,
        fail_on_unclear=arguments.fail_on_unclear,
        text_format=arguments.format,
        out=arguments.out,
    )


COMMAND = Command(
    "compare",
    "whether run B is worse than run A; exits with 0 if not, 1 if it is, 3 if nothing can be compared",
    _add_arguments,
    _run,
)


def compare(
    before: str,
    after: str,
    *,
    frameworks: str | None,
    limits: Limits,
    strict: bool,
    fail_on_unclear: bool = False,
    text_format: str,
    out: str | None,
) -> int:
    """Print the findings of the gate between two runs.

    Returns:
        0 for level or better, 1 for worse, or for unclear with `fail_on_unclear`, 3 if nothing could be compared.
    """
    from vocabench.harness.commands import findings as output
    from vocabench.harness.compare import gate
    from vocabench.harness.run.rows import OtherSchema

    exit_codes = {gate.LEVEL_OR_BETTER: 0, gate.WORSE: 1, gate.UNCLEAR: 1, gate.NOT_COMPARABLE: 3}
    if text_format not in FORMATS:
        raise unknown("format", text_format, FORMATS)
    for name, value in (("--threshold", limits.cost), ("--quality-threshold", limits.quality)):
        if not 0 <= value < 1:
            raise BadInput(f"{name} {value:g}: allowed: a share from 0 to below 1, such as 0.05")
    pair = _pair(frameworks)
    try:
        old = _rows(Path(before))
        new = old if after == before else _rows(Path(after))
    except OtherSchema as error:
        print(f"not comparable: {error}")
        return exit_codes[gate.NOT_COMPARABLE]
    findings = gate.between_frameworks(old, new, *pair, limits) if pair else gate.compare(old, new, limits)
    verdict = gate.verdict(findings, strict=strict, fail_on_unclear=fail_on_unclear)
    render = output.as_json if text_format == "json" else output.as_markdown
    emit(render(findings, verdict, limits), out)
    return exit_codes[verdict]


def _pair(frameworks: str | None) -> tuple[str, str] | None:
    from vocabench.harness import registry

    if frameworks is None:
        return None
    names = frameworks.split(",")
    for name in names:
        if name not in registry.frameworks():
            raise unknown("framework", name, registry.frameworks())
    if len(names) != 2 or names[0] == names[1]:
        raise BadInput(f"--frameworks {frameworks}: allowed: two of them, such as jax,torch")
    return names[0], names[1]


def _rows(path: Path) -> list[Row]:
    """Return the rows of a results file, or of all results files in a folder as several runs of the same code."""
    from vocabench.harness.compare import matching
    from vocabench.harness.compare.run_values import reduced
    from vocabench.harness.run import results_files

    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise BadInput(f"folder {path}: no results file: allowed: at least one .jsonl file")
    rows = [row for file in files for row in results_files.rows_of_command(file, reduced)]
    if reason := matching.mixed(rows):
        raise BadInput(f"{path}: {reason}: allowed: runs of the same code and definitions")
    return rows
