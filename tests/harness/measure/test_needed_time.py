"""The time that a step of full softmax needs at least, and precisions that a machine multiplies slowly."""

from dataclasses import replace

import numpy as np
import pytest

from vocabench.harness import layers
from vocabench.harness.measure import roofline
from vocabench.harness.measure.needed_time import check_precision, check_quick
from vocabench.harness.measure.roofline import Ceilings
from vocabench.harness.run.cells import Cell
from vocabench.harness.tasks import parallel, timing
from vocabench.harness.tasks.shared import feasible
from vocabench.impls.errors import Unsupported

PLAIN = layers.spec("full_softmax", vocab=1000, dim=100, bias=False)
TARGETS_N = np.zeros(50, dtype=np.int64)
FLOPS = 3 * 2 * 50 * 1000 * 100  # three products of tokens, words and width


def test_a_step_takes_its_products_at_the_best_rate_that_was_measured():
    rates = Ceilings((FLOPS / 4, FLOPS / 2), (1e12,))
    check_quick(PLAIN, TARGETS_N, rates, longest=2.1)
    with pytest.raises(
        Unsupported,
        match=r"^a step of full_softmax with vocab=1000, dim=100 in float32 needs at least 2 s at the 0\.015 GFLOP/s "
        r"of this machine: allowed: 1\.9 s, set by longest_step$",
    ):
        check_quick(PLAIN, TARGETS_N, rates, longest=1.9)


def test_a_slow_memory_bounds_a_step_too():
    with pytest.raises(Unsupported, match="needs at least"):
        check_quick(PLAIN, TARGETS_N, Ceilings((1e15,), (1e5,)), longest=1)


def test_a_cell_with_a_slow_baseline_is_skipped_before_anything_is_timed():
    defaults = {name: setting.default for name, setting in timing.SETTINGS.items()}
    cell = Cell("s", "timing", "torch", "huffman", 60, 8, 40, settings=defaults | {"longest_step": 1e-9})
    with pytest.raises(Unsupported, match="set by longest_step"):
        timing.run(cell, lambda _: None)


def test_a_precision_that_is_no_faster_than_float32_is_skipped():
    fast, slow = Ceilings((2e9, 5e9), (1e9,)), Ceilings((4e9,), (1e9,))  # by a quarter
    check_precision("bfloat16", fast, slow)
    with pytest.raises(Unsupported, match="no faster"):
        check_precision("bfloat16", fast, fast)
    with pytest.raises(
        Unsupported,
        match=r"^bfloat16 is no faster than float32 on this machine: its products run at 4 GFLOP/s, "
        r"those in float32 at 5: allowed: slow_precision=measure$",
    ):
        check_precision("bfloat16", slow, fast)


@pytest.mark.parametrize("task", [timing, parallel])
def test_only_cells_in_a_lower_precision_are_skipped_for_it(task, monkeypatch):
    rates = {"float32": Ceilings((5e9,), (1e9,)), "bfloat16": Ceilings((4e9,), (1e9,))}
    monkeypatch.setattr(roofline, "first_ceilings", lambda framework, device, dtype: rates[dtype])
    settings = {name: setting.default for name, setting in task.SETTINGS.items()} | {"slow_precision": "skip"}
    cell = Cell("s", task.__name__.split(".")[-1], "torch", "huffman", 60, 8, 40, settings=settings)
    feasible.check_feasible(cell, PLAIN, PLAIN, lambda _: None)
    with pytest.raises(Unsupported, match="slow_precision=measure"):
        task.run(replace(cell, precision="bfloat16"), lambda _: None)
