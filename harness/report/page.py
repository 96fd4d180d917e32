"""One self-contained HTML page of stored rows: figures, tables, learned clusters, examples, and where each row is from.

It loads nothing, from anywhere: styles and the script lie in it, drawings are SVG. Every string of a row is escaped,
and the page's own policy forbids a browser to run any script but the one it was made with.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vocabench.harness.report import figures, table
from vocabench.harness.report.figures import Figure, name_of
from vocabench.harness.report.figures.quality import QUALITY
from vocabench.harness.report.rows import Record, flatten
from vocabench.harness.report.svg import thousands
from vocabench.harness.run.store import Row
from vocabench.impls.errors import BadInput

_ASSETS = Path(__file__).parent / "assets"
_EXAMPLES = 12  # of a row's example outputs; the row has them all
_CLUSTERS = 20
_FIGURE = re.compile(r"[+-]?\d|A/A")  # what a cell with a number begins with: such stand to the right


@dataclass(frozen=True)
class Table:
    caption: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Texts:
    """A foldable list of named texts, such as a source, its reference and a model's summary."""

    title: str
    items: Sequence[Sequence[tuple[str, str]]]


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    text: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    texts: Sequence[Texts] = field(default_factory=tuple)


def build(rows: Sequence[Row], *, title: str, files: str) -> str:
    """The page.

    Args:
        rows: Of one run or more.
        title: Its heading.
        files: Where the rows were read from, as the page's foot names it.

    Raises:
        BadInput: A library that draws or fills in the page is missing.
    """
    try:
        import jinja2
    except ImportError as error:
        raise BadInput("the report needs Jinja2: install it with 'pip install -c constraints.txt jinja2'") from error
    records = flatten(rows)
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
    """Those that these rows have something for."""
    drawn: dict[str, list[Figure]] = {}
    for figure in figures.all_of(rows, records):
        drawn.setdefault(figure.section, []).append(figure)
    found = [
        Section("overview", "Overview", _HOW_TO_READ, tables=[_overview(records)]),
        Section("speed", "Speed", figures=drawn.get("speed", ())),
        Section("roofline", "Roofline", figures=drawn.get("roofline", ())),
        Section("decoding", "Decoding by length", figures=drawn.get("decoding", ())),
        Section("quality", "Quality and speed", figures=drawn.get("quality", ())),
        Section("memory", "Memory", figures=drawn.get("memory", ())),
        Section("training", "Training", figures=drawn.get("training", ())),
        Section("tables", "Tables", tables=_comparison(records)),
        Section("agreement", "Agreement", figures=drawn.get("agreement", ())),
        Section("clusters", "Learned clusters", texts=list(_clusters(rows))),
        Section("examples", "Examples", texts=list(_examples(rows))),
        Section("rows", "All figures", tables=[_every(records)]),
        Section("provenance", "Provenance", tables=[_provenance(rows)]),
    ]
    return [section for section in found if section.figures or section.texts or any(t.lines for t in section.tables)]


_HOW_TO_READ = (
    "Speed is of forward and backward of the layer at the largest vocabulary measured, over full softmax of the same "
    "framework, timed turn by turn. A speed whose layer disagrees with the float64 definition is not shown."
)


def _summary(rows: Sequence[Row], records: Sequence[Record]) -> str:
    methods = {row["cell"]["method"] for row in rows}
    frameworks = {row["cell"]["framework"] for row in rows}
    failed = sum(row["status"] not in ("ok", "disagree", "skipped") for row in rows)
    wrong = sum(row["status"] == "disagree" for row in rows)
    days = sorted(str(row["provenance"].get("started", ""))[:10] for row in rows if row["provenance"].get("started"))
    when = f", measured {days[0]}" + (f" to {days[-1]}" if days[-1] != days[0] else "") if days else ""
    verdict = "None disagrees, and all finished."
    if failed or wrong:
        verdict = f"{wrong} disagree, {failed} did not finish."
    return (
        f"{len(rows):,} cells of {len(methods)} methods in {len(frameworks)} frameworks, {len(records):,} figures"
        f"{when}. {verdict}"
    )


def _overview(records: Sequence[Record]) -> Table:
    """Method by framework: agreement, speed-up at the largest size, quality."""
    frameworks = [f for f in dict.fromkeys(r["framework"] for r in records) if f != "numpy"] or ["numpy"]
    names = list(dict.fromkeys(name_of(r) for r in records))
    by_place: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_place.setdefault((name_of(record), record["framework"]), []).append(record)
    lines = []
    for name in names:
        found = [by_place.get((name, framework), []) for framework in frameworks]
        if any(found):
            lines.append([name, *map(_place, found)])
    return Table("Method by framework", ["method", *frameworks], lines)


