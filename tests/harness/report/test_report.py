"""The report opens offline, shows the values of the rows, and executes nothing from a row."""

import copy
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT
from tests.rows import with_cell
from vocabench.harness.cli import main
from vocabench.harness.report import figures, page
from vocabench.harness.report.figures.quality import Point, pareto
from vocabench.harness.report.over_seeds import with_estimates
from vocabench.harness.report.rows import flatten
from vocabench.harness.run.store import read

RESULTS = ROOT / "results"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<script>alert(1)</script>\"'><img src=http://example.org/x onerror=alert(2)> $\\frac{1}{0}$ {{7*7}}"


@pytest.fixture(scope="module")
def rows():
    return read(RESULTS / "quick.jsonl")


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


def test_a_section_appears_if_the_rows_have_content_for_it(html, rows):
    sections = [section.id for section in page.sections(rows, flatten(rows))]
    assert sections == [
        "overview", "speed", "roofline", "quality", "memory", "training", "tables", "agreement", "clusters", "rows",
        "provenance",
    ]  # fmt: skip
    links = [a["href"] for a in Elements(html).all("a")]
    assert links == ["#main", *(f"#{name}" for name in sections)]


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
    assert len(elements.all("svg")) == sum("aria-labelledby" in a for a in elements.all("svg")) > 5
    assert all(a.get("type") == "button" for a in elements.all("button"))


def test_the_page_shows_the_values_of_the_rows(html, rows):
    text = " ".join(Elements(html).text)
    for record in flatten(rows):
        if record["quantity"] == "perplexity":
            assert f"{record['value']:.2f}" in text
        if record["quantity"] == "layer_seconds" and record["method"] != "full_softmax":
            assert f"{record['ratio_to_full_softmax']:.2f}" in text


def test_style_and_script_are_not_escaped(html):
    for name in ("page.css", "page.js"):
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
    assert len(elements.all("script")) == 1
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
    huffman = next(s for s in page.sections(wrong, records) if s.id == "overview").tables[0].lines[2]
    assert huffman[0] == "huffman"
    assert all(place.startswith("disagrees") and "x at" not in place for place in huffman[1:])


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
    sections = {section.id: section for section in page.sections(speech, flatten(speech))}
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


POINTS = st.lists(
    st.builds(Point, st.just("m"), st.just(""), st.just("f"), st.integers(1, 9), st.integers(1, 9)), min_size=1
)


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
    (alone,), (both,) = (
        [f for f in figures.all_of(selected, with_estimates(flatten(selected))) if f.section == "quality"]
        for selected in (trained, [*trained, *second_seed])
    )
    assert [line[:2] for line in both.lines] == [line[:2] for line in alone.lines]
    doubled = [float(f"{2 * float(line[2]):.3g}") for line in alone.lines]  # the geometric mean of 1 and 4 is 2
    assert [float(f"{float(line[2]):.3g}") for line in both.lines] == pytest.approx(doubled, rel=0.01)
    assert [line[3] for line in both.lines] == [line[3] for line in alone.lines]


def test_the_command_writes_a_page_and_refuses_bad_input(tmp_path, capsys):
    out = tmp_path / "page.html"
    files = [RESULTS / "quick.jsonl", RESULTS / "cpu-epyc.jsonl"]
    runs = [argument for file in files for argument in ("--run", str(file))]
    assert main(["report", *runs, "--out", str(out)]) == 0
    rows = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert f": {rows} rows" in capsys.readouterr().out
    assert "<title>Vocabench: quick, cpu-epyc</title>" in out.read_text(encoding="utf-8")
    assert main(["report", "--run", str(tmp_path / "none.jsonl")]) == 2
    assert main(["report", *runs, "--out", str(tmp_path / "no" / "page.html")]) == 2
    (tmp_path / "empty.jsonl").write_text("")
    assert main(["report", "--run", str(tmp_path / "empty.jsonl")]) == 2
    assert capsys.readouterr().err.count("\n") == 3


# Script that sorts and filters a table in the browser, and writes its observations to the title.
_PROBE = """
const table = document.querySelector("#tables-table1"), heading = table.tHead.rows[0].cells[2];
const values = () => [...table.tBodies[0].rows].map((row) => row.cells[2].textContent);
heading.querySelector("button").click();
const rising = values();
heading.querySelector("button").click();
const falling = values();
const input = document.querySelector("#tables-table1-filter");
input.value = "SOHSM jax";
input.dispatchEvent(new Event("input"));
const text = (row) => `${row.cells[0].textContent} ${row.cells[1].textContent}`;
const rows = [...table.tBodies[0].rows].map(text);
const shown = [...table.tBodies[0].rows].filter((row) => !row.hidden).map(text);
const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
document.title = JSON.stringify({ rising, falling, sort: heading.getAttribute("aria-sort"), rows, shown, wide });
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: Debian's package is 'chromium'")
@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser(html, tmp_path, width):
    """The console is empty, the network is not used, tables sort and filter, and none is too wide."""
    # The content security policy of the page would block the probe.
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', html)
    assert policy is not None
    for name, content in (
        ("page.html", html),
        ("probe.html", html.replace(policy.group(0), "").replace("</body>", f"<script>{_PROBE}</script></body>")),
    ):
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        # With a proxy that does not exist, any network request fails and is logged on the console.
        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update", "--disable-quic", "--dump-dom",
            "--enable-logging=stderr", "--proxy-server=127.0.0.1:9", f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900", f"file://{path}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    observed = json.loads(title.group(1))
    numbers = [float(value) for value in observed["rising"]]
    assert numbers == sorted(numbers)
    assert observed["falling"] == observed["rising"][::-1]
    assert observed["sort"] == "descending"
    assert observed["shown"] == [text for text in observed["rows"] if {"sohsm", "jax"} <= {*text.split()}]
    assert 0 < len(observed["shown"]) < len(observed["rows"])
    assert not observed["wide"]


def test_a_huge_report_has_tables_instead_of_drawings(rows, monkeypatch):
    """Drawing takes a third of a second for each figure, and 20,000 rows have thousands of them."""
    monkeypatch.setattr(page, "_MOST_DRAWN", len(rows) - 1)
    monkeypatch.setattr(page, "_MOST_TEXTS", 2)
    sections = page.sections(rows, flatten(rows))
    assert not any(section.figures for section in sections)
    assert "has no drawings" in sections[0].text
    (clusters,) = [section for section in sections if section.id == "clusters"]
    assert len(clusters.texts) == 2
    (tables,) = [section for section in sections if section.id == "tables"]
    assert tables.tables
