"""The report opens offline, shows the values of the rows, and executes nothing from a row."""

import copy
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT
from tests.rows import with_cell
from vocabench.harness.cli import main
from vocabench.harness.report import conditions, figures, looks, machines, overview, page, provenance
from vocabench.harness.report.figures import Form
from vocabench.harness.report.figures.quality import Point, pareto
from vocabench.harness.report.over_seeds import combined, with_estimates
from vocabench.harness.report.rows import flatten
from vocabench.harness.run.store import read

RESULTS = ROOT / "results"
HOSTILE = "<script>alert(1)</script>\"'><img src=http://example.org/x onerror=alert(2)> $\\frac{1}{0}$ {{7*7}}"


@pytest.fixture(scope="module")
def rows():
    return read(RESULTS / "archive" / "quick.jsonl")


@pytest.fixture(scope="module")
def html(rows):
    return page.build(rows, title="A quick run", files="quick.jsonl")


class Elements(HTMLParser):
    """All start tags with their attributes, and all text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def sections_of(rows):
    return page.sections(rows, page.by_machine(rows))


def data_of(html):
    """Return the values that the script of a page draws from."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def test_a_section_appears_if_the_rows_have_content_for_it(html, rows):
    sections = [section.id for section in sections_of(rows)]
    assert sections == [
        "speed", "quality", "memory", "training", "roofline", "agreement", "tables", "clusters", "rows", "provenance"
    ]  # fmt: skip
    links = [a["href"] for a in Elements(html).all("a")]
    assert links == ["#main", "#overview", *(f"#{name}" for name in sections)]


def test_nothing_is_loaded_from_elsewhere(html):
    elements = Elements(html)
    loaded = [a[name] for tag, a in elements.tags for name in ("src", "href", "xlink:href", "action") if name in a]
    assert [link for link in loaded if not link.startswith(("#", "data:,"))] == []
    assert not re.search(r"url\((?!#)|@import", html)
    assert [tag for tag, _ in elements.tags if tag in ("iframe", "object", "embed", "base")] == []


def test_ids_are_unique_and_references_resolve(html):
    elements = Elements(html)
    ids = [a["id"] for _, a in elements.tags if "id" in a]
    assert sorted(ids) == sorted(set(ids))
    references = [
        name for _, a in elements.tags for key in ("aria-labelledby", "for") for name in a.get(key, "").split()
    ]
    assert set(references) <= set(ids)
    assert len(elements.all("figure")) == len(data_of(html)["figures"]) > 5
    assert all(figure["description"] for figure in data_of(html)["figures"])
    assert all(a.get("type") == "button" for a in elements.all("button"))


def test_the_page_shows_the_values_of_the_rows(html, rows):
    text = " ".join(Elements(html).text)
    for record in flatten(rows):
        if record["quantity"] == "perplexity":
            assert f"{record['value']:.2f}" in text
        if record["quantity"] == "layer_seconds" and record["method"] != "full_softmax":
            assert f"{record['ratio_to_full_softmax']:.2f}" in text


def test_style_and_script_are_not_escaped(html):
    for name in ("page.css", "chart.js", "table.js", "page.js"):
        assert (Path(page.__file__).parent / "assets" / name).read_text(encoding="utf-8") in html


def test_a_hostile_row_is_shown_as_text(rows):
    bad = copy.deepcopy(rows)
    for number, row in enumerate(bad):
        row = with_cell(row, method=HOSTILE, dataset=HOSTILE, options={HOSTILE: HOSTILE})
        provenance = replace(row.provenance, started=HOSTILE, framework={HOSTILE: HOSTILE})
        bad[number] = replace(row, message=HOSTILE, provenance=provenance)
        for measurement in row.measurements:
            measurement.detail["examples"] = [{HOSTILE: HOSTILE}]
            measurement.detail["clusters"] = [[HOSTILE]]
    elements = Elements(page.build(bad, title=HOSTILE, files=HOSTILE))
    assert len(elements.all("script")) == 2  # the data and the script of the page
    assert elements.all("img") == []
    assert not any(name.startswith("on") for _, a in elements.tags for name in a)
    assert HOSTILE in " ".join(elements.text)


def test_the_same_rows_give_the_same_page(html, rows):
    assert page.build(rows, title="A quick run", files="quick.jsonl") == html


def test_a_failed_row_is_reported(rows):
    failed = replace(rows[-1], status="oom", message="killed by SIGKILL", measurements=[])
    text = " ".join(Elements(page.build([*rows[:-1], failed], title="t", files="f")).text)
    assert "0 disagree, 1 did not finish" in text
    assert "oom: killed by SIGKILL" in text


def disagreeing(row):
    return replace(row, agreement={"verdict": "disagree"})


