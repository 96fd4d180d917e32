"""Ceilings, the share of the roofline, and where rows show it."""

import copy
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
from vocabench.harness.quantities import ROOFLINE, Measurement
from vocabench.harness.report import figures, page, svg, table
from vocabench.harness.report.rows import flatten
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.store import Row, read
from vocabench.harness.tasks import timing
from vocabench.impls.spec import LeastWork

# As rows were before they told of it.
QUICK: list[Row] = [
    row | {"measurements": [each for each in row["measurements"] if each["quantity"] not in ROOFLINE]}
    for row in read(ROOT / "results" / "quick.jsonl")
]
FOUND = Ceilings(flops_per_second=(50e9, 100e9, 90e9), bytes_per_second=(10e9, 8e9))


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(roofline, "_SECONDS", 0.02)
    monkeypatch.setattr(roofline, "_LARGEST", roofline._SMALLEST)
    monkeypatch.setattr(roofline, "_ADDED", 2**16)


@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_every_framework_has_ceilings(framework):
    for dtype in ("float64",) if framework == "numpy" else ("float32", "bfloat16", "float64"):
        found = roofline.ceilings(framework, "cpu", dtype)
        assert all(1e6 < rate < 1e15 for rate in (*found.flops_per_second, *found.bytes_per_second))


@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_the_work_is_waited_for(framework):
    """Many times the FLOPs, and a thousand times the bytes, take longer; the few are too few for a second thread."""
    adapter = registry.adapter(framework)
    for few, many in (
        (adapter.prepare_product(16, "cpu", "float64"), adapter.prepare_product(640, "cpu", "float64")),
        (adapter.prepare_add(2**13, "cpu"), adapter.prepare_add(2**23, "cpu")),
    ):
        shortest = [min(call_seconds(work) for _ in range(8)) for work in (few, many)]
        assert shortest[1] > 3 * shortest[0]


def test_products_grow_until_they_take_long(monkeypatch):
    """On a device of 1 TFLOP/s and 1 TB/s, by a clock that only its work moves."""
    clock, sizes = [0.0], []

    def taking(seconds):
        def run():
            clock[0] += seconds

        return run

    def prepare_product(size, device, dtype):
        sizes.append(size)
        return taking(2 * size**3 / 1e12)

    device = SimpleNamespace(prepare_product=prepare_product, prepare_add=lambda size, device: taking(12 * size / 1e12))
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(registry, "adapter", lambda framework: device)
    monkeypatch.setattr(roofline, "_LARGEST", 8192)
    found = roofline.ceilings("any", "cuda", "float32")
    assert sizes == [512, 1024, 2048]
    assert found.flops_per_second == pytest.approx([1e12] * 2)
    assert found.bytes_per_second == pytest.approx([1e12] * len(found.bytes_per_second))


@pytest.mark.parametrize(
    ("least", "share"),
    [(LeastWork(flops=4e9, bytes=1e8), 0.4), (LeastWork(flops=4e8, bytes=5e8), 0.5)],
    ids=["by FLOPs", "by bytes"],
)
def test_the_share_is_of_the_ceiling_that_binds(least, share):
    seconds = Measurement("layer_seconds", 0.1, [0.1, 0.2], low=0.08, high=0.2)
    found = {m.quantity: m for m in roofline.measurements(seconds, least, FOUND)}
    assert tuple(found) == ROOFLINE
    assert found["roofline_share"].value == pytest.approx(share)
    assert found["roofline_share"].samples == pytest.approx([share, share / 2])
    assert (found["roofline_share"].low, found["roofline_share"].high) == pytest.approx((share / 2, share / 0.8))
    assert found["ceiling_flops_per_second"].value == 100e9
    assert found["ceiling_bytes_per_second"].value == 10e9


def test_a_moment_in_which_the_machine_was_busy_lowers_no_ceiling():
    seconds, least = Measurement("layer_seconds", 0.1, [0.1]), LeastWork(flops=4e9, bytes=1e8)
    busy = Ceilings(flops_per_second=(20e9,), bytes_per_second=(1e9,))
    for both in (busy.joined(FOUND), FOUND.joined(busy)):
        found = {m.quantity: m for m in roofline.measurements(seconds, least, both)}
        assert found["roofline_share"].value == pytest.approx(0.4)
        assert found["ceiling_flops_per_second"].value == 100e9
        assert len(found["ceiling_flops_per_second"].samples) == 4


