"""Ceilings, the share of the roofline, and where tables and reports show it."""

import dataclasses
import time
from types import SimpleNamespace

import pytest

from tests import ROOT
from tests.rows import by_quantity, row_of
from vocabench.harness import registry
from vocabench.harness.compare import gate
from vocabench.harness.measure import roofline
from vocabench.harness.measure.roofline import Ceilings
from vocabench.harness.measure.timing import call_seconds
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.quantities import ROOFLINE
from vocabench.harness.report import figures, page, table, units
from vocabench.harness.report.rows import flatten
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Row
from vocabench.harness.run.store import read
from vocabench.harness.tasks import timing
from vocabench.impls.spec import LeastWork

# Rows without roofline quantities, as older versions wrote them.
QUICK: list[Row] = [
    dataclasses.replace(row, measurements=[m for m in row.measurements if m.quantity not in ROOFLINE])
    for row in read(ROOT / "results" / "archive" / "quick.jsonl")
]
CEILINGS = Ceilings(flops_per_second=(50e9, 100e9, 90e9), bytes_per_second=(10e9, 8e9))


@pytest.fixture(autouse=True)
def fast_ceilings(monkeypatch):
    monkeypatch.setattr(roofline, "_SECONDS", 0.02)
    monkeypatch.setattr(roofline, "_LARGEST", roofline._SMALLEST)
    monkeypatch.setattr(roofline, "_ADDED", 2**16)


@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_every_framework_has_ceilings(framework):
    for dtype in ("float64",) if framework == "numpy" else ("float32", "bfloat16", "float64"):
        ceilings = roofline.ceilings(framework, "cpu", dtype)
        assert all(1e6 < rate < 1e15 for rate in (*ceilings.flops_per_second, *ceilings.bytes_per_second))


@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_calls_return_once_the_work_is_done(framework):
    """Many more FLOPs or bytes take longer. The small work is too small for a second thread."""
    adapter = registry.adapter(framework)
    for small, large in (
        (adapter.prepare_product(16, "cpu", "float64"), adapter.prepare_product(640, "cpu", "float64")),
        (adapter.prepare_add(2**13, "cpu"), adapter.prepare_add(2**23, "cpu")),
    ):
        shortest = [min(call_seconds(work) for _ in range(8)) for work in (small, large)]
        assert shortest[1] > 3 * shortest[0]


def test_matrix_products_grow_until_they_take_long_enough(monkeypatch):
    """The device has 1 TFLOP/s and 1 TB/s, and only its work advances the clock."""
    clock, sizes = [0.0], []

    def work_of(seconds):
        def run():
            clock[0] += seconds

        return run

    def prepare_product(size, device, dtype):
        sizes.append(size)
        return work_of(2 * size**3 / 1e12)

    device = SimpleNamespace(
        prepare_product=prepare_product, prepare_add=lambda size, device: work_of(12 * size / 1e12)
    )
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(registry, "adapter", lambda framework: device)
    monkeypatch.setattr(roofline, "_LARGEST", 8192)
    ceilings = roofline.ceilings("any", "cuda", "float32")
    assert sizes == [512, 1024, 2048]
    assert ceilings.flops_per_second == pytest.approx([1e12] * 2)
    assert ceilings.bytes_per_second == pytest.approx([1e12] * len(ceilings.bytes_per_second))


@pytest.mark.parametrize(
    ("least", "share"),
    [(LeastWork(flops=4e9, bytes=1e8), 0.4), (LeastWork(flops=4e8, bytes=5e8), 0.5)],
    ids=["by FLOPs", "by bytes"],
)
def test_the_share_is_that_of_the_lower_ceiling(least, share):
    seconds = Measurement("layer_seconds", 0.1, [0.1, 0.2], low=0.08, high=0.2)
    by_name = {m.quantity: m for m in roofline.measurements(seconds, least, CEILINGS)}
    assert tuple(by_name) == ROOFLINE
    assert by_name["roofline_share"].value == pytest.approx(share)
    assert by_name["roofline_share"].samples == pytest.approx([share, share / 2])
    assert (by_name["roofline_share"].low, by_name["roofline_share"].high) == pytest.approx((share / 2, share / 0.8))
    assert by_name["ceiling_flops_per_second"].value == 100e9
    assert by_name["ceiling_bytes_per_second"].value == 10e9


def test_a_disturbed_measurement_does_not_lower_a_ceiling():
    seconds, least = Measurement("layer_seconds", 0.1, [0.1]), LeastWork(flops=4e9, bytes=1e8)
    disturbed = Ceilings(flops_per_second=(20e9,), bytes_per_second=(1e9,))
    for both in (disturbed.joined(CEILINGS), CEILINGS.joined(disturbed)):
        by_name = {m.quantity: m for m in roofline.measurements(seconds, least, both)}
        assert by_name["roofline_share"].value == pytest.approx(0.4)
        assert by_name["ceiling_flops_per_second"].value == 100e9
        assert len(by_name["ceiling_flops_per_second"].samples) == 4


