"""Tables and plots of measured rows."""

import itertools
import math
import re
from dataclasses import replace

import pytest

from tests import ROOT
from vocabench.harness import cli
from vocabench.harness.report import figures, formats, plot, table, units
from vocabench.harness.report.rows import flatten, ratio_of, value_of
from vocabench.harness.run.store import read
from vocabench.impls.errors import BadInput

RESULTS = ROOT / "results"
QUICK = RESULTS / "archive" / "quick.jsonl"
ROWS = read(QUICK)


def test_latex_prints_the_best_of_each_column_in_bold():
    records = [r for r in flatten(ROWS) if r["task"] == "timing" and r["vocab"] == 44000]
    text = table.render(records, "latex")
    speed = text.split("% Decoding")[0]
    times = [r for r in records if r["quantity"] == "layer_seconds"]
    fastest = max(times, key=lambda r: ratio_of(r) or (0.0,))
    (line,) = [line for line in speed.splitlines() if line.count("&") > 2 and r"\textbf{" in line.split("&")[2]]
    assert fastest["method"] in line
    assert fastest["framework"] in line
    assert rf"\textbf{{{fastest['ratio_to_full_softmax']:.1f}x [" in line
    smallest = min((r for r in records if r["quantity"] == "peak_bytes"), key=value_of)
    assert rf"\textbf{{{units.size(value_of(smallest))}}}" in speed
    assert not re.search("[\ue000\ue001]", text)


def test_a_layer_that_disagrees_is_never_the_best():
    rows = [row for row in ROWS if row.cell.task == "timing" and row.cell.vocab == 44000]
    wrong = [replace(r, agreement={"verdict": "disagree"}) if r.cell.method == "huffman" else r for r in rows]
    text = table.render(flatten(wrong), "latex")
    assert not [line for line in text.splitlines() if line.startswith("huffman") and "textbf" in line]


def test_a_figure_that_is_not_finite_is_marked():
    rows = [r for r in ROWS if r.cell.task in ("timing", "language_modelling", "summarization", "speech")]
    unknown = {"value": math.nan, "low": None, "high": None, "samples": [math.nan], "ratio": None, "detail": {}}
    rows = [replace(r, measurements=[replace(m, **unknown) for m in r.measurements]) for r in rows]
    for text_format in formats.FORMATS:
        text = table.render(flatten(rows), text_format)
        assert text_format in ("csv", "json") or "not finite" in text


def test_a_row_without_a_check_is_unchecked():
    (row,) = [r for r in ROWS if r.cell.task == "timing"][:1]
    records = flatten([replace(row, agreement={})])
    assert {record["agreement"] for record in records} == {"unchecked"}


def with_changes(row, key, **changes):
    """Return the row with a changed cell."""
    settings = {**row.cell.settings, **changes.pop("settings", {})}
    return replace(row, key=key, cell=replace(row.cell, settings=settings, **changes))


def test_rows_with_the_same_title_and_different_settings_have_separate_lines():
    (row,) = [
        r for r in ROWS if (r.cell.method, r.cell.framework, r.cell.task)
        == ("huffman", "torch", "language_modelling")
    ]  # fmt: skip
    rows = [row, with_changes(row, "b", seed=1), with_changes(row, "c", settings={"epochs": 5})]
    lines = [line.split("|")[1].strip() for line in table.render(flatten(rows), "markdown").splitlines()[4:7]]
    assert lines == ["huffman (epochs 1, seed 0)", "huffman (epochs 1, seed 1)", "huffman (epochs 5, seed 0)"]
    assert [record["apart"] for record in flatten([row])] == [""] * len(row.measurements)


def test_effort_is_named_only_where_nothing_else_sets_rows_apart():
    row = next(r for r in ROWS if r.cell.task == "timing" and r.cell.method == "huffman")
    one = {"decode_rows": 1, "quantities": ["sample_seconds"]}
    records = flatten([row, with_changes(row, "b", settings=one)])
    assert {record["apart"] for record in records} == {"decode_rows 128", "decode_rows 1"}
    records = flatten([row, with_changes(row, "b", settings={"rounds": 2})])
    assert {record["apart"] for record in records} == {f"rounds {row.cell.settings['rounds']}", "rounds 2"}


def test_timings_have_a_table_for_each_precision_and_a_line_for_each_seed():
    row = next(r for r in ROWS if r.cell.task == "timing" and r.cell.method == "huffman")
    text = table.render(flatten([row, with_changes(row, "b", precision="bfloat16")]), "markdown")
    assert text.count("### Speed") == 2
    assert "(precision" not in text
    text = table.render(flatten([row, with_changes(row, "b", seed=3)]), "markdown")
    assert "huffman (seed 0)" in text
    assert "huffman (seed 3)" in text


def test_one_agreement_row_that_disagrees_decides_for_all_seeds():
    of_huffman = [r for r in ROWS if r.cell.method == "huffman" and r.cell.framework == "jax"]
    (checked,) = [r for r in of_huffman if r.cell.task == "agreement"]
    (model,) = [r for r in of_huffman if r.cell.task == "language_modelling"]
    wrong = replace(with_changes(checked, "b", seed=1), agreement={"verdict": "disagree"})
    for rows in ([checked, wrong, model], [wrong, checked, model]):
        assert {r["agreement"] for r in flatten(rows) if r["task"] == "language_modelling"} == {"disagree"}
    assert {r["agreement"] for r in flatten([checked, model]) if r["task"] == "language_modelling"} == {"agree"}


