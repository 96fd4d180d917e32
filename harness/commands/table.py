"""`vocabench table`: the comparison, from stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vocabench.harness import registry
from vocabench.harness.atomic_write import write_whole
from vocabench.harness.report.rows import Filter, flatten
from vocabench.harness.run import results_files
from vocabench.harness.run.store import Row
from vocabench.impls.errors import BadInput, unknown


def table(
    given: Sequence[str] | None,
    form: str,
    kept: Filter,
    *,
    clusters: int,
    examples: int,
    out: str | None,
    plot: str | None,
) -> int:
    from vocabench.harness.report import table as tables

    if form not in tables.FORMATS:
        raise unknown("format", form, tables.FORMATS)
    if (clusters or examples) and form != "markdown":
        raise BadInput(f"--format {form} has no clusters or examples: allowed: --format markdown")
    _check(kept)
    if len(given or ()) > 1:
        raise BadInput("--run given more than once: allowed: with --against published only")
    path = results_files.resolve(given[0] if given else None)
    rows = results_files.rows(path)
    records = [record for record in flatten(rows) if kept.keeps(record)]
    if not records:
        raise BadInput(f"{path} has no row under these filters: allowed: fewer or other filters")
    text = tables.render(records, form)
    shown = [row for row in rows if kept.keeps(row["cell"])]
    if clusters:
        text += "\n" + tables.clusters(shown, clusters)
    if examples:
        text += "\n" + tables.examples(shown, examples)
    if plot is not None:
        from vocabench.harness.report.plot import speed

        speed(records, Path(plot))
    say(text, out)
    return 0


def against_published(given: Sequence[str] | None, form: str, kept: Filter, *, out: str | None) -> int:
    """The ledger of published figures with the rows of one run or more beside them."""
    from vocabench.harness.published import ledger
    from vocabench.harness.report import against

    if form not in against.FORMATS:
        raise unknown("format", form, against.FORMATS)
    _check(kept)
    measured = [
        each
        for path in map(results_files.resolve, given or [None])
        for each in against.ours(results_files.rows(path), kept)
    ]
    found = against.lines(ledger.figures(), measured, kept)
    if not found:
        raise BadInput("no published figure under these filters: allowed: fewer or other filters")
    say(against.render(found, form), out)
    return 0


def say(text: str, out: str | None) -> None:
    """To the file first: where it cannot be written nothing is on the screen but why."""
    if out is not None:
        write_whole(Path(out), text)
    print(text, end="" if text.endswith("\n") else "\n")


def show(rows: Sequence[Row], form: str) -> None:
    from vocabench.harness.report import table as tables

    print(tables.render(flatten(rows), form))


def _check(kept: Filter) -> None:
    for given, kind, names in (
        (kept.frameworks, "framework", registry.frameworks()),
        (kept.methods, "method", [*registry.methods(), *_extra_methods()]),
        (kept.tasks, "task", registry.tasks()),
    ):
        for name in given or ():
            if name not in names:
                raise unknown(kind, name, names)


def _extra_methods() -> list[str]:
    return [method for task in registry.tasks() for method in getattr(registry.task(task), "EXTRA_METHODS", ())]