def _place(found: Sequence[Record]) -> str:
    if not found:
        return "not run"
    verdicts = {r["agreement"] for r in found if r["quantity"]}
    parts = ["disagrees" if "disagree" in verdicts else "agrees" if "agree" in verdicts else "unchecked"]
    timed = [r for r in found if r["quantity"] == "layer_seconds" and r["ratio_to_full_softmax"] is not None]
    if timed and "disagree" not in verdicts:
        largest = max(timed, key=lambda r: r["vocab"])
        parts.append(f"{largest['ratio_to_full_softmax']:.3g}x at {thousands(largest['vocab'])}")
    for task, quantity in QUALITY.items():
        scored = [r for r in found if r["task"] == task and r["quantity"] == quantity and r["value"] is not None]
        if scored:
            parts.append(f"{quantity} {scored[-1]['value']:.4g} ({scored[-1]['dataset']})")
    missing = [r["status"] for r in found if not r["quantity"]]
    return ", ".join([*parts, *sorted(set(missing))])


def _comparison(records: Sequence[Record]) -> list[Table]:
    return [
        Table(
            title, [str(c) for c in frame.columns], [[str(v) for v in line] for line in frame.itertuples(index=False)]
        )
        for title, frame in table.tables(records)
    ]


def _details(rows: Iterable[Row], name: str) -> Iterable[tuple[str, Any]]:
    """What the rows' measurements keep under `name`, with a title that tells whose it is."""
    for row in rows:
        cell = row["cell"]
        for measurement in row["measurements"]:
            found = measurement.get("detail", {}).get(name)
            if found:
                yield f"{cell['method']} in {cell['framework']} on {cell['dataset']}", found


def _clusters(rows: Iterable[Row]) -> Iterable[Texts]:
    for title, found in _details(rows, "clusters"):
        items = [[(str(number), " ".join(map(str, words)))] for number, words in enumerate(found[:_CLUSTERS], start=1)]
        yield Texts(title, items)


def _examples(rows: Iterable[Row]) -> Iterable[Texts]:
    """Outputs that tasks keep as {"text": TEXT, "summaries": [TEXT, ...], "ours": TEXT} and the like."""
    for title, found in _details(rows, "examples"):
        yield Texts(title, [[(str(name), _text(value)) for name, value in one.items()] for one in found[:_EXAMPLES]])


def _text(value: Any) -> str:
    return " / ".join(map(str, value)) if isinstance(value, list) else str(value)


def _every(records: Sequence[Record]) -> Table:
    columns = ("method", "framework", "task", "dataset", "vocab", "precision", "quantity", "value", "unit", "agreement")
    lines = [
        [name_of(r), r["framework"], r["task"], r["dataset"] or "", f"{r['vocab']:,}", r["precision"],
         r["quantity"] or "", "" if r["value"] is None else f"{r['value']:.6g}", r["unit"] or "",
         r["agreement"] if r["quantity"] else f"{r['status']}: {r['message']}"]
        for r in records
    ]  # fmt: skip
    return Table("Every figure of every row", columns, lines)


def _provenance(rows: Iterable[Row]) -> Table:
    columns = ("cell", "framework", "status", "code", "versions", "machine", "settings", "text", "started", "seconds")
    lines = []
    for row in rows:
        cell, origin = row["cell"], row["provenance"]
        code, machine, data = (origin.get(name) or {} for name in ("code", "machine", "data"))
        dirty = " (changed)" if code.get("dirty") else ""
        spent = origin.get("seconds")
        lines.append(
            [
                f"{cell['task']} {cell['method']}, {cell['vocab']:,} words, {cell['precision']}, seed {cell['seed']}",
                cell["framework"],
                row["status"],
                f"{str(code.get('commit', ''))[:12]}{dirty}" or str(code.get("fingerprint", "")),
                _pairs({**(origin.get("framework") or {}), **(origin.get("versions") or {})}),
                f"{machine.get('cpu', '')}, {machine.get('cores', '')} cores",
                _pairs({**cell["options"], **cell["settings"]}),
                f"{data.get('dataset', '')} {str(data.get('sha256', ''))[:12]}".strip(),
                str(origin.get("started", "")),
                "" if spent is None else f"{spent:.1f}",
            ]
        )
    return Table("Where each row is from", columns, lines)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