def test_the_speed_of_a_layer_that_disagrees_is_not_drawn(rows):
    wrong = [disagreeing(row) if row.cell.method == "huffman" else row for row in rows]
    records = flatten(wrong)
    speed = [f for f in figures.all_of(wrong, records) if f.section == "speed"]
    assert {line[0] for f in speed for line in f.lines} == {"sohsm"}
    lines = [line for line in first_answer(wrong).lines if line.name == "huffman"]
    assert {line.framework for line in lines} == {"torch", "tensorflow", "jax"}
    for line in lines:
        assert line.cells[0].text == "wrong result"
        assert line.cells[-1].text == "disagrees"


def first_answer(rows):
    """Return the overview of rows of one machine."""
    records = with_estimates(flatten(rows))
    return overview.overview(combined(records), conditions.conditions(rows, records))


def test_the_overview_has_speed_and_quality_of_each_form_side_by_side(rows):
    table = first_answer(rows)
    assert [title for title, _ in table.columns] == ["layer", "memory", "perplexity", "agreement"]
    assert table.setting.startswith("44,000 words") or table.setting.startswith("10,000 words")
    lines = {(line.name, line.framework): line for line in table.lines}
    assert len(lines) == len(table.lines)
    for record in flatten(rows):
        line = lines.get((figures.name_of(record), record["framework"]))
        if record["quantity"] == "perplexity":
            assert line is not None
            assert line.cells[2].text == f"{record['value']:.2f}"
    speeds = [line.cells[0] for line in table.lines if line.framework == "torch" and line.cells[0].text]
    assert speeds[0].text == "1x"  # full softmax comes first, then the fastest
    orders = []
    for cell in speeds[1:]:
        assert cell.order is not None
        assert cell.interval is not None
        assert cell.interval.low <= cell.interval.value <= cell.interval.high
        orders.append(cell.order)
    assert orders == sorted(orders, reverse=True)


@pytest.mark.parametrize(("run", "absent"), [("quick-speech", "119 words"), ("quick-summaries", "train")])
def test_the_overview_has_no_scores_of_training_text(run, absent):
    rows = read(RESULTS / f"{run}.jsonl")
    assert any(row.cell.settings.get("split") == "train" for row in rows)
    notes = [note for _, note in first_answer(rows).columns]
    assert not any(absent in note for note in notes)
    trained = [row for row in rows if row.cell.settings.get("split") == "train"]
    assert [title for title, _ in first_answer(trained).columns] == ["agreement"]
    assert not [f for f in figures.all_of(trained, flatten(trained)) if f.section == "quality"]


def test_models_that_were_trained_differently_are_in_different_columns():
    rows = read(RESULTS / "pydoc-torch.jsonl") + read(RESULTS / "pydoc-five-epochs.jsonl")
    notes = [note for title, note in first_answer(rows).columns if title == "perplexity"]
    assert len(notes) == len(set(notes)) > 1
    assert any("epochs 5" in note for note in notes)
    of_quality = [f for f in figures.all_of(rows, with_estimates(flatten(rows))) if f.section == "quality"]
    assert len({f.title for f in of_quality}) == len(of_quality)


def test_a_size_that_a_form_lacks_is_named_next_to_its_figure(rows):
    timed = [row for row in rows if row.cell.task == "timing"]
    most = max(row.cell.vocab for row in timed)
    lacking = {("sohsm", "torch", most), *((m, "jax", 10_000) for m in ("full_softmax", "huffman"))}
    few = [row for row in timed if (row.cell.method, row.cell.framework, row.cell.vocab) not in lacking]
    table = first_answer(few)
    assert table.setting.startswith(f"{most:,} words")
    notes = {(line.method, line.framework): line.cells[0].note for line in table.lines}
    assert {key for key, note in notes.items() if "at 10,000 words" in note} == {("sohsm", "torch")}


def test_machines_are_kept_apart(rows, tmp_path, capsys):
    other = [
        replace(row, provenance=replace(row.provenance, machine={"cpu": "Other", "cores": 64}))
        for row in rows
        if row.cell.method != "huffman"
    ]
    assert len(machines.latest_by_machine([*rows, *rows, *other])) == len(rows) + len(other)
    both = page.by_machine([*rows, *other])
    assert [machine.name for machine in both] == [machines.machine_of(rows[0]), "Other, 64 cores"]
    assert [len(machine.rows) for machine in both] == [len(rows), len(other)]
    assert {line.method for line in both[1].overview.lines} == {"full_softmax", "sohsm", "unigram"}
    figures_of_other = [f for s in page.sections([*rows, *other], both) for n, f in s.figures if n == 1]
    assert figures_of_other
    assert "huffman" not in {form.method for figure in figures_of_other for form in figure.forms}
    html = page.build([*rows, *other], title="t", files="f")
    assert [a.get("value") for a in Elements(html).all("input") if a.get("name") == "machine"] == ["0", "1"]


