"""Paired timing of work whose duration is known."""

import time
from dataclasses import replace

import numpy as np
import pytest

from tests.rows import interval_of, ratio_of
from vocabench.harness import layers
from vocabench.harness.measure import agreement
from vocabench.harness.measure.timing import _TRIES, DEFINITION, IN_FLIGHT_DEFINITION, Steady, calls_in_flight, paired
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.processes import join
from vocabench.harness.tasks import timing
from vocabench.harness.tasks.shared.paired import ON_REQUEST, Pair
from vocabench.harness.tasks.shared.spec import baseline_of, zipf_spec
from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput


def sleeper(seconds):
    return lambda: time.sleep(seconds)


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def small_cell(*quantities):
    settings = {"quantities": quantities, "processes": 1, "rounds": 6, "budget": 0.0, "baseline_bias": True}
    settings |= {"checked_tokens": 8, "decode_rows": 4, "longest_step": 0.0, "slow_precision": "measure"}
    return Cell("s", "timing", "numpy", "huffman", 60, 8, 40, precision="float64", settings=settings)


def measurements_of(cell):
    return {m.quantity: m for m in timing.run(cell, lambda text: None).measurements}


def test_the_ratio_of_two_sleeps_is_measured():
    result = paired([sleeper(0.03)], [sleeper(0.01)], rounds=11, budget_seconds=5)
    assert 2.0 < result.ratio.low <= result.ratio.value <= result.ratio.high < 3.5
    assert len(result.other.samples) == len(result.baseline.samples) == 11


def test_the_time_of_several_calls_per_piece_is_that_of_one():
    result = paired([sleeper(0.03)], [sleeper(0.03)], rounds=6, budget_seconds=5, calls=3)
    for side in (result.baseline, result.other):
        assert 0.01 <= side.seconds.value < 0.02


def test_steps_in_flight_have_their_own_definition(monkeypatch):
    """Both sides keep the same number of steps in flight. Decoding synchronizes after each call."""
    prepared = []
    prepare = Layer.prepare

    def recorded(layer, work, *arguments, calls=1, **keywords):
        prepared.append((work, calls))
        return prepare(layer, work, *arguments, calls=calls, **keywords)

    monkeypatch.setattr(Layer, "prepare", recorded)
    monkeypatch.setattr(timing, "calls_in_flight", lambda device: 2 if device == "cpu" else 1)
    measurements = measurements_of(small_cell("layer_seconds", "topk_seconds"))
    assert prepared[:2] == [("layer", 2)] * 2
    assert {calls for work, calls in prepared if work == "topk"} == {1}
    assert measurements["layer_seconds"].detail["timing"] == IN_FLIGHT_DEFINITION
    assert measurements["topk_seconds"].detail["timing"] == DEFINITION


@pytest.mark.parametrize(("device", "several"), [("cpu", False), ("cuda", True), ("cuda:1", True)])
def test_only_an_accelerator_has_several_steps_in_flight(device, several):
    assert (calls_in_flight(device) > 1) == several


def test_the_first_call_is_kept_separately():
    calls = []

    def slow_at_first():
        time.sleep(0.2 if not calls else 0.005)
        calls.append(1)

    result = paired([sleeper(0.005)], [slow_at_first], rounds=6, budget_seconds=1)
    assert result.other.first_call > 0.15
    assert result.other.seconds.value < 0.05
    assert result.other.turns > 1  # short work is called several times per sample


def test_at_least_six_rounds_are_measured_whatever_the_budget():
    assert len(paired([sleeper(0.02)], [sleeper(0.02)], rounds=50, budget_seconds=0.0).ratios) == 6


def test_interrupted_calls_count_for_little():
    """Every tenth call takes as long as a hundred, as if the scheduler had given the core to another process."""
    calls = []

    def interrupted():
        calls.append(1)
        busy(0.02 if len(calls) % 10 == 0 else 0.0002)

    result = paired([lambda: busy(0.0002)], [interrupted], rounds=6, budget_seconds=5)
    assert result.other.turns > 10
    assert result.other.seconds.value < 0.001  # the mean call takes 2 ms


