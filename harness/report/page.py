"""A self-contained HTML page of stored rows: one table that answers which layer, charts, and everything else folded.

The page loads nothing: styles and scripts are inline, and a script draws charts and long tables from values that the
page holds once, when they are opened. All strings from rows are escaped, and the content security policy allows no
script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from vocabench.harness.installing import pip_install
from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.report import figures, looks, machines, provenance, table
from vocabench.harness.report.conditions import conditions
from vocabench.harness.report.figures import Figure, name_of
from vocabench.harness.report.over_seeds import combined, with_estimates
from vocabench.harness.report.overview import Overview, overview
from vocabench.harness.report.rows import Record, flatten
from vocabench.harness.run.rows import Row
from vocabench.impls.errors import BadInput

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("chart.js", "table.js", "page.js")
_EXAMPLES = 12  # of a row; the row itself contains all
_CLUSTERS = 20
_MOST_TEXTS = 200  # rows whose clusters or examples are shown
_AT_ONCE = {"speed": 3, "quality": 3}  # figures of a section that are not folded, for each machine
_SPEED = (
    "Speeds are relative to full softmax of the same framework, in alternating rounds, with 95 % intervals; the "
    "vertical mark of each bar is 1. No speed is shown for a layer that disagrees with its float64 definition. "
)
_BEST = "The best figure of a framework is highlighted. Models are scored on held-out text."
_DOUBTFUL = " * A doubtful time: something else ran, or full softmax was slower or faster than next to other layers."


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        machine: Number of the machine that it is about, or None.
    """

    caption: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    machine: int | None = None