@pytest.mark.parametrize("tasks", [["timing"], ["language_modelling"], ["agreement"], []])
def test_a_page_of_few_tasks_is_complete(rows, tasks):
    html = page.build([row for row in rows if row.cell.task in tasks], title="t", files="f")
    elements = Elements(html)
    assert len(elements.all("table")) == bool(tasks)
    assert ("No cell has been measured." in " ".join(elements.text)) == (not tasks)


def test_rows_that_did_not_finish_have_a_page(rows):
    failed = [replace(row, status="oom", message="killed by SIGKILL", measurements=[]) for row in rows]
    text = " ".join(Elements(page.build(failed, title="t", files="f")).text)
    assert f"{len(rows)} did not finish" in text


def test_a_table_of_the_page_has_each_text_once_and_unfolds_to_its_lines(html, rows):
    packed = data_of(html)["tables"][-2]
    (expected,) = next(section for section in sections_of(rows) if section.id == "rows").tables
    assert packed["columns"] == list(expected.columns)
    unfolded = [v if isinstance(v, list) else [v["texts"][n] for n in v["at"]] for v in packed["values"]]
    assert [list(line) for line in zip(*unfolded, strict=True)] == [list(line) for line in expected.lines]


def test_provenance_shows_what_is_equal_once(rows):
    origins = provenance.origins(rows)
    shared = dict(origins.shared)
    assert shared["machine"].startswith(machines.machine_of(rows[0]))
    assert "machine" not in origins.columns
    cells = origins.columns.index("cells")
    assert sum(int(line[cells]) for line in origins.lines) == len(rows)
    assert len(origins.lines) < len(rows)
    other = replace(rows[0], provenance=replace(rows[0].provenance, machine={"cpu": "Other"}))
    assert "machine" in provenance.origins([*rows, other]).columns


def test_methods_look_the_same_in_every_page():
    few = looks.of_forms([("huffman", ""), ("sohsm", "[bias=True]")])
    many = looks.of_forms([("sohsm", "[bias=True]"), ("adaptive_softmax", ""), ("full_softmax", ""), ("huffman", "")])
    assert few.items() <= many.items()
    assert len({few["huffman"], few["sohsm"], few["sohsm [bias=True]"]}) == 3
    assert few["sohsm"].colour == few["sohsm [bias=True]"].colour != few["huffman"].colour
    assert looks.of_forms([("unknown_method", "")])["unknown_method"].colour < len(looks.COLOURS)


def test_labels_name_the_options_that_distinguish_forms():
    residual, none = "[bias=True,interval=0,projection=residual]", "[bias=True,interval=0,projection=none]"
    assert looks.labels([("sohsm", residual), ("sohsm", none), ("huffman", "")]) == {
        ("sohsm", residual): "sohsm, residual",
        ("sohsm", none): "sohsm, no projection",
        ("huffman", ""): "huffman",
    }
    assert looks.labels([("sohsm", none)])["sohsm", none] == "sohsm, bias, interval 0, no projection"


def test_two_seeds_have_two_curves(rows):
    curved = next(r for r in rows if r.cell.task == "language_modelling" and r.cell.method == "sohsm")
    other = replace(with_cell(copy.deepcopy(curved), seed=1), key="other")
    other.measurements[0].detail["curve"][-1]["perplexity"] = 12.5
    (drawn,) = [f for f in figures.all_of([curved, other], flatten([curved, other])) if f.section == "training"]
    names = {line[0] for line in drawn.lines}
    assert names == {f"sohsm [interval=100] (seed {seed})" for seed in (0, 1)}
    assert ("sohsm [interval=100] (seed 1)", "12.50") in {(line[0], line[2]) for line in drawn.lines}


@pytest.fixture
def speech():
    """Return new rows: three layers on characters, and others for which no gain can be drawn."""
    return read(RESULTS / "quick-speech.jsonl")


def gains(rows):
    """Return the lines of the decoding figures by title."""
    return {f.title: f.lines for f in figures.all_of(rows, flatten(rows)) if f.section == "decoding"}


def of_huffman(rows):
    return [row for row in rows if row.cell.method == "huffman"]


def by_length(row):
    (parts,) = [m.detail["by_length"] for m in row.measurements if m.quantity == "rtf"]
    return parts


