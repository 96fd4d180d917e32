"""Figures of word vectors, and pictures of all figures."""

from dataclasses import replace

import pytest

from tests import ROOT
from tests.rows import with_cell
from vocabench.harness import cli
from vocabench.harness.report import figures, plot
from vocabench.harness.report.over_seeds import with_estimates
from vocabench.harness.report.rows import flatten
from vocabench.harness.run.store import read

SEEDS = ROOT / "results" / "word-vectors-seeds.jsonl"


def quality_of(rows):
    found = figures.all_of(rows, with_estimates(flatten(rows)))
    return [figure for figure in found if figure.section == "quality"]


def test_accuracy_against_speed_has_one_mark_for_each_model_over_its_seeds():
    rows = read(SEEDS)
    found = {figure.title: figure for figure in quality_of(rows) if figure.title.startswith("Analogies")}
    assert list(found) == [
        "Analogies against speed: skip-gram on text8-prefix, 20,000 words, width 128",
        "Analogies against speed: cbow on text8-prefix, 20,000 words, width 128",
    ]
    for figure, objective in zip(found.values(), ("skip_gram", "cbow"), strict=True):
        cells = [row.cell for row in rows if row.cell.settings["objective"] == objective]
        assert len(figure.marks) == len({(cell.method, cell.variant, cell.framework) for cell in cells})
        for mark in figure.marks:
            assert mark.low is not None
            assert mark.high is not None
            assert 0 < mark.low < mark.y < mark.high < 1
            assert mark.x > 10_000


def test_products_against_pmi_are_a_line_over_the_widths():
    row = next(row for row in read(SEEDS) if row.cell.method == "negative_sampling" and row.cell.seed == 0)
    accuracy = next(m for m in row.measurements if m.quantity == "analogy_accuracy")
    values = {8: 0.4, 64: 0.6, 512: 0.7}
    rows = [
        replace(
            with_cell(row, dim=dim),
            key=str(dim),
            measurements=[replace(accuracy, quantity="pmi_correlation", value=value)],
        )
        for dim, value in values.items()
    ]
    (figure,) = quality_of(rows[::-1])
    assert figure.kind == "lines"
    assert {mark.x: mark.y for mark in figure.marks} == values
    assert [line[2:] for line in figure.lines] == [("8", "0.400"), ("64", "0.600"), ("512", "0.700")]
    assert quality_of(rows[:1]) == []


@pytest.mark.parametrize("name", figures.SECTIONS)
def test_every_section_of_the_report_can_be_drawn(tmp_path, name):
    rows = [
        row
        for file in ("archive/quick", "cpu-epyc", "quick-speech")
        for row in read(ROOT / "results" / f"{file}.jsonl")
    ]
    found = [figure for figure in figures.all_of(rows, flatten(rows)) if figure.section == name]
    assert found
    plot.draw(found[:3], tmp_path / "picture.svg")
    text = (tmp_path / "picture.svg").read_text()
    assert all(figure.title.split(": ")[0].split(",")[0][:20] in text for figure in found[:3])


def test_the_figure_is_chosen_by_its_name(in_empty_folder, capsys):
    command = ["table", "--run", str(SEEDS), "--plot", "picture.svg"]
    assert cli.main([*command, "--figure", "quality"]) == 0
    assert "Analogies against speed" in (in_empty_folder / "picture.svg").read_text()
    capsys.readouterr()
    assert cli.main([*command, "--figure", "qualty"]) == 2
    assert "did you mean 'quality'? allowed: speed, quality" in capsys.readouterr().err
    assert cli.main(command) == 2
    assert "nothing to plot" in capsys.readouterr().err