@dataclass(frozen=True)
class Texts:
    """A collapsible list of named texts, such as a source, its reference and the summary of a model."""

    title: str
    items: Sequence[Sequence[tuple[str, str]]]
    machine: int


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        figures: Figures with the number of their machine.
        shared: Names and texts that all rows share.
    """

    id: str
    title: str
    figures: Sequence[tuple[int, Figure]] = ()
    tables: Sequence[Table] = ()
    texts: Sequence[Texts] = field(default_factory=tuple)
    shared: Sequence[tuple[str, str]] = ()

    @property
    def at_once(self) -> Sequence[tuple[int, Figure]]:
        """The figures that are not folded."""
        most = _AT_ONCE.get(self.id, 0)
        return [
            placed
            for _, group in itertools.groupby(self.figures, key=lambda placed: placed[0])
            for placed in itertools.islice(group, most)
        ]

    @property
    def caption(self) -> str:
        """The explanation that all figures share, if they do."""
        captions = {figure.caption for _, figure in self.figures}
        return captions.pop() if len(captions) == 1 else ""

    @property
    def folded(self) -> Sequence[tuple[int, Figure]]:
        shown = {id(figure) for _, figure in self.at_once}
        return [placed for placed in self.figures if id(placed[1]) not in shown]

    @property
    def contents(self) -> str:
        """What is folded, such as "3 charts"."""
        counts = ((len(self.folded), "chart"), (len(self.tables), "table"), (len(self.texts), "list"))
        return ", ".join(f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count)


@dataclass(frozen=True)
class Machine:
    """The rows of one machine.

    Attributes:
        name: Short name, for its button.
        description: All that is known of it.
        records: Records of the rows.
        combined: The same, combined over seeds.
    """

    name: str
    description: str
    rows: Sequence[Row]
    records: Sequence[Record]
    combined: Sequence[Record]
    overview: Overview


def build(rows: Sequence[Row], *, title: str, files: str) -> str:
    """Return the page.

    Args:
        rows: Rows of one or more runs.
        title: Heading of the page.
        files: Names of the files that the rows were read from, for the footer.

    Raises:
        BadInput: Jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise BadInput(f"the report needs Jinja2: install it with '{pip_install('jinja2')}'") from error
    measured = by_machine(rows)
    of_page = sections(rows, measured)
    placed = [figure for section in of_page for _, figure in (*section.at_once, *section.folded)]
    tables = [content for section in of_page for content in section.tables]
    script = "".join((_ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(id=id, breakable=_breakable)
    forms = {(r["method"], r["options"]) for machine in measured for r in machine.records}
    return environment.from_string((_ASSETS / "page.html").read_text(encoding="utf-8")).render(
        title=title,
        summary=_summary(rows, measured),
        machines=measured,
        note="".join(
            (
                _SPEED if any(machine.overview.setting for machine in measured) else "",
                _BEST,
                _DOUBTFUL if any(machine.overview.is_doubtful for machine in measured) else "",
            )
        ),
        frameworks=list(dict.fromkeys(line.framework for machine in measured for line in machine.overview.lines)),
        methods=list(dict.fromkeys(line.method for machine in measured for line in machine.overview.lines)),
        sections=of_page,
        numbers={id(content): number for number, content in enumerate([*placed, *tables])},
        files=files,
        style=_palette() + (_ASSETS / "page.css").read_text(encoding="utf-8"),
        looks=looks.of_forms(forms),
        marks=looks.MARKS,
        data=_json(
            {
                "looks": looks.of_forms(forms),
                "figures": [figure.to_json() for figure in placed],
                "tables": [_packed(content.columns, content.lines) for content in [*placed, *tables]],
            }
        ),
        script=script,
        script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def by_machine(rows: Sequence[Row]) -> list[Machine]:
    """Return the rows by the machine that they were measured on, with their records."""
    found = []
    for name, own_rows in machines.by_machine(rows).items():
        records = with_estimates(flatten(own_rows))
        over_seeds = combined(records)
        first = overview(over_seeds, conditions(own_rows, records))
        found.append(Machine(name, machines.description(own_rows), own_rows, records, over_seeds, first))
    return found


def sections(rows: Sequence[Row], measured: Sequence[Machine]) -> list[Section]:
    """Return the sections after the overview for which the rows have content."""
    drawn: dict[str, list[tuple[int, Figure]]] = {}
    for number, machine in enumerate(measured):
        for figure in figures.all_of(machine.rows, machine.records):
            drawn.setdefault(figure.section, []).append((number, figure))
    origins = provenance.origins(rows)
    candidates = [
        Section("speed", "Speed", figures=drawn.get("speed", ())),
        Section("quality", "Quality and speed", figures=drawn.get("quality", ())),
        Section("memory", "Memory", figures=drawn.get("memory", ())),
        Section("training", "Training", figures=drawn.get("training", ())),
        Section("roofline", "Roofline", figures=drawn.get("roofline", ())),
        Section("decoding", "Decoding by length", figures=drawn.get("decoding", ())),
        Section("agreement", "Agreement", figures=drawn.get("agreement", ())),
        Section("tables", "Tables", tables=_comparison(measured)),
        Section("clusters", "Learned clusters", texts=list(_clusters(measured))),
        Section("examples", "Examples", texts=list(_examples(measured))),
        Section("rows", "All figures", tables=_all_figures(measured)),
        Section(
            "provenance",
            "Provenance",
            shared=origins.shared,
            tables=[Table("What differs between the cells", origins.columns, origins.lines)],
        ),
    ]
    return [
        section
        for section in candidates
        if section.figures or section.texts or any(content.lines for content in section.tables)
    ]


def _summary(rows: Sequence[Row], measured: Sequence[Machine]) -> str:
    if not rows:
        return "No cell has been measured."
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
        f"{_count(len(rows), 'cell')} of {_count(len(methods), 'method')} in {_count(len(frameworks), 'framework')}, "
        f"{_count(sum(len(machine.records) for machine in measured), 'figure')}{when}. {verdict}"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _breakable(text: str) -> str:
    """Return a name as HTML that may be broken between its words."""
    return re.sub(r"([_,])", r"\1<wbr>", escape(text))


def _palette() -> str:
    """Return the colours of the methods as CSS variables, for a light and a dark page."""
    light, dark = (
        "".join(f"--c{number}: {colour}; " for number, colour in enumerate(colours))
        for colours in ((*looks.COLOURS, looks.GREY), (*looks.DARK_COLOURS, looks.DARK_GREY))
    )
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"


def _json(value: Any) -> str:
    """Return JSON that can stand in a <script> element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _packed(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return a table by columns; of a column whose texts repeat, each text once and its place in each line."""
    packed: list[Any] = []
    for column in range(len(columns)):
        texts = [line[column] for line in lines]
        places = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        repeats = len(places) <= len(texts) // 2
        packed.append({"texts": list(places), "at": [places[text] for text in texts]} if repeats else texts)
    return {"columns": list(columns), "values": packed}


def _where(measured: Sequence[Machine], number: int) -> str:
    return f" ({measured[number].name})" if len(measured) > 1 else ""


def _comparison(measured: Sequence[Machine]) -> list[Table]:
    return [
        Table(
            title + _where(measured, number),
            list(map(str, frame.columns)),
            [list(map(str, line)) for line in frame.itertuples(index=False)],
            number,
        )
        for number, machine in enumerate(measured)
        for title, frame in table.tables(machine.combined)
    ]


def _details(measured: Sequence[Machine], name: str) -> Iterable[tuple[str, Any, int]]:
    """Yield the details of this name in the measurements, each with a title and its machine, up to a number of them."""
    found = (
        (f"{row.cell.method} in {row.cell.framework} on {row.cell.dataset}{_where(measured, number)}", detail, number)
        for number, machine in enumerate(measured)
        for row in machine.rows
        for measurement in row.measurements
        if (detail := measurement.detail.get(name))
    )
    return itertools.islice(found, _MOST_TEXTS)


def _clusters(measured: Sequence[Machine]) -> Iterable[Texts]:
    for title, clusters, machine in _details(measured, "clusters"):
        numbered = enumerate(clusters[:_CLUSTERS], start=1)
        yield Texts(title, [[(str(number), " ".join(map(str, words)))] for number, words in numbered], machine)


def _examples(measured: Sequence[Machine]) -> Iterable[Texts]:
    """Yield the outputs that tasks store, such as {"text": TEXT, "summaries": [TEXT, ...], "ours": TEXT}."""
    for title, examples, machine in _details(measured, "examples"):
        items = [[(str(name), _text(value)) for name, value in example.items()] for example in examples[:_EXAMPLES]]
        yield Texts(title, items, machine)


def _text(value: Any) -> str:
    return " / ".join(map(str, value)) if isinstance(value, list) else str(value)


def _all_figures(measured: Sequence[Machine]) -> list[Table]:
    """Return a table for each machine with a line for each record."""
    columns = (
        "method", "framework", "task", "dataset", "vocab", "precision", "seed", "quantity", "value", "unit", "agreement"
    )  # fmt: skip
    tables = []
    for number, machine in enumerate(measured):
        lines = [
            [name_of(r), r["framework"], r["task"], r["dataset"] or "", f"{r['vocab']:,}", r["precision"],
             str(r["seed"]), r["quantity"] or "", "" if r["value"] is None else f"{r['value']:.6g}", r["unit"] or "",
             r["agreement"] if r["quantity"] else f"{r['status']}: {r['message']}"]
            for r in machine.records
        ]  # fmt: skip
        tables.append(Table("All figures of all rows" + _where(measured, number), columns, lines, number))
    return tables
