"""The ledger of published figures, and its comparison with ours."""

import json
from collections import Counter

import pytest

from vocabench.harness import registry
from vocabench.harness.published import ledger
from vocabench.harness.quantities import QUANTITIES
from vocabench.harness.report import against
from vocabench.harness.report.rows import Filter
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Row
from vocabench.impls.errors import BadInput

ALL = Filter()


def row(method, *measurements, status="ok", **cell):
    cell = Cell(
        "text8",
        cell.pop("task", "language_modelling"),
        cell.pop("framework", "torch"),
        method,
        cell.pop("vocab", 44000),
        cell.pop("dim", 512),
        2560,
        dataset=cell.pop("dataset", "text8"),
        dataset_sha256="0",
        settings=cell.pop("settings", {"epochs": 5, "batch": 128}),
        **cell,
    )
    return Row(cell.key, cell, status, measurements=[Measurement(name, value) for name, value in measurements])


def compared(*rows, quantity, paper="SOHSM", method: str | None = "sohsm"):
    lines = against.lines(ledger.figures(), against.ours(list(rows), ALL), ALL)
    return [x for x in lines if (x.paper, x.method, x.quantity) == (paper, method, quantity)]


def test_the_ledger_uses_our_names():
    figures = ledger.figures()
    assert {f.table.paper.short for f in figures} == {"Cut Cross-Entropy", "Grave", "HSM-ASR", "SOHSM"}
    for figure in figures:
        assert figure.value > 0
        if figure.method is not None:
            assert set(figure.options) <= set(registry.definition(figure.method).options)
        if figure.table.task in registry.tasks():
            assert figure.quantity in QUANTITIES
            assert set(figure.table.settings) <= set(registry.task(figure.table.task).settings)


@pytest.mark.parametrize(
    ("paper", "label", "quantity", "group", "value"),
    [
        ("SOHSM", "self-organized HSM", "perplexity", "", 144.77),
        ("SOHSM", "TOPIARY", "rougeL_recall75", "", 20.12),
        ("SOHSM", "self-organized HSM", "rouge2_f1", "", 16.00),
        ("Grave", "D-softmax*", "train_seconds", "", 54 * 60),
        ("HSM-ASR", "H-softmax", "per", "overall", 64.7),
        ("HSM-ASR", "softmax", "cer", "Turkic", 16.0),
        ("HSM-ASR", "H-softmax", "rtf", "ru, 63.1 tokens a sentence", 0.020),
        ("Cut Cross-Entropy", "torch.compile", "layer_seconds", "", 0.144),
    ],
)
def test_figures_are_as_published(paper, label, quantity, group, value):
    values = [
        f.value
        for f in ledger.figures()
        if (f.table.paper.short, f.label, f.quantity, f.group) == (paper, label, quantity, group)
    ]
    assert values[0] == value


@pytest.mark.parametrize("method", ["full_softmax", "huffman"])
def test_each_language_has_both_layers(method):
    """There are ten languages and their mean, fifteen and three means in two experiments, and three languages."""
    quantities = [f.quantity for f in ledger.figures() if f.table.paper.short == "HSM-ASR" and f.method == method]
    assert Counter(quantities) == {"per": 11, "cer": 36, "rtf": 3}


def test_the_same_experiment_has_a_difference_and_no_reason():
    (line,) = compared(row("sohsm", ("perplexity", 150.0)), quantity="perplexity")
    assert line.difference == pytest.approx(150.0 - 144.77)
    assert line.reason == ""
    assert (line.paper_value, line.value, line.framework) == (144.77, 150.0, "torch")


def test_the_reason_names_differences_of_the_experiments():
    other = row(
        "sohsm",
        ("perplexity", 150.0),
        dataset="pydoc",
        vocab=12045,
        dim=256,
        settings={"epochs": 1, "batch": 128},
        options={"interval": 200},
    )
    (line,) = compared(other, quantity="perplexity")
    for part in ("other data: pydoc, 12,045 words", "dim 256 for 512", "epochs 1 for 5", "options interval=200"):
        assert part in str(line.reason)
    assert "batch" not in str(line.reason)