def test_interrupted_calls_count_for_little_with_several_pieces():
    calls = []

    def interrupted():
        calls.append(1)
        time.sleep(0.1 if len(calls) % 10 == 0 else 0.005)

    result = paired([sleeper(0.005)] * 8, [interrupted, *[sleeper(0.005)] * 7], rounds=6, budget_seconds=5)
    assert result.other.turns == 3  # although one call of each piece already takes 40 ms
    assert max(result.other.samples) < 0.012  # a mean with an interrupted call would be 0.017


def test_the_sample_of_several_pieces_is_their_mean():
    pieces = [sleeper(0.01), sleeper(0.03)]
    result = paired(pieces, [sleeper(0.01)] * 2, rounds=6, budget_seconds=5)
    assert 0.02 <= result.baseline.seconds.value < 0.03
    assert 1.5 < result.ratio.value < 2.5


@pytest.mark.parametrize("other_first", [False, True])
def test_calls_strictly_alternate_between_the_sides(other_first):
    """Even short work is not called again before all other pieces were, or it would find its data in a cache."""
    order = []

    def piece(side, number, seconds):
        return lambda: (order.append((side, number)), busy(seconds))

    slow, fast = ([piece(side, number, seconds) for number in range(3)] for side, seconds in (("a", 0.001), ("b", 0.0)))
    turns = paired(slow, fast, rounds=6, budget_seconds=0.0, other_first=other_first).other.turns
    first = "ba" if other_first else "ab"
    rounds = [first, first[::-1]] * 3  # the starting side changes from round to round
    expected = [(side, number) for sides in rounds for _ in range(turns) for number in range(3) for side in sides]
    assert turns >= 3
    assert order[-len(expected) :] == expected


def test_a_side_is_not_called_twice_in_a_row_where_a_round_has_one_turn():
    order = []
    paired(
        [lambda: (order.append("a"), time.sleep(0.03))],
        [lambda: (order.append("b"), time.sleep(0.03))],
        rounds=6,
        budget_seconds=0.0,
    )
    assert "".join(order[-12:]) == "ab" * 6


def test_a_process_among_several_may_have_two_rounds():
    result = paired([sleeper(0.02)], [sleeper(0.02)], rounds=50, budget_seconds=0.0, least_rounds=2)
    assert len(result.ratios) == 2


def test_too_few_rounds_in_one_process_are_refused():
    cell = small_cell("layer_seconds")
    with pytest.raises(BadInput, match=r"rounds=4 in one process: allowed: at least 6, or more processes"):
        measurements_of(replace(cell, settings={**cell.settings, "rounds": 4}))


def test_both_sides_decode_the_same_single_rows(monkeypatch):
    decoded = {"full_softmax": [], "huffman": []}

    def prepare(layer, work, hidden, **_):
        return lambda: decoded[layer.spec.method].append(hidden)

    monkeypatch.setattr(Layer, "prepare", prepare)
    cell = small_cell("topk_seconds")
    measurements = measurements_of(replace(cell, settings={**cell.settings, "decode_rows": 40}))
    assert measurements["topk1_seconds"].detail["batches"] == 8
    for batches in decoded.values():
        single_rows = [rows_ND for rows_ND in batches if len(rows_ND) == 1]
        assert len({rows_ND.tobytes() for rows_ND in single_rows[:8]}) == 8
        assert all(np.array_equal(*pair) for pair in zip(single_rows[:8], single_rows[8:16], strict=True))
        whole_ND = next(rows_ND for rows_ND in batches if len(rows_ND) == 40)
        assert np.array_equal(single_rows[0], whole_ND[:1])
        assert np.array_equal(single_rows[7], whole_ND[39:])


def decoding_pairs(monkeypatch, *cells):
    """Return the parameters of the baseline and of the layer as the cells decode."""
    pairs = []

    def decoding(pair, *_):
        pairs.append((pair.baseline.parameters(), pair.layer.parameters()))
        return []

    monkeypatch.setattr(Pair, "decoding", decoding)
    for cell in cells:
        measurements_of(cell)
    return pairs


