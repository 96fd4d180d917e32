"""`vocabench table`: the comparison of stored rows, as tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vocabench.harness.commands.command import Command, add_filters, add_runs, count, runs_of
from vocabench.harness.commands.output import emit
from vocabench.impls.errors import BadInput, unknown

if TYPE_CHECKING:
    from vocabench.harness.report.rows import Filter


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument(
        "--against",
        choices=["published"],
        help="compare with the figures printed in papers; several results files may be named",
    )
    parser.add_argument("--format", default="markdown", help="markdown (default), latex, csv, json or html")
    parser.add_argument("--out", help="file to write to, in addition to the screen")
    parser.add_argument("--plot", metavar="FILE", help="svg, png or pdf file for a picture of the rows")
    parser.add_argument(
        "--figure",
        metavar="NAME",
        default="speed",
        help="figures of the report in that picture: speed (default), quality, memory, training, roofline, decoding or "
        "agreement",
    )
    parser.add_argument("--clusters", type=count, default=0, metavar="N", help="also print N learned word clusters")
    parser.add_argument("--examples", type=count, default=0, metavar="N", help="also print N examples of each system")
    add_filters(parser)


def _run(arguments: argparse.Namespace) -> int:
    from vocabench.harness.report.rows import Filter

    selected = Filter(
        frameworks=arguments.framework, methods=arguments.method, vocab=arguments.vocab, tasks=arguments.task
    )
    if arguments.against:
        if arguments.clusters or arguments.examples or arguments.plot:
            raise BadInput("--against published has no plot, clusters or examples: allowed: RUN, --format and --out")
        return against_published(runs_of(arguments), arguments.format, selected, out=arguments.out)
    return table(
        runs_of(arguments),
        arguments.format,
        selected,
        clusters=arguments.clusters,
        examples=arguments.examples,
        out=arguments.out,
        plot=arguments.plot,
        figure=arguments.figure,
    )


COMMAND = Command("table", "tables that compare the methods, from stored rows", _add_arguments, _run)


def table(
    runs: Sequence[str],
    text_format: str,
    selected: Filter,
    *,
    clusters: int,
    examples: int,
    out: str | None,
    plot: str | None,
    figure: str,
) -> int:
    """Print the tables of one run, with learned clusters, examples and a plot where they are asked for."""
    from vocabench.harness.report import excerpts, figures
    from vocabench.harness.report.formats import FORMATS
    from vocabench.harness.report.over_seeds import with_estimates
    from vocabench.harness.report.rows import flatten
    from vocabench.harness.report.table import render
    from vocabench.harness.run import results_files

    if text_format not in FORMATS:
        raise unknown("format", text_format, FORMATS)
    if figure not in figures.SECTIONS:
        raise unknown("figure", figure, figures.SECTIONS)
    if (clusters or examples) and text_format != "markdown":
        raise BadInput(f"--format {text_format} has no clusters or examples: allowed: --format markdown")
    _check(selected)
    if len(runs) > 1:
        raise BadInput(f"{len(runs)} results files: allowed: one, or several with --against published")
    path = results_files.resolve(runs[0] if runs else None)
    rows = results_files.rows_of_command(path)
    records = [record for record in with_estimates(flatten(rows)) if selected.keeps(record)]
    if not records:
        raise BadInput(f"{path} has no row under these filters: allowed: fewer or other filters")
    text = render(records, text_format)
    shown = [row for row in rows if selected.keeps(row.cell.to_json())] if clusters or examples else []
    if clusters:
        text += "\n" + excerpts.clusters(shown, clusters)
    if examples:
        text += "\n" + excerpts.examples(shown, examples)
    if plot is not None:
        from vocabench.harness.report.plot import draw

        kept = [row for row in rows if selected.keeps(row.cell.to_json())]
        draw([found for found in figures.all_of(kept, records) if found.section == figure], Path(plot))
    emit(text, out)
    return 0


def against_published(runs: Sequence[str], text_format: str, selected: Filter, *, out: str | None) -> int:
    """Print published figures next to the rows of one or more runs."""
    from vocabench.harness.published import ledger
    from vocabench.harness.report import against
    from vocabench.harness.report.formats import FORMATS
    from vocabench.harness.report.ours import ours
    from vocabench.harness.run import results_files

    if text_format not in FORMATS:
        raise unknown("format", text_format, FORMATS)
    _check(selected)
    measured = [
        figure
        for path in map(results_files.resolve, runs or [None])
        for figure in ours(results_files.rows(path), selected)
    ]
    lines = against.lines(ledger.figures(), measured, selected)
    if not lines:
        raise BadInput("no published figure under these filters: allowed: fewer or other filters")
    emit(against.render(lines, text_format), out)
    return 0


def _check(selected: Filter) -> None:
    """Raise `BadInput` if a filter names something that does not exist."""
    from vocabench.harness import registry

    for names, kind, known in (
        (selected.frameworks, "framework", registry.frameworks()),
        (selected.methods, "method", [*registry.methods(), *registry.extra_methods()]),
        (selected.tasks, "task", registry.tasks()),
    ):
        for name in names or ():
            if name not in known:
                raise unknown(kind, name, known)
