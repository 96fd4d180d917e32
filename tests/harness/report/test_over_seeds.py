"""Tables of models that were trained with several seeds."""

import dataclasses
import json
import math

import pytest

from vocabench.harness import registry
from vocabench.harness.report import table
from vocabench.harness.report.ours import ours
from vocabench.harness.report.over_seeds import combined, with_estimates
from vocabench.harness.report.rows import Filter, flatten
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Ratio, Row

FULL = [100.0, 102.0, 98.0, 101.0, 99.0]


def trained(method, value, seed, *, quantity="perplexity", task="language_modelling", **changes):
    settings = {"epochs": changes.pop("epochs", 5), "batch": 128}
    cell = Cell("text8", task, "torch", method, 44000, 512, 2560, seed=seed, dataset="text8", settings=settings)
    return Row(cell.key, cell, "ok", measurements=[Measurement(quantity, value, **changes)])


def rows_of(method, values, **more):
    return [trained(method, value, seed, **more) for seed, value in enumerate(values)]


def records_of(*rows):
    return with_estimates(flatten(rows))


def lines_of(*rows):
    """Return the lines of the first table by method."""
    (_, frame), *_ = table.tables(combined(records_of(*rows)))
    return {line["method"]: line for line in frame.to_dict("records")}


def test_a_model_has_one_line_with_its_mean_and_interval():
    lines = lines_of(*rows_of("full_softmax", FULL), *rows_of("sohsm", [2 * value for value in FULL]))
    assert lines.keys() == {"full_softmax", "sohsm"}
    assert lines["full_softmax"]["seeds"] == "5"
    geometric_mean = math.exp(sum(map(math.log, FULL)) / 5)
    assert lines["full_softmax"]["perplexity"].startswith(f"{geometric_mean:.2f} [98.0")


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ([1.10, 1.12, 1.11, 1.10, 1.11], "worse"),
        ([0.90, 0.92, 0.91, 0.90, 0.91], "better"),
        ([0.90, 1.12, 1.00, 1.05, 0.97], "level"),
    ],
)
def test_the_difference_to_full_softmax_is_paired_by_seed(factors, verdict):
    """Pairing removes what the seeds have in common: full softmax alone differs by 4 %."""
    own = [value * factor for value, factor in zip(FULL, factors, strict=True)]
    shown = lines_of(*rows_of("full_softmax", FULL), *rows_of("huffman", own))["huffman"]["against full softmax"]
    assert shown.endswith(f" %, {verdict}")
    mean = 100 * (math.exp(sum(map(math.log, factors)) / 5) - 1)
    assert shown.startswith(f"{mean:+.2f} [")


def test_one_seed_has_no_verdict():
    lines = lines_of(trained("full_softmax", 100.0, 0), trained("huffman", 110.0, 0))
    assert lines["huffman"]["perplexity"] == "110.00"
    assert lines["huffman"]["against full softmax"] == "+10.00 %, one seed"
    assert "seeds" not in lines["huffman"]


def test_rows_from_before_a_setting_existed_are_compared_by_its_default():
    """A later version may continue a run: its rows keep their baseline, and nothing sets them apart."""
    default = {"min_count": registry.settings("language_modelling")["min_count"].default}
    earlier = rows_of("full_softmax", FULL) + rows_of("huffman", [2 * value for value in FULL])
    later = [
        dataclasses.replace(row, cell=dataclasses.replace(row.cell, settings={**row.cell.settings, **default}))
        for row in earlier[-2:]
    ]
    line = lines_of(*earlier[:-2], *later)["huffman"]
    assert line["seeds"] == "5"
    assert line["against full softmax"].startswith("+100.00 [")


def test_other_settings_are_other_models():
    longer = rows_of("huffman", [90.0, 91.0], epochs=9)
    lines = lines_of(*rows_of("huffman", [100.0, 101.0]), *longer)
    assert lines.keys() == {"huffman (epochs 5)", "huffman (epochs 9)"}


def test_only_seeds_that_both_have_are_compared():
    (record,) = [r for r in combined(records_of(*rows_of("full_softmax", FULL[:2]), *rows_of("huffman", FULL)))
                 if r["method"] == "huffman"]  # fmt: skip
    assert record["seeds"] == 5
    assert record["seed_difference"] == pytest.approx(0.0, abs=1e-12)
    assert record["verdict"] == "level"


def test_speeds_of_trained_layers_are_averaged_over_trainings():
    def timed(method, ratio, seed):
        return trained(method, 0.001, seed, quantity="topk_seconds", ratio=Ratio(ratio, 0.9 * ratio, 1.1 * ratio))

    rows = [timed("huffman", ratio, seed) for seed, ratio in enumerate([2.0, 8.0])]
    rows += [timed("full_softmax", 1.0, seed) for seed in range(2)]
    huffman, full = combined(records_of(*rows))
    assert huffman["ratio_to_full_softmax"] == pytest.approx(4.0)
    low, _, high = (huffman[end] for end in ("ratio_low", "ratio_to_full_softmax", "ratio_high"))
    assert low is not None
    assert high is not None
    assert low < 2.0 < 8.0 < high
    assert (full["ratio_low"], full["ratio_high"]) == (pytest.approx(0.9), pytest.approx(1.1))


def test_scores_have_their_interval_over_seeds_in_place_of_that_over_samples():
    rows = [
        trained(method, value, seed, quantity="cer", task="speech", low=0.0, high=1.0)
        for method, values in (("full_softmax", [0.20, 0.21, 0.19]), ("huffman", [0.25, 0.26, 0.245]))
        for seed, value in enumerate(values)
    ]
    lines = lines_of(*rows)
    assert lines["full_softmax"]["CER"] == "20.00 [17.52, 22.48]"
    assert lines["huffman"]["CER against full softmax"].startswith("+5.17 [")
    assert lines["huffman"]["CER against full softmax"].endswith(", worse")


def test_a_perplexity_that_is_not_finite_is_no_seed():
    (record,) = combined(records_of(trained("huffman", 100.0, 0), trained("huffman", math.nan, 1)))[:1]
    assert (record["seeds"], record["value"]) == (1, 100.0)


def test_flat_tables_keep_every_row_and_say_the_verdict():
    rows = [*rows_of("full_softmax", FULL), *rows_of("huffman", [1.1 * value for value in FULL])]
    records = json.loads(table.render(records_of(*rows), "json"))
    assert [record["seed"] for record in records] == [*range(5)] * 2
    assert {record["verdict"] for record in records if record["method"] == "huffman"} == {"worse"}


def test_published_figures_are_compared_with_the_mean():
    measured = ours(rows_of("sohsm", [140.0, 150.0, 160.0]), Filter())
    (own,) = measured
    assert own.seeds == 3
    assert own.value == pytest.approx((140 * 150 * 160) ** (1 / 3))
    assert own.interval is not None
    assert own.interval[0] < 140 < 160 < own.interval[1]