def test_scores_entropies_and_nucleus_samples_are_timed_only_if_they_are_asked_for():
    default = timing.SETTINGS["quantities"].default
    assert isinstance(default, tuple)
    assert not set(ON_REQUEST) & set(default)
    measured = measurements_of(small_cell(*ON_REQUEST))
    assert measured.keys() == {*ON_REQUEST, "parameters"}
    rows = {
        quantity: (measured[quantity].detail["rows"], measured[quantity].detail["batches"]) for quantity in ON_REQUEST
    }
    single = {"sample1_seconds", "nucleus_sample1_seconds"}
    assert rows == {quantity: (1, 4) if quantity in single else (4, 1) for quantity in ON_REQUEST}
    assert all(measured[quantity].ratio is not None for quantity in ON_REQUEST)
    assert measured["parameters"].value == 59 * 8  # the inner nodes of Huffman's tree


def assert_equal(parameters, expected):
    assert parameters.keys() == expected.keys()
    assert all(np.array_equal(parameters[name], value) for name, value in expected.items())


def test_timed_optimizer_steps_do_not_change_what_is_decoded(monkeypatch):
    """Their number depends on the machine. The speed of full softmax depends on its weights too."""
    cell = small_cell("layer_step_seconds", "topk_seconds")
    ((baseline, layer),) = decoding_pairs(monkeypatch, cell)
    assert_equal(baseline, baseline_of(cell, zipf_spec(cell)).initial_parameters())
    assert_equal(layer, zipf_spec(cell).initial_parameters())


def test_a_second_copy_decodes_with_equal_weights(monkeypatch):
    cell = replace(small_cell("layer_step_seconds", "topk_seconds"), method="full_softmax")
    ((baseline, layer),) = decoding_pairs(monkeypatch, cell)
    assert_equal(baseline, layer)


@pytest.mark.parametrize("first", ["baseline", "layer"])
def test_the_layout_decides_which_layer_is_created_first(first, monkeypatch):
    created = []
    monkeypatch.setattr("secrets.randbelow", lambda below: int(first == "baseline"))
    from_spec = layers.from_spec
    monkeypatch.setattr(layers, "from_spec", lambda *a: created.append(a[1].method) or from_spec(*a))
    measured = measurements_of(small_cell("layer_seconds"))
    assert created[-2:] == (["full_softmax", "huffman"] if first == "baseline" else ["huffman", "full_softmax"])
    (process,) = measured["layer_seconds"].processes
    assert process["baseline_created_first"] == process["baseline_called_first"] == (first == "baseline")
    assert process["rounds"] == 6
    assert 0 <= process["offset"] < 2**22
    assert {"others", "stolen", "switches", "cores"} <= process.keys()


def test_a_row_keeps_the_forms_of_both_sides():
    measured = measurements_of(small_cell("layer_seconds", "topk_seconds", "step_seconds"))
    for quantity in ("layer_seconds", "topk_seconds", "topk1_seconds", "step_seconds"):
        assert {"form", "baseline_form"} <= measured[quantity].detail.keys()


def test_a_repetition_measures_the_same_times():
    cell = small_cell("layer_seconds", "topk_seconds", "step_seconds", "peak_bytes")
    cell = replace(cell, settings={**cell.settings, "processes": 3, "rounds": 2})
    first = timing.run(cell, lambda text: None).measurements
    second = timing.repeat(cell, first, lambda text: None)
    assert {m.quantity for m in second if m.processes} == {m.quantity for m in first if m.processes}
    joined = {m.quantity: m for m in join(cell, first, second)}
    assert joined.keys() == {m.quantity for m in first}
    for measurement in joined.values():
        if measurement.processes:
            assert len(measurement.processes) == 2
            assert len(measurement.samples) == len(ratio_of(measurement).samples) == 4
            low, value, high = interval_of(measurement)
            assert low < value < high


def test_the_check_before_timing_leaves_out_what_depends_on_all_words():
    """The definition of a smoothed loss of a tree of 44,000 words takes a minute."""
    layer = layers.from_spec("numpy", zipf_spec(small_cell("layer_seconds")))
    inputs = batch(zipf_counts(60), tokens=8, dim=8, seed=0)
    quantities = [
        {comparison.quantity for comparison in agreement.check_layer(layer, inputs, k=5, whole_vocabulary=whole)}
        for whole in (False, True)
    ]
    assert "entropy" not in quantities[0]
    assert not any("label_smoothing" in quantity for quantity in quantities[0])
    assert "entropy" in quantities[1]
    assert any("label_smoothing" in quantity for quantity in quantities[1])