def test_gains_by_length_are_ratios_of_decoding_times(speech):
    lines_by_title = gains(speech)
    assert [title.rpartition(": ")[2] for title in lines_by_title] == [
        f"spoken-names, 71 characters, {framework}" for framework in ("tensorflow", "jax", "torch")
    ]
    for framework, lines in zip(("tensorflow", "jax", "torch"), lines_by_title.values(), strict=True):
        (baseline, baseline_parts), *layers = [
            (row.cell.method, by_length(row))
            for row in speech
            if row.cell.framework == framework and row.cell.vocab == 71
        ]
        assert baseline == "full_softmax"
        assert [line[:4] for line in lines] == [
            (
                method,
                f"{part['units_per_utterance']:.1f}",
                str(part["utterances"]),
                f"{baseline_part['decode_seconds'] / part['decode_seconds']:.2f}",
            )
            for method, parts in layers
            for part, baseline_part in zip(parts, baseline_parts, strict=True)
        ]
    sections = {section.id: section for section in sections_of(speech)}
    assert len(sections["decoding"].figures) == 3


def test_gains_are_drawn_only_for_layers_that_agree(speech):
    def disagreeing_method(method):
        return [disagreeing(row) if row.cell.method == method else row for row in speech]

    drawn = gains(disagreeing_method("huffman")).values()
    assert [{line[0] for line in lines} for lines in drawn] == [{"sohsm"}] * 3
    assert gains(disagreeing_method("full_softmax")) == {}


def test_gains_need_full_softmax_on_the_same_utterances(speech):
    for row in of_huffman(speech):
        by_length(row)[0]["utterances"] += 1
    assert [{line[0] for line in lines} for lines in gains(speech).values()] == [{"sohsm"}] * 3
    for row in speech:
        if row.cell.method == "sohsm":
            row.cell.settings["beam"] = 5
    assert gains(speech) == {}


POINTS = st.lists(st.builds(Point, st.just(Form("m", "", "f")), st.integers(1, 9), st.integers(1, 9)), min_size=1)


@given(POINTS, st.booleans())
def test_the_front_consists_of_the_points_that_no_other_beats(points, higher_is_better):
    front = pareto(points, higher_is_better)
    assert front
    sign = 1 if higher_is_better else -1

    def beats(q, p):
        return q.speed >= p.speed and sign * q.quality >= sign * p.quality and q != p

    assert all((p in front) == (not any(beats(q, p) for q in points)) for p in points)


def test_two_seeds_of_a_model_are_one_point_at_their_mean(rows):
    trained = [row for row in rows if row.cell.task == "language_modelling"]
    second_seed = []
    for row in trained:
        measurements = [
            replace(m, value=4 * m.value) if m.quantity in ("perplexity", "train_seconds") else m
            for m in row.measurements
        ]
        second_seed.append(replace(with_cell(row, seed=1), measurements=measurements))
    alone, both = (
        [
            line
            for figure in figures.all_of(selected, with_estimates(flatten(selected)))
            if figure.section == "quality"
            for line in figure.lines
        ]
        for selected in (trained, [*trained, *second_seed])
    )
    assert len(alone) == sum(row.cell.framework != "numpy" for row in trained)
    assert [line[:2] for line in both] == [line[:2] for line in alone]
    doubled = [float(f"{2 * float(line[2]):.3g}") for line in alone]  # the geometric mean of 1 and 4 is 2
    assert [float(f"{float(line[2]):.3g}") for line in both] == pytest.approx(doubled, rel=0.01)
    assert [line[3] for line in both] == [line[3] for line in alone]


def test_the_command_writes_a_page_and_refuses_bad_input(tmp_path, capsys):
    out = tmp_path / "page.html"
    files = [RESULTS / "archive" / "quick.jsonl", RESULTS / "cpu-epyc.jsonl"]
    runs = [argument for file in files for argument in ("--run", str(file))]
    assert main(["report", *runs, "--out", str(out)]) == 0
    rows = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert f": {rows} rows" in capsys.readouterr().out
    assert "<title>Vocabench: quick, cpu-epyc</title>" in out.read_text(encoding="utf-8")
    assert main(["report", "--run", str(tmp_path / "none.jsonl")]) == 2
    assert main(["report", *runs, "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    (tmp_path / "empty.jsonl").write_text("")
    assert main(["report", "--run", str(tmp_path / "empty.jsonl"), "--out", str(out)]) == 0
    assert "No cell has been measured." in out.read_text(encoding="utf-8")


@pytest.mark.lengthy
def test_thousands_of_rows_take_seconds(rows):
    """Charts and long tables are values that the script draws when they are opened, so that none is drawn here."""
    few = [row for row in rows if row.measurements]
    many = [replace(with_cell(few[n % len(few)], seed=n // len(few)), key=str(n)) for n in range(5_000)]
    start = time.process_time()
    html = page.build(many, title="t", files="f")
    assert time.process_time() - start < 60  # 5 s on a quiet machine
    assert len(html) < 1_000 * len(many)


def test_clusters_of_a_large_report_are_limited(rows, monkeypatch):
    monkeypatch.setattr(page, "_MOST_TEXTS", 2)
    (clusters,) = [section for section in sections_of(rows) if section.id == "clusters"]
    assert len(clusters.texts) == 2
