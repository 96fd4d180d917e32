"""Paired timing on work whose length is known."""

import time
from dataclasses import replace

import numpy as np
import pytest

from vocabench.harness import layers
from vocabench.harness.measure.timing import _TRIES, DEFINITION, IN_FLIGHT_DEFINITION, Steady, calls_in_flight, paired
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run.cells import Cell
from vocabench.harness.tasks import timing
from vocabench.impls.contract import Layer


def sleeper(seconds):
    return lambda: time.sleep(seconds)


def test_a_ratio_of_sleeps():
    found = paired([sleeper(0.03)], [sleeper(0.01)], rounds=11, budget_seconds=5)
    assert 2.0 < found.ratio.low <= found.ratio.value <= found.ratio.high < 3.5
    assert len(found.other.samples) == len(found.baseline.samples) == 11


def test_a_time_is_of_one_call_where_a_piece_is_several():
    found = paired([sleeper(0.03)], [sleeper(0.03)], rounds=6, budget_seconds=5, calls=3)
    for side in (found.baseline, found.other):
        assert 0.01 <= side.seconds.value < 0.02


def test_steps_in_flight_are_of_a_definition_of_their_own(monkeypatch):
    """Layer and baseline are asked for as many; decoding is waited for each time."""
    asked = []
    prepare = Layer.prepare

    def counted(layer, work, *given, calls=1, **named):
        asked.append((work, calls))
        return prepare(layer, work, *given, calls=calls, **named)

    monkeypatch.setattr(Layer, "prepare", counted)
    cell = small_cell("layer_seconds", "topk_seconds")
    monkeypatch.setattr(timing, "calls_in_flight", lambda device: 2 if device == "cpu" else 1)
    found = {m.quantity: m.detail.get("timing") for m in timing.run(cell, lambda text: None).measurements}
    assert asked[:2] == [("layer", 2)] * 2
    assert {calls for work, calls in asked if work == "topk"} == {1}
    assert (found["layer_seconds"], found["topk_seconds"]) == (IN_FLIGHT_DEFINITION, DEFINITION)


@pytest.mark.parametrize(("device", "several"), [("cpu", False), ("cuda", True), ("cuda:1", True)])
def test_only_an_accelerator_is_asked_for_several_steps(device, several):
    assert (calls_in_flight(device) > 1) == several


def test_the_first_call_is_kept_apart():
    calls = []

    def compiled_late():
        time.sleep(0.2 if not calls else 0.005)
        calls.append(1)

    found = paired([sleeper(0.005)], [compiled_late], rounds=6, budget_seconds=1)
    assert found.other.first_call > 0.15
    assert found.other.seconds.value < 0.05
    assert found.other.turns > 1  # a sample of short work is of several turns


def test_six_rounds_are_taken_whatever_the_budget():
    assert len(paired([sleeper(0.02)], [sleeper(0.02)], rounds=50, budget_seconds=0.0).ratios) == 6


def test_an_interrupted_call_counts_for_little():
    """Every tenth call takes as long as a hundred, as if the scheduler had given the core to others."""
    calls = []

    def interrupted():
        calls.append(1)
        busy(0.02 if len(calls) % 10 == 0 else 0.0002)

    found = paired([lambda: busy(0.0002)], [interrupted], rounds=6, budget_seconds=5)
    assert found.other.turns > 10
    assert found.other.seconds.value < 0.001  # the mean call takes 2 ms


def test_an_interrupted_call_of_one_of_several_pieces_counts_for_little_too():
    calls = []

    def interrupted():
        calls.append(1)
        time.sleep(0.1 if len(calls) % 10 == 0 else 0.005)

    found = paired([sleeper(0.005)] * 8, [interrupted, *[sleeper(0.005)] * 7], rounds=6, budget_seconds=5)
    assert found.other.turns == 3  # a single one of each takes 40 ms, for one piece enough
    assert max(found.other.samples) < 0.012  # a mean would be 0.017 where one was interrupted


def test_of_several_pieces_a_sample_is_the_mean():
    pieces = [sleeper(0.01), sleeper(0.03)]
    found = paired(pieces, [sleeper(0.01)] * 2, rounds=6, budget_seconds=5)
    assert 0.02 <= found.baseline.seconds.value < 0.03
    assert 1.5 < found.ratio.value < 2.5


def test_calls_strictly_alternate_between_the_sides():
    """However short: none is called again, which would find what it touches in a cache, before all others were."""
    order = []

    def piece(side, number, seconds):
        return lambda: (order.append((side, number)), busy(seconds))

    slow, fast = ([piece(side, number, seconds) for number in range(3)] for side, seconds in (("a", 0.001), ("b", 0.0)))
    paired(slow, fast, rounds=6, budget_seconds=0.0)
    timed = order[-6 * 6 * 3 :]
    assert timed == [(side, number) for _ in range(6 * 3) for number in range(3) for side in "ab"]


