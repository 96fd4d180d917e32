"""Tables of rows that were measured."""

import re
from pathlib import Path

from harness.report import table
from harness.report.rows import flatten
from harness.store import read

ROWS = read(Path(__file__).parents[2] / "results" / "quick.jsonl")


def test_latex_prints_the_best_of_each_column_bold():
    records = [r for r in flatten(ROWS) if r["task"] == "timing" and r["vocab"] == 44000]
    text = table.render(records, "latex")
    speed = text.split("% Decoding")[0]
    times = [r for r in records if r["quantity"] == "layer_seconds"]
    fastest = max(times, key=lambda r: r["ratio_to_full_softmax"])
    (line,) = [line for line in speed.splitlines() if line.count("&") > 2 and r"\textbf{" in line.split("&")[2]]
    assert fastest["method"] in line
    assert fastest["framework"] in line
    assert rf"\textbf{{{fastest['ratio_to_full_softmax']:.1f}x [" in line
    smallest = min((r for r in records if r["quantity"] == "peak_bytes"), key=lambda r: r["value"])
    assert rf"\textbf{{{table.size(smallest['value'])}}}" in speed
    assert not re.search("[\ue000\ue001]", text)


def test_what_disagrees_is_never_the_best():
    rows = [row for row in ROWS if row["cell"]["task"] == "timing" and row["cell"]["vocab"] == 44000]
    wrong = [{**r, "agreement": {"verdict": "disagree"}} if r["cell"]["method"] == "huffman" else r for r in rows]
    text = table.render(flatten(wrong), "latex")
    assert not [line for line in text.splitlines() if line.startswith("huffman") and "textbf" in line]


def test_a_figure_that_is_not_finite_is_said_to_be():
    rows = [r for r in ROWS if r["cell"]["task"] in ("timing", "language_modelling", "summarization", "speech")]
    unknown = {"value": None, "low": None, "high": None, "samples": [None], "ratio": None, "detail": {}}
    rows = [{**r, "measurements": [m | unknown for m in r["measurements"]]} for r in rows]
    for form in table.FORMATS:
        text = table.render(flatten(rows), form)
        assert form in ("csv", "json") or "not finite" in text


def test_a_row_without_a_check_is_unchecked():
    (row,) = [r for r in ROWS if r["cell"]["task"] == "timing"][:1]
    records = flatten([{name: value for name, value in row.items() if name != "agreement"}])
    assert {record["agreement"] for record in records} == {"unchecked"}