def test_ratios_of_times_are_compared_instead_of_times():
    rows = [row("full_softmax", ("train_seconds", 100.0)), row("sohsm", ("train_seconds", 50.0))]
    line = compared(*rows, quantity="train_seconds")[0]
    assert line.paper_ratio == pytest.approx(77 / 20)
    assert line.ratio == pytest.approx(2.0)
    assert line.relative == pytest.approx(2.0 / (77 / 20) - 1)
    baseline = compared(*rows, quantity="train_seconds", method="full_softmax")[0]
    assert baseline.difference is None


def test_full_softmax_of_another_framework_is_not_a_baseline():
    rows = [row("full_softmax", ("train_seconds", 100.0), framework="jax"), row("sohsm", ("train_seconds", 50.0))]
    line = compared(*rows, quantity="train_seconds")[0]
    assert line.ratio is None
    assert line.difference is None


def test_a_figure_without_a_measurement_is_marked_not_run():
    (line,) = compared(quantity="perplexity")
    assert (line.status, line.value, line.difference, line.framework) == ("not run", None, None, None)
    (failed,) = compared(row("sohsm", status="oom"), quantity="perplexity")
    assert failed.value is None
    assert failed.reason == "torch: oom"
    assert {x.reason for x in compared(quantity="rouge1_f1", method=None)} == {"no such method here"}


def test_languages_and_groups_are_not_confused():
    measured = row("huffman", ("cer", 0.12), task="speech", dataset="spoken")
    measured.measurements[0].detail.update({
        "languages": {"tr": {"value": 0.14}, "uz": {"value": None}},
        "groups": {"Turkic": {"languages": ["tr"], "value": 0.13}},
    })  # fmt: skip
    lines = compared(measured, quantity="cer", paper="HSM-ASR", method="huffman")
    values = {(x.language, x.group, round(x.value, 9)) for x in lines if x.value is not None}
    assert values == {("tr", "", 14.0), ("", "Turkic", 13.0)}  # in percent, as in the paper
    whole = compared(row("huffman", ("per", 0.5), task="speech"), quantity="per", paper="HSM-ASR", method="huffman")
    assert [(x.group, x.value) for x in whole if x.value is not None] == [("overall", 50.0)]


def test_filters_apply_to_both_sides():
    rows = [row("sohsm", ("perplexity", 1.0), framework=name) for name in ("torch", "jax")]
    selected = Filter(frameworks=["jax"], methods=["sohsm"])
    lines = against.lines(ledger.figures(), against.ours(rows, selected), selected)
    assert {x.method for x in lines} == {"sohsm"}
    assert {x.framework for x in lines if x.value is not None} == {"jax"}


def test_the_baseline_need_not_be_selected():
    rows = [row("full_softmax", ("train_seconds", 100.0)), row("sohsm", ("train_seconds", 50.0))]
    (shown,) = against.ours(rows, Filter(methods=["sohsm"]))
    assert shown.ratio == pytest.approx(2.0)


@pytest.mark.parametrize("text_format", ["markdown", "latex", "html", "csv", "json"])
def test_each_format_contains_the_figures(text_format):
    lines = against.lines(ledger.figures(), against.ours([row("sohsm", ("perplexity", 150.0))], ALL), ALL)
    text = against.render(lines, text_format)
    assert "150" in text
    assert "not run" in text
    if text_format == "json":
        assert len(json.loads(text)) == len(lines)
        assert set(json.loads(text)[0]) == set(against.KEYS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("short = ", "ledger paper.toml"),
        ('short = "x"', "missing"),
        ('shrt = "x"', "did you mean 'short'"),
        (
            'short="x"\ntitle="x"\nauthors="x"\narxiv=""\nyear=1\n[[table]]\nname="1"\ntitle=""\ntask=""\ndataset=""\n'
            'setup=""\nrows=[{label="x", figures={perplexty=1}}]',
            "unknown quantity in paper.toml 'perplexty'",
        ),
    ],
)
def test_a_broken_ledger_is_a_one_line_error(tmp_path, content, message):
    path = tmp_path / "paper.toml"
    path.write_text(content)
    with pytest.raises(BadInput, match=message):
        ledger.read(path)