def test_rows_alone_are_decoded_in_turn_by_both(monkeypatch):
    decoded = {"full_softmax": [], "huffman": []}

    def prepare(layer, work, hidden, **_):
        return lambda: decoded[layer.spec.method].append(hidden)

    monkeypatch.setattr(Layer, "prepare", prepare)
    cell = small_cell("topk_seconds")
    cell = replace(cell, settings={**cell.settings, "decode_rows": 40})
    found = {m.quantity: m for m in timing.run(cell, lambda text: None).measurements}
    assert found["topk1_seconds"].detail["batches"] == 32
    for hidden in decoded.values():
        alone = [rows_ND for rows_ND in hidden if len(rows_ND) == 1]
        assert len({rows_ND.tobytes() for rows_ND in alone[:32]}) == 32
        assert all(np.array_equal(*pair) for pair in zip(alone[:32], alone[32:64], strict=True))
        whole_ND = next(rows_ND for rows_ND in hidden if len(rows_ND) == 40)
        assert np.array_equal(alone[0], whole_ND[:1])
        assert np.array_equal(alone[31], whole_ND[39:])


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def small_cell(*quantities):
    settings = {"quantities": quantities, "rounds": 6, "budget": 0.0, "checked_tokens": 8, "decode_rows": 4}
    return Cell("s", "timing", "numpy", "huffman", 60, 8, 40, precision="float64", settings=settings)


def test_steps_that_were_timed_do_not_change_what_is_decoded(monkeypatch):
    decoded = []
    monkeypatch.setattr(timing, "decoding", lambda cell, layer, *rest: decoded.append(layer.parameters()) or [])
    cell = small_cell("layer_step_seconds", "topk_seconds")
    timing.run(cell, lambda text: None)
    (parameters,) = decoded
    initial = timing._spec(cell, "huffman").initial_parameters()
    assert parameters.keys() == initial.keys()
    assert all(np.array_equal(parameters[name], value) for name, value in initial.items())


def test_a_device_that_counts_no_memory_has_no_peak(monkeypatch):
    monkeypatch.setattr(timing, "peak_bytes", lambda framework, device, run: run())  # which returns nothing
    found = {m.quantity for m in timing.run(small_cell("layer_seconds", "peak_bytes"), lambda text: None).measurements}
    assert "peak_bytes" not in found
    assert {"layer_seconds", "compile_seconds"} <= found


@pytest.mark.parametrize(("device", "of_its_own"), [("cpu", [2]), ("cuda", [1])])
def test_a_peak_is_of_a_call_that_takes_its_memory(device, of_its_own, monkeypatch):
    """On a CPU of the second, and on an accelerator of the first of another: a second may replay a graph."""
    cell, prepared, counted = replace(small_cell("peak_bytes"), device=device), [], []

    def prepare(*job):
        prepared.append(calls := [])
        return lambda: calls.append(job)

    def peak_bytes(framework, device, run):
        run()
        counted.append(len(prepared[-1]))

    monkeypatch.setattr(timing, "peak_bytes", peak_bytes)
    monkeypatch.setattr(timing, "_layer", lambda cell, spec: layers.from_spec("numpy", spec))
    layer = layers.from_spec("numpy", timing._spec(cell, "huffman"))
    monkeypatch.setattr(layer, "prepare", prepare)
    timing._peak(cell, layer, batch(zipf_counts(60), tokens=40, dim=8, seed=0))
    assert counted == of_its_own


class Allocator:
    """Pages given so far; each call takes what is next in the list."""

    def __init__(self, monkeypatch, *pages):
        self.given, self.pages, self.calls = 0, list(pages), 0
        monkeypatch.setattr("vocabench.harness.measure.timing.fresh_pages", lambda: self.given)
        self.cleared = []
        monkeypatch.setattr("vocabench.harness.measure.timing.clear_pages", self.cleared.append)

    def work(self):
        self.calls += 1
        self.given += self.pages.pop(0) if self.pages else 0


def test_calls_to_which_memory_was_given_are_repeated(monkeypatch):
    memory = Allocator(monkeypatch, 10, 50_000, 0, 20)
    steady = Steady()
    for calls in (1, 3, 4):
        assert len(steady.seconds([memory.work])) == 1
        assert memory.calls == calls
    assert memory.cleared == [50_000]


def test_a_turn_is_repeated_as_a_whole(monkeypatch):
    memory = Allocator(monkeypatch, 50_000, 0)
    order = []
    works = [lambda: order.append("one"), lambda: (order.append("other"), memory.work())]
    assert len(Steady().seconds(works)) == 2
    assert order == ["one", "other"] * 2


def test_where_memory_is_given_to_each_call_none_is_repeated_for_long(monkeypatch):
    memory = Allocator(monkeypatch, *[5000] * 100)
    steady = Steady()
    for _ in range(10):
        steady.seconds([memory.work])
    assert memory.calls == _TRIES + 9