def test_a_device_that_counts_no_memory_has_no_peak(monkeypatch):
    monkeypatch.setattr(timing, "peak_bytes", lambda framework, device, run: run())  # returns None
    quantities = measurements_of(small_cell("layer_seconds", "peak_bytes")).keys()
    assert "peak_bytes" not in quantities
    assert {"layer_seconds", "compile_seconds"} <= quantities


@pytest.mark.parametrize(("device", "earlier_calls"), [("cpu", [2]), ("cuda", [1])])
def test_a_peak_is_measured_in_a_call_that_allocates(device, earlier_calls, monkeypatch):
    """That is the second call on a CPU, and the first one on an accelerator, where a second may replay a graph."""
    cell, prepared, counted = replace(small_cell("peak_bytes"), device=device), [], []

    def prepare(*job):
        prepared.append(calls := [])
        return lambda: calls.append(job)

    def peak_bytes(framework, device, run):
        run()
        counted.append(len(prepared[-1]))

    monkeypatch.setattr(timing, "peak_bytes", peak_bytes)
    monkeypatch.setattr(timing, "_layer", lambda cell, spec: layers.from_spec("numpy", spec))
    layer = layers.from_spec("numpy", zipf_spec(cell))
    monkeypatch.setattr(layer, "prepare", prepare)
    timing._peak(cell, layer, batch(zipf_counts(60), tokens=40, dim=8, seed=0))
    assert counted == earlier_calls


class Allocator:
    """Work whose calls receive the given numbers of fresh pages, then none."""

    def __init__(self, monkeypatch, *pages):
        self.total, self.pages, self.calls, self.cleared = 0, list(pages), 0, []
        monkeypatch.setattr("vocabench.harness.measure.timing.fresh_pages", lambda: self.total)
        monkeypatch.setattr("vocabench.harness.measure.timing.clear_pages", self.cleared.append)

    def work(self):
        self.calls += 1
        self.total += self.pages.pop(0) if self.pages else 0


def test_calls_that_received_fresh_memory_are_repeated(monkeypatch):
    allocator = Allocator(monkeypatch, 10, 50_000, 0, 20)
    steady = Steady()
    for calls in (1, 3, 4):
        assert len(steady.seconds([allocator.work])) == 1
        assert allocator.calls == calls
    assert allocator.cleared == [50_000]


def test_a_turn_is_repeated_as_a_whole(monkeypatch):
    allocator = Allocator(monkeypatch, 50_000, 0)
    order = []
    works = [lambda: order.append("one"), lambda: (order.append("other"), allocator.work())]
    assert len(Steady().seconds(works)) == 2
    assert order == ["one", "other"] * 2


def test_long_work_is_repeated_once(monkeypatch):
    """One call with fresh memory, such as that of the gradient of a million words, is not typical of the others."""
    monkeypatch.setattr("vocabench.harness.measure.timing._PATIENCE", 0.0)
    allocator = Allocator(monkeypatch, 90_000, 0, 90_000, 40_000, 90_000)
    steady = Steady()
    for calls in (2, 4, 5):
        steady.seconds([allocator.work])
        assert allocator.calls == calls


@pytest.mark.parametrize(
    ("pages", "first_calls"),
    [([5000] * 100, 2), ([90_000, 40_000, *[5000] * 100], _TRIES), ([90_000, 89_000, *[0] * 100], 2)],
)
def test_work_that_receives_fresh_memory_is_repeated_only_while_that_helps(monkeypatch, pages, first_calls):
    allocator = Allocator(monkeypatch, *pages)
    steady = Steady()
    for _ in range(10):
        steady.seconds([allocator.work])
    assert allocator.calls == first_calls + 9


@pytest.mark.parametrize(
    ("seconds", "expected"), [([9.0, 1.0, 2.0], 7.0), ([2.5, 1.0, 2.0], 0.0), ([1.5, 1.0, 2.0], 0.0), ([3.0, 1.0], 2.0)]
)
def test_an_excess_within_the_noise_of_calls_is_no_compilation(seconds, expected):
    assert timing.compilation(seconds) == expected