def test_a_timing_row_has_it():
    settings = {name: setting.default for name, setting in timing.SETTINGS.items()}
    settings |= {"quantities": ("layer_seconds",), "rounds": 6, "budget": 0.0, "checked_tokens": 9}
    cell = Cell("s", "timing", "numpy", "huffman", vocab=200, dim=8, tokens=30, precision="float64", settings=settings)
    found = by_quantity(row_of(timing, cell))
    ceilings = [found[name]["value"] for name in ("ceiling_flops_per_second", "ceiling_bytes_per_second")]
    counts_V = zipf_counts(200)
    turns = 3 * sum(_turns(counts_V, word) for word in batch(counts_V, tokens=30, dim=8, seed=0).targets_N)
    assert found["least_flops"]["value"] == 2 * turns * 8
    least = max(found["least_flops"]["value"] / ceilings[0], found["least_bytes"]["value"] / ceilings[1])
    assert found["roofline_share"]["value"] == pytest.approx(least / found["layer_seconds"]["value"])


def _turns(counts_V, word):
    from vocabench.impls.structures import huffman

    return int(huffman.build(counts_V).code_length[word])


def rows_with(share=0.5, methods=("full_softmax", "sohsm", "huffman")):
    """Rows of the quick run as a newer run would have them: every time is `share` of the roofline, by FLOPs."""
    rows = copy.deepcopy([row for row in QUICK if row["cell"]["task"] == "timing"])
    for row in rows:
        seconds = by_quantity(row)["layer_seconds"]
        if row["cell"]["method"] in methods:
            flops = share * 100e9 * seconds["value"]
            given = Measurement("layer_seconds", seconds["value"], seconds["samples"])
            more = roofline.measurements(given, LeastWork(flops, flops / 50), FOUND)
            row["measurements"] += [measurement.to_json() for measurement in more]
    return rows


def test_the_table_shows_it_next_to_the_time():
    (frame, *_) = [frame for title, frame in table.tables(flatten(rows_with(0.456))) if title.startswith("Speed")]
    columns = list(frame.columns)
    assert columns[columns.index("time") + 1] == "of roofline"
    assert set(frame["of roofline"]) == {"46 %"}
    assert frame.attrs["best"]["of roofline"] == set()  # full softmax would be, being nothing but large products
    assert "of roofline" not in table.render(flatten(QUICK), "markdown")
    some = table.render(flatten(rows_with(0.0123, methods=("sohsm",))), "markdown")
    assert "1.2 %" in some


def drawn_of(rows):
    records = flatten(rows)
    return figures.roofline.achieved(records, svg.style([figures.name_of(record) for record in records]))


def test_the_report_draws_it():
    rows = rows_with(0.5)
    drawn = drawn_of(rows)
    frameworks = {row["cell"]["framework"] for row in rows}
    assert len(drawn) == len(frameworks)
    for figure in drawn:
        assert "100 GFLOP/s" in figure.caption
        assert "10 GB/s" in figure.caption
        assert "sohsm: 50 % of the roofline at" in figure.svg
        assert {line[2:] for line in figure.lines} == {("50", "50", "50 %", "1", "10 %", "50 %")}
        assert len(figure.lines) == len({(r["cell"]["method"], r["cell"]["vocab"]) for r in rows})
    assert '<section id="roofline" aria-labelledby="roofline-heading">' in page.build(rows, title="t", files="f")


def test_what_disagrees_is_not_drawn():
    rows = rows_with()
    for row in rows:
        row["agreement"] = {"verdict": "disagree" if row["cell"]["method"] == "huffman" else "agree"}
    assert {line[0] for f in drawn_of(rows) for line in f.lines} == {"full_softmax", "sohsm"}


def test_older_rows_show_as_before():
    assert drawn_of(QUICK) == []
    assert len(drawn_of([*QUICK, *rows_with(methods=("sohsm",))])) == 3


@pytest.mark.parametrize("missing", ["layer_seconds", *ROOFLINE])
def test_a_row_that_tells_half_of_it_is_not_drawn(missing):
    rows = rows_with(methods=("sohsm",))
    for row in rows:
        row["measurements"] = [each for each in row["measurements"] if each["quantity"] != missing]
    assert drawn_of(rows) == []
    assert page.build(rows, title="t", files="f")


def test_a_disturbed_ceiling_is_no_regression():
    before, after = rows_with(0.5), rows_with(0.05)
    quiet, found = (gate.compare(before, other, gate.Limits()) for other in (before, after))
    assert found == quiet
    assert not {each.quantity for each in found} & set(ROOFLINE)


def test_every_method_has_its_formula():
    assert [m for m in registry.methods() if registry.definition(m).least_work is None] == []


def test_shares_have_two_figures():
    shares = [table.share(value) for value in (1.2, 0.456, 0.0996, 0.0994, 0.0123)]
    assert shares == ["120 %", "46 %", "10 %", "9.9 %", "1.2 %"]
