"""A self-contained HTML page of stored rows: figures, tables, learned clusters, examples and provenance.

The page loads nothing: styles and script are inline, and drawings are SVG. All strings from rows are escaped, and the
content security policy allows no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vocabench.harness.installing import pip_install
from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.report import figures, table
from vocabench.harness.report.figures import Figure, name_of
from vocabench.harness.report.figures.quality import QUALITY
from vocabench.harness.report.over_seeds import combined, with_estimates
from vocabench.harness.report.rows import Record, flatten
from vocabench.harness.report.svg import thousands
from vocabench.harness.run.rows import Row
from vocabench.impls.errors import BadInput

_ASSETS = Path(__file__).parent / "assets"
_EXAMPLES = 12  # of a row; the row itself contains all
_CLUSTERS = 20
_MOST_DRAWN = 2000  # rows whose drawings a page can hold
_MOST_TEXTS = 200  # rows whose clusters or examples are shown
_FIGURE = re.compile(r"[+-]?\d|A/A")  # start of a numeric cell, which is aligned to the right


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    caption: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Texts:
    """A collapsible list of named texts, such as a source, its reference and the summary of a model."""

    title: str
    items: Sequence[Sequence[tuple[str, str]]]


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    id: str
    title: str
    text: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    texts: Sequence[Texts] = field(default_factory=tuple)


def build(rows: Sequence[Row], *, title: str, files: str) -> str:
    """Return the page.

    Args:
        rows: Rows of one or more runs.
        title: Heading of the page.
        files: Names of the files that the rows were read from, for the footer.

    Raises:
        BadInput: Jinja2 or matplotlib is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise BadInput(f"the report needs Jinja2: install it with '{pip_install('jinja2')}'") from error
    records = with_estimates(flatten(rows))
    script = (_ASSETS / "page.js").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.tests["figure"] = _FIGURE.match
    return environment.from_string((_ASSETS / "page.html").read_text(encoding="utf-8")).render(
        title=title,
        summary=_summary(rows, records),
        sections=sections(rows, records),
        files=files,
        style=(_ASSETS / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def sections(rows: Sequence[Row], records: Sequence[Record]) -> list[Section]:
    """Return the sections for which the rows have content."""
    drawn: dict[str, list[Figure]] = {}
    is_large = len(rows) > _MOST_DRAWN
    for figure in [] if is_large else figures.all_of(rows, records):
        drawn.setdefault(figure.section, []).append(figure)
    candidates = [
        Section(
            "overview",
            "Overview",
            _HOW_TO_READ + (_NOT_DRAWN if is_large else ""),
            tables=[_overview(combined(records))],
        ),
        Section("speed", "Speed", figures=drawn.get("speed", ())),
        Section("roofline", "Roofline", figures=drawn.get("roofline", ())),
        Section("decoding", "Decoding by length", figures=drawn.get("decoding", ())),
        Section("quality", "Quality and speed", figures=drawn.get("quality", ())),
        Section("memory", "Memory", figures=drawn.get("memory", ())),
        Section("training", "Training", figures=drawn.get("training", ())),
        Section("tables", "Tables", tables=_comparison(combined(records))),
        Section("agreement", "Agreement", figures=drawn.get("agreement", ())),
        Section("clusters", "Learned clusters", texts=list(_clusters(rows))),
        Section("examples", "Examples", texts=list(_examples(rows))),
        Section("rows", "All figures", tables=[_all_figures(records)]),
        Section("provenance", "Provenance", tables=[_provenance(rows)]),
    ]
    return [
        section
        for section in candidates
        if section.figures or section.texts or any(content.lines for content in section.tables)
    ]


_HOW_TO_READ = (
    "Speeds are for the forward and backward pass of the layer at the largest vocabulary measured, relative to full "
    "softmax of the same framework, in interleaved rounds. No speed is shown for a layer that disagrees with its "
    "float64 definition."
)


_NOT_DRAWN = (
    f" A report of more than {_MOST_DRAWN:,} rows has no drawings, and clusters and examples of its first "
    f"{_MOST_TEXTS} rows that have them only."
)


def _summary(rows: Sequence[Row], records: Sequence[Record]) -> str:
    methods = {row.cell.method for row in rows}
    frameworks = {row.cell.framework for row in rows}
    failed = sum(row.status not in ("ok", DISAGREE, "skipped") for row in rows)
    wrong = sum(row.status == DISAGREE for row in rows)
    days = sorted(row.provenance.started[:10] for row in rows if row.provenance.started)
    when = f", measured {days[0]}" + (f" to {days[-1]}" if days[-1] != days[0] else "") if days else ""
    verdict = "None disagrees, and all finished."
    if failed or wrong:
        verdict = f"{wrong} disagree, {failed} did not finish."
    return (
        f"{len(rows):,} cells of {len(methods)} methods in {len(frameworks)} frameworks, {len(records):,} figures"
        f"{when}. {verdict}"
    )


def _overview(records: Sequence[Record]) -> Table:
    """Return agreement, speed-up at the largest size and quality by method and framework."""
    frameworks = [name for name in dict.fromkeys(r["framework"] for r in records) if name != "numpy"] or ["numpy"]
    names = list(dict.fromkeys(name_of(r) for r in records))
    by_cell: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_cell.setdefault((name_of(record), record["framework"]), []).append(record)
    lines = []
    for name in names:
        cells = [by_cell.get((name, framework), []) for framework in frameworks]
        if any(cells):
            lines.append([name, *map(_overview_cell, cells)])
    return Table("Method by framework", ["method", *frameworks], lines)


def _overview_cell(records: Sequence[Record]) -> str:
    if not records:
        return "not run"
    verdicts = {r["agreement"] for r in records if r["quantity"]}
    parts = ["disagrees" if DISAGREE in verdicts else "agrees" if "agree" in verdicts else "unchecked"]
    timed = [r for r in records if r["quantity"] == "layer_seconds" and r["ratio_to_full_softmax"] is not None]
    if timed and DISAGREE not in verdicts:
        largest = max(timed, key=lambda r: r["vocab"])
        parts.append(f"{largest['ratio_to_full_softmax']:.3g}x at {thousands(largest['vocab'])}")
    for task, quantity in QUALITY.items():
        scored = [r for r in records if r["task"] == task and r["quantity"] == quantity and r["value"] is not None]
        if scored:
            parts.append(f"{quantity} {scored[-1]['value']:.4g} ({scored[-1]['dataset']})")
    failures = {r["status"] for r in records if not r["quantity"]}
    return ", ".join([*parts, *sorted(failures)])


def _comparison(records: Sequence[Record]) -> list[Table]:
    return [
        Table(title, list(map(str, frame.columns)), [list(map(str, line)) for line in frame.itertuples(index=False)])
        for title, frame in table.tables(records)
    ]


def _details(rows: Iterable[Row], name: str) -> Iterable[tuple[str, Any]]:
    """Yield the details of this name in the measurements of the rows, each with a title, up to a number of them."""
    found = (
        (f"{row.cell.method} in {row.cell.framework} on {row.cell.dataset}", detail)
        for row in rows
        for measurement in row.measurements
        if (detail := measurement.detail.get(name))
    )
    return itertools.islice(found, _MOST_TEXTS)


def _clusters(rows: Iterable[Row]) -> Iterable[Texts]:
    for title, clusters in _details(rows, "clusters"):
        numbered = enumerate(clusters[:_CLUSTERS], start=1)
        items = [[(str(number), " ".join(map(str, words)))] for number, words in numbered]
        yield Texts(title, items)


def _examples(rows: Iterable[Row]) -> Iterable[Texts]:
    """Yield the outputs that tasks store, such as {"text": TEXT, "summaries": [TEXT, ...], "ours": TEXT}."""
    for title, examples in _details(rows, "examples"):
        items = [[(str(name), _text(value)) for name, value in example.items()] for example in examples[:_EXAMPLES]]
        yield Texts(title, items)


def _text(value: Any) -> str:
    return " / ".join(map(str, value)) if isinstance(value, list) else str(value)


def _all_figures(records: Sequence[Record]) -> Table:
    columns = (
        "method", "framework", "task", "dataset", "vocab", "precision", "seed", "quantity", "value", "unit", "agreement"
    )  # fmt: skip
    lines = [
        [name_of(r), r["framework"], r["task"], r["dataset"] or "", f"{r['vocab']:,}", r["precision"],
         str(r["seed"]), r["quantity"] or "", "" if r["value"] is None else f"{r['value']:.6g}", r["unit"] or "",
         r["agreement"] if r["quantity"] else f"{r['status']}: {r['message']}"]
        for r in records
    ]  # fmt: skip
    return Table("All figures of all rows", columns, lines)


def _provenance(rows: Iterable[Row]) -> Table:
    columns = ("cell", "framework", "status", "code", "versions", "machine", "settings", "text", "started", "seconds")
    lines = []
    for row in rows:
        cell, origin = row.cell, row.provenance
        code, machine, data = origin.code, origin.machine, origin.data
        dirty = " (changed)" if code.get("dirty") else ""
        lines.append(
            [
                f"{cell.task} {cell.method}, {cell.vocab:,} words, {cell.precision}, seed {cell.seed}",
                cell.framework,
                row.status,
                f"{str(code.get('commit', ''))[:12]}{dirty}" or str(code.get("fingerprint", "")),
                _pairs({**origin.framework, **origin.versions}),
                f"{machine.get('cpu', '')}, {machine.get('cores', '')} cores",
                _pairs({**cell.options, **cell.settings}),
                f"{data.get('dataset', '')} {str(data.get('sha256', ''))[:12]}".strip(),
                origin.started,
                "" if origin.seconds is None else f"{origin.seconds:.1f}",
            ]
        )
    return Table("Provenance of each row", columns, lines)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