def test_a_timing_row_has_roofline_quantities():
    settings = {name: setting.default for name, setting in timing.SETTINGS.items()}
    settings |= {"quantities": ("layer_seconds",), "processes": 1, "rounds": 6, "budget": 0.0}
    settings |= {"checked_tokens": 9, "longest_step": 0.0, "slow_precision": "measure", "baseline_bias": True}
    cell = Cell("s", "timing", "numpy", "huffman", vocab=200, dim=8, tokens=30, precision="float64", settings=settings)
    measurements = by_quantity(row_of(timing, cell))
    ceilings = [measurements[name].value for name in ("ceiling_flops_per_second", "ceiling_bytes_per_second")]
    counts_V = zipf_counts(200)
    turns = 3 * sum(_turns(counts_V, word) for word in batch(counts_V, tokens=30, dim=8, seed=0).targets_N)
    assert measurements["least_flops"].value == 2 * turns * 8
    least = max(measurements["least_flops"].value / ceilings[0], measurements["least_bytes"].value / ceilings[1])
    assert measurements["roofline_share"].value == pytest.approx(least / measurements["layer_seconds"].value)


def _turns(counts_V, word):
    from vocabench.impls.structures import huffman

    return int(huffman.build(counts_V).code_length[word])


def rows_with(share=0.5, methods=("full_softmax", "sohsm", "huffman")):
    """Return the rows of the quick run with roofline quantities, where every time is at `share` of the roofline."""
    rows = []
    for row in QUICK:
        if row.cell.task == "timing":
            seconds = by_quantity(row)["layer_seconds"]
            flops = share * 100e9 * seconds.value
            layer_seconds = Measurement("layer_seconds", seconds.value, seconds.samples)
            more = roofline.measurements(layer_seconds, LeastWork(flops, flops / 50), CEILINGS)
            added = more if row.cell.method in methods else []
            rows.append(dataclasses.replace(row, measurements=[*row.measurements, *added]))
    return rows


def test_the_table_shows_the_share_next_to_the_time():
    (frame, *_) = [frame for title, frame in table.tables(flatten(rows_with(0.456))) if title.startswith("Speed")]
    columns = list(frame.columns)
    assert columns[columns.index("time") + 1] == "of roofline"
    assert set(frame["of roofline"]) == {"46 %"}
    assert frame.attrs["best"]["of roofline"] == set()  # full softmax would always win, with nothing but large products
    assert "of roofline" not in table.render(flatten(QUICK), "markdown")
    assert "1.2 %" in table.render(flatten(rows_with(0.0123, methods=("sohsm",))), "markdown")


def figures_of(rows):
    return figures.roofline.achieved(flatten(rows))


def test_the_report_has_a_figure_for_each_framework():
    rows = rows_with(0.5)
    drawn_figures = figures_of(rows)
    assert len(drawn_figures) == len({row.cell.framework for row in rows})
    for figure in drawn_figures:
        assert "100 GFLOP/s" in figure.caption
        assert "10 GB/s" in figure.caption
        assert "sohsm: 50 % of the roofline at" in figure.description
        assert {line[2:] for line in figure.lines} == {("50", "50", "50 %", "1", "10 %", "50 %")}
        assert len(figure.lines) == len({(r.cell.method, r.cell.vocab) for r in rows})
    assert '<section id="roofline" aria-labelledby="roofline-heading"' in page.build(rows, title="t", files="f")


def test_rows_that_disagree_are_not_drawn():
    rows = [
        dataclasses.replace(row, agreement={"verdict": "disagree" if row.cell.method == "huffman" else "agree"})
        for row in rows_with()
    ]
    assert {line[0] for f in figures_of(rows) for line in f.lines} == {"full_softmax", "sohsm"}


def test_older_rows_have_no_figure():
    assert figures_of(QUICK) == []
    assert len(figures_of([*QUICK, *rows_with(methods=("sohsm",))])) == 3


@pytest.mark.parametrize("missing", ["layer_seconds", *ROOFLINE])
def test_an_incomplete_row_is_not_drawn(missing):
    rows = [
        dataclasses.replace(row, measurements=[m for m in row.measurements if m.quantity != missing])
        for row in rows_with(methods=("sohsm",))
    ]
    assert figures_of(rows) == []
    assert page.build(rows, title="t", files="f")


def test_a_disturbed_ceiling_is_no_regression():
    before, after = rows_with(0.5), rows_with(0.05)
    undisturbed, disturbed = (gate.compare(before, rows, gate.Limits()) for rows in (before, after))
    assert disturbed == undisturbed
    assert not {finding.quantity for finding in disturbed} & set(ROOFLINE)


def test_every_method_has_a_formula_of_its_least_work():
    assert [m for m in registry.methods() if registry.definition(m).least_work is None] == []


def test_shares_are_shown_with_two_digits():
    shares = [units.share(value) for value in (1.2, 0.456, 0.0996, 0.0994, 0.0123)]
    assert shares == ["120 %", "46 %", "10 %", "9.9 %", "1.2 %"]
