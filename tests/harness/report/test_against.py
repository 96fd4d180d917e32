"""The ledger of published figures, and its comparison with ours."""

import json
from collections import Counter

import pytest

from vocabench.harness import registry
from vocabench.harness.published import ledger
from vocabench.harness.quantities import QUANTITIES
from vocabench.harness.report import against
from vocabench.harness.report.ours import ours
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
    detail = {"split": cell.settings.get("split", "test")}
    measured = [Measurement(name, value, detail={**detail}) for name, value in measurements]
    return Row(cell.key, cell, status, measurements=measured)


ROMANCE = ("ca", "es", "fr", "it", "pt")
GROUPS = {
    "Romance": ROMANCE,
    "Slavic": ("be", "cs", "pl", "ru", "uk"),
    "Turkic": ("ba", "ky", "tr", "tt", "uz"),
}


def speech_row(errors, *, quantity="cer", split="test", **cell):
    """Return a row of Huffman's layer with error rates by language, of which the pooled ones are 0.01 higher."""
    made = row("huffman", (quantity, 0.5), task="speech", dataset="spoken", settings={"split": split}, **cell)
    groups = {name: [language for language in its if language in errors] for name, its in GROUPS.items()}
    made.measurements[0].detail.update(
        languages={language: {"value": value} for language, value in errors.items()},
        groups={
            name: {"languages": its, "value": 0.01 + sum(errors[language] for language in its) / len(its)}
            for name, its in groups.items()
            if its
        },
    )
    return made


def beside(*rows, quantity="cer"):
    """Return our values by table, language or group, and average, where a row stands beside a figure of Huffman's."""
    lines = compared(*rows, quantity=quantity, paper="HSM-ASR", method="huffman")
    return {
        (line.table, line.language or line.group, line.average): round(line.value, 6)
        for line in lines
        if line.value is not None
    }


def compared(*rows, quantity, paper="SOHSM", method: str | None = "sohsm"):
    lines = against.lines(ledger.figures(), ours(list(rows), ALL), ALL)
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
        ("HSM-ASR", "H-softmax", "rtf", "", 0.018),
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
    assert (line.data, line.size, line.epochs, line.reason) == ("", "", "", "")
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
    assert line.data == "pydoc, 12,045 words"
    assert line.size == "vocab 12,045 for 44,000, dim 256 for 512"
    assert line.epochs == "epochs 1 for 5"
    assert "options interval=200" in line.reason
    assert "batch" not in line.reason


def test_each_figure_names_its_table():
    tables = {(f.table.paper.short, f.table.name) for f in ledger.figures()}
    assert {name for paper, name in tables if paper == "HSM-ASR"} == {"table 3", "table 4", "table 5", "table 6"}
    assert {name for paper, name in tables if paper == "Grave"} == {"table 1", "table 2"}


def test_languages_of_figures_are_those_of_their_tables():
    for figure in ledger.figures():
        if languages := figure.table.languages:
            assert figure.language in figure.tested_on if figure.language else figure.group in languages
            sizes = {"table 3": 10, "table 4": 5, "table 5": 15, "table 6": 1}
            assert len(figure.tested_on) == sizes[figure.table.name]


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


def test_a_model_of_one_group_stands_beside_the_figures_of_that_group():
    errors = dict(zip(ROMANCE, (0.05, 0.09, 0.12, 0.09, 0.10), strict=True))
    assert beside(speech_row(errors)) == {
        **{("table 4", language, ""): round(100 * value, 6) for language, value in errors.items()},
        ("table 4", "Romance", against.PLAIN_MEAN): 9.0,
        ("table 4", "Romance", against.POOLED): 50.0,  # the value of the row itself
    }


def test_a_model_of_all_languages_stands_beside_table_5_alone():
    errors = {language: 0.1 for its in GROUPS.values() for language in its}
    found = beside(speech_row(errors))
    assert {table for table, _, _ in found} == {"table 5"}
    assert len(found) == 15 + 2 * 3
    assert found["table 5", "Turkic", against.PLAIN_MEAN] == 10.0
    assert found["table 5", "Turkic", against.POOLED] == 11.0


def test_only_the_mean_over_languages_is_subtracted_from_the_papers():
    errors = dict.fromkeys(ROMANCE, 0.09)
    lines = compared(speech_row(errors), quantity="cer", paper="HSM-ASR", method="huffman")
    differences = {line.average: line.difference for line in lines if line.group == "Romance" and line.value}
    assert differences[against.PLAIN_MEAN] == pytest.approx(9.0 - 8.8)
    assert differences[against.POOLED] is None


@pytest.mark.parametrize(
    ("errors", "split", "reason"),
    [
        (dict.fromkeys(ROMANCE, 0.0), "train", "only of the split train"),  # 0.0 by heart is no 5.3
        (dict.fromkeys((*ROMANCE[:4], "cs", "pl", "tr", "uz"), 0.6), "test", "only of other languages"),
        (dict.fromkeys(("en",), 0.6), "valid", "only of the split valid"),
        ({}, "test", "only of other languages"),
    ],
)
def test_a_row_of_another_split_or_of_other_languages_stands_beside_nothing(errors, split, reason):
    lines = compared(speech_row(errors, split=split), quantity="cer", paper="HSM-ASR", method="huffman")
    assert {line.value for line in lines} == {None}
    assert {line.reason for line in lines} == {reason}


def test_a_real_time_factor_stands_beside_its_own_language():
    made = speech_row({"tr": 0.1})
    made.measurements.append(Measurement("rtf", 0.01, detail={"split": "test"}))
    assert beside(made, quantity="rtf") == {("table 6", "tr", ""): 0.01}
    mixed = speech_row(dict.fromkeys(("tr", "pl", "ru"), 0.1))
    mixed.measurements.append(Measurement("rtf", 0.01, detail={"split": "test"}))
    assert beside(mixed, quantity="rtf") == {}


def test_summaries_of_the_training_split_stand_beside_nothing():
    def lines(split):
        made = row("sohsm", ("rougeL_f1", 0.97), task="summarization", dataset="own", settings={"split": split})
        return compared(made, quantity="rougeL_f1")

    assert [line.value for line in lines("train")] == [None]
    assert [line.value for line in lines("test")] == [97.0]


def test_filters_apply_to_both_sides():
    rows = [row("sohsm", ("perplexity", 1.0), framework=name) for name in ("torch", "jax")]
    selected = Filter(frameworks=["jax"], methods=["sohsm"])
    lines = against.lines(ledger.figures(), ours(rows, selected), selected)
    assert {x.method for x in lines} == {"sohsm"}
    assert {x.framework for x in lines if x.value is not None} == {"jax"}


def test_the_baseline_need_not_be_selected():
    rows = [row("full_softmax", ("train_seconds", 100.0)), row("sohsm", ("train_seconds", 50.0))]
    (shown,) = ours(rows, Filter(methods=["sohsm"]))
    assert shown.ratio == pytest.approx(2.0)


@pytest.mark.parametrize("text_format", ["markdown", "latex", "html", "csv", "json"])
def test_each_format_contains_the_figures(text_format):
    lines = against.lines(ledger.figures(), ours([row("sohsm", ("perplexity", 150.0))], ALL), ALL)
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