def test_titles_are_escaped_in_html():
    row = next(r for r in ROWS if r.cell.task == "language_modelling")
    text = table.render(flatten([with_changes(row, "b", dataset="<script>x</script>.txt")]), "html")
    assert "<script>" not in text
    assert "&lt;script&gt;x&lt;/script&gt;.txt" in text


def test_rows_of_an_unknown_task_are_shown():
    (row,) = [r for r in ROWS if r.cell.task == "timing"][:1]
    text = table.render(flatten([with_changes(row, "a", task="elsewhere")]), "markdown")
    assert text.startswith("### Task elsewhere, which is not known here\n")
    for measurement in row.measurements:
        value = re.escape(f"{measurement.value:.4g}")
        assert re.search(rf"\| +{measurement.quantity} \| +{value} \|", text)


def speeds(rows):
    return [figure for figure in figures.all_of(rows, flatten(rows)) if figure.section == "speed"]


def texts_of(path):
    """Return the texts of a drawing, each in one line."""
    return [" ".join(text.split()) for text in re.findall("<!-- (.*?)-->", path.read_text(), flags=re.DOTALL)]


def test_a_plot_names_the_conditions_of_its_lines(tmp_path):
    cells = ((r, r.cell) for r in ROWS)
    row = next(r for r, c in cells if (c.task, c.method, c.vocab) == ("timing", "huffman", 10_000))
    small = with_changes(row, "b", vocab=500, tokens=7)
    unknown = replace(
        with_changes(row, "c", method="sohsm"), measurements=[replace(m, ratio=None) for m in row.measurements]
    )
    path = tmp_path / "plot.svg"
    plot.draw(speeds([row, unknown]), path)
    drawn = texts_of(path)
    assert any("N=1,280, D=256, float32, cpu" in text for text in drawn)
    assert "huffman" in drawn
    assert "sohsm" not in drawn
    plot.draw(speeds([row, small]), path)
    drawn = texts_of(path)
    for condition in ("N=1,280, D=256, float32, cpu, 10,000 words", "N=7, D=256, float32, cpu, 500 words"):
        assert sum(condition in text for text in drawn) == 1


def test_a_plot_labels_each_line_once_at_its_end_and_fits(tmp_path):
    path = tmp_path / "plot.svg"
    rows = read(RESULTS / "cpu-epyc.jsonl")
    plot.draw(speeds(rows), path)
    text = path.read_text()
    drawn = re.findall("<!-- (.*) -->", text)
    timed = {
        (row.cell.framework, row.cell.dim, row.cell.method, row.cell.variant)
        for row in rows
        if row.cell.task == "timing" and any(m.quantity == "layer_seconds" for m in row.measurements)
    }
    for method in ("huffman", "fused_softmax"):
        assert drawn.count(method) == sum(name == method for _, _, name, _ in timed)
    assert {"100k", "1x", "50x"} <= set(drawn)
    width = float(re.findall(r'width="([\d.]+)pt"', text)[0])
    moved = r"<!-- .* -->\s*<g [^>]*translate\((-?[\d.]+) ([\d.]+)\)"
    places = [(float(x), float(y)) for x, y in re.findall(moved, text)]
    assert len(places) > 20
    assert 0 <= min(x for x, _ in places) <= max(x for x, _ in places) < width
    for x in {x for x, _ in places}:
        column = sorted(y for other, y in places if other == x)
        assert all(below - above > 8 for above, below in itertools.pairwise(column)), x


@pytest.mark.parametrize("name", ["plot", "plot.foo", "plot.jpg"])
def test_a_plot_with_another_extension_is_refused(tmp_path, name):
    with pytest.raises(BadInput, match=r"allowed: a name that ends in .svg, .png, .pdf"):
        plot.draw(speeds(ROWS), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "where", [("--out", "no/table.md"), ("--out", "/dev/full"), ("--plot", "no/plot.svg"), ("--plot", "plot.txt")]
)
def test_an_unwritable_file_is_an_error_before_anything_is_printed(in_empty_folder, capsys, where):
    assert cli.main(["table", "--run", str(QUICK), *where]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert f" {where[1]}: " in line


@pytest.mark.parametrize("text_format", ["json", "csv", "latex", "html"])
@pytest.mark.parametrize("argument", ["--clusters", "--examples"])
def test_clusters_and_examples_need_markdown(capsys, text_format, argument):
    assert cli.main(["table", "--run", str(QUICK), "--format", text_format, argument, "1"]) == 2
    assert f"--format {text_format} has no clusters or examples" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "argument", "title"),
    [
        ("archive/quick.jsonl", "--clusters", "### Clusters of jax sohsm on pydoc-small"),
        ("quick-summaries.jsonl", "--examples", "- jax sohsm[interval=20]: "),
    ],
)
def test_filters_apply_to_clusters_and_examples(capsys, run, argument, title):
    assert cli.main(["table", "--run", str(RESULTS / run), "-f", "jax", "-m", "sohsm", argument, "1"]) == 0
    systems = re.findall("^(?:### Clusters of|- (?:torch|tensorflow|jax)) .*$", capsys.readouterr().out, re.MULTILINE)
    assert systems
    assert all(system.startswith(title) for system in systems)
