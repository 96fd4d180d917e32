"""Tables of pages, described in TOML."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from docs._figures.published import Missing, NotFound, Published
from docs._figures.show import label, show
from vocabench.harness.report import table as report_table
from vocabench.harness.report.rows import Record, value_of

_KEYS = ("rows", "where", "head", "each", "every", "lines", "columns", "blanks", "printed")
_PLACE = re.compile(r"\{(\w+) (\w+)\}")


def table(content: Mapping[str, Any], published: Published) -> str:
    """Return a Markdown table.

    The keys of `content` are:

    - `rows`: name of the results file, unless a line or a column names another;
    - `where`: fields that all records of the table share;
    - `head`: titles of the first columns, which say what a line shows;
    - `each`: fields with their values, for a line of each combination; or
    - `every`: a line for each method and its options, by rising mean of the quantity `sort`, without the methods `but`,
      before those of `lines`; or
    - `lines`: a list of lines, each with `text`, the first cells, and the fields that select its records;
    - `columns`: each with a `title`, a `cell` such as "{layer_seconds ratio}", and fields that select its records. With
      `frameworks`, a column stands for one for each of them. A line may have `cells` by title of a column, or
      for "all": a cell instead of the column's, or further fields;
    - `blanks`: whether a figure may be missing, which leaves its cell empty. Otherwise it is an error.

    With `printed`, the table is the one of `vocabench table` whose title begins like this, of the records of `where`.
    """
    if wrong := set(content) - set(_KEYS):
        raise NotFound(f"unknown key {min(wrong)!r} of a table: allowed: {', '.join(_KEYS)}")
    shared = {"rows": content.get("rows"), **content.get("where", {})}
    if "printed" in content:
        return _printed(content["printed"], published.all_that_fit({"options": None, **shared}))
    columns = list(_columns(content["columns"]))
    head = content["head"]
    body = [
        [*texts, *(_cell(column, {**shared, **fields}, cells, published, content) for column in columns)]
        for texts, fields, cells in [*_every(content, shared, published), *_lines(content)]
    ]
    right = [title == "words" for title in head] + [True] * len(columns)
    return markdown([*head, *(column["title"] for column in columns)], right, body)


def _printed(title: str, records: Sequence[Record]) -> str:
    for found, frame in report_table.tables(records):
        if found.startswith(title):
            titles = [str(title) for title in frame.columns]
            return markdown(titles, [False] * 2 + [True] * (len(titles) - 2), frame.to_numpy().tolist())
    raise NotFound(f"no table {title!r} of these rows: allowed: the beginning of a title of 'vocabench table'")


def _columns(columns: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the columns, with one for each framework of a column with several."""
    for column in columns:
        fields = dict(column)
        for framework in fields.pop("frameworks", [None]):
            named = {} if framework is None else {"title": label("framework", framework), "framework": framework}
            yield {**fields, **named}


def _lines(content: Mapping[str, Any]) -> Iterator[tuple[list[str], dict[str, Any], dict[str, Any]]]:
    """Yield the first cells of each line, the fields that select its records, and cells that replace others."""
    if "each" in content:
        for values in itertools.product(*content["each"].values()):
            fields = dict(zip(content["each"], values, strict=True))
            yield [label(field, value) for field, value in fields.items()], fields, {}
        return
    for line in content.get("lines", ()):
        fields = {name: value for name, value in line.items() if name not in ("text", "cells")}
        yield line["text"], fields, line.get("cells", {})


def _every(
    content: Mapping[str, Any], shared: Mapping[str, Any], published: Published
) -> list[tuple[list[str], dict[str, Any], dict[str, Any]]]:
    """Return the same for each method and its options, in the order of `content["every"]`."""
    if "every" not in content:
        return []
    sort, but = content["every"]["sort"], content["every"].get("but", ())
    values: dict[tuple[str, str], list[float]] = {}
    for record in published.all_that_fit({"options": None, **shared, "quantity": sort}):
        if record["method"] not in but:
            values.setdefault((record["method"], record["options"]), []).append(value_of(record))
    names = sorted(values, key=lambda name: statistics.fmean(values[name]))
    return [
        (
            [f"{label('method', method)} {options.replace(',', ', ')}".strip()],
            {"method": method, "options": options},
            {},
        )
        for method, options in names
    ]


def _cell(
    column: Mapping[str, Any],
    shared: Mapping[str, Any],
    cells: Mapping[str, Any],
    published: Published,
    content: Mapping[str, Any],
) -> str:
    fields = {name: value for name, value in column.items() if name not in ("title", "cell")}
    changed = cells.get(column["title"], cells.get("all", {}))
    template = changed if isinstance(changed, str) else column["cell"]
    further = {} if isinstance(changed, str) else changed

    def figure(found: re.Match[str]) -> str:
        return show(found[2], {**shared, **fields, **further, "quantity": found[1]}, published)

    try:
        return _PLACE.sub(figure, template)
    except Missing:
        if not content.get("blanks"):
            raise
        return ""


def markdown(titles: Sequence[str], right: Sequence[bool], body: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, with the columns of `right` aligned to the right."""
    rule = "|".join("---:" if is_right else "---" for is_right in right)
    return "\n".join([_line(titles), f"|{rule}|", *map(_line, body)])


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
