"""Figures that asv keeps of a row, and regressions that it detects."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import layers, quality
from benchmarks._rows import Cell as CellResults
from benchmarks._rows import LookUp, Score
from tests.harness.compare.asv_project import FULL, LAYER, RATIO, ROOT, TIMES, asv, commit, configure, git, row
from vocabench.harness.compare import history
from vocabench.harness.measure import memory, timing
from vocabench.harness.quantities import NOT_JUDGED
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite


def test_a_time_has_its_rounds_and_its_ratio_to_full_softmax():
    figures = history.figures(row(LAYER))
    assert figures.keys() == {"layer_seconds", "relative_layer_seconds"}
    assert figures["layer_seconds"] == TIMES
    assert figures["relative_layer_seconds"] == pytest.approx([t / f for t, f in zip(TIMES, FULL, strict=True)])
    assert history.figures(row(LAYER, method="full_softmax")).keys() == {"layer_seconds"}


def test_steps_in_flight_have_another_name():
    measured = Measurement(
        "layer_seconds", 0.0111, samples=TIMES, ratio=RATIO, detail={"timing": timing.IN_FLIGHT_DEFINITION}
    )
    figures = history.figures(row(measured, device="cuda"))
    assert figures.keys() == {"in_flight_layer_seconds", "relative_in_flight_layer_seconds"}
    assert {history.definition(row(measured), figure) for figure in figures} == {timing.IN_FLIGHT_DEFINITION}
    awaited = Measurement("topk_seconds", 0.1, samples=TIMES, ratio=RATIO, detail={"timing": timing.DEFINITION})
    assert history.figures(row(awaited, device="cuda")).keys() == {"topk_seconds", "relative_topk_seconds"}


def test_figures_of_the_machine_and_the_method_are_not_kept():
    not_judged = [Measurement(quantity, 0.1) for quantity in NOT_JUDGED]
    assert NOT_JUDGED
    assert history.figures(row(LAYER, *not_judged)).keys() == history.figures(row(LAYER)).keys()


def test_a_score_is_one_sample_for_which_lower_is_better():
    cer = Measurement("cer", 0.25, samples=[0.0, 0.0, 1.0])
    rouge = Measurement("rouge1_f1", 0.9, samples=[1.0, 0.8])
    assert history.figures(row(cer, rouge)) == {"cer": [0.25], "one_minus_rouge1_f1": [pytest.approx(0.1)]}
    assert history.figures(row(Measurement("cer", math.nan))) == {}


def test_a_layer_that_disagrees_has_no_speed():
    figures = history.figures(row(LAYER, Measurement("agreement_error", 3.0), status="disagree"))
    assert figures == {"agreement_error": [3.0]}


@pytest.mark.parametrize(
    ("figure", "unit"),
    [
        ("layer_seconds", "seconds"),
        ("peak_bytes", "bytes"),
        ("relative_topk_seconds", "full softmax's"),
        ("in_flight_layer_seconds", "seconds"),
        ("relative_in_flight_layer_seconds", "full softmax's"),
        ("one_minus_rougeL_f1", "1"),
    ],
)
def test_units_have_the_names_that_asv_scales(figure, unit):
    assert history.unit(figure) == unit


def look_ups():
    classes = [value for module in (layers, quality) for value in vars(module).values() if isinstance(value, type)]
    return [value for value in classes if issubclass(value, LookUp) and hasattr(value, "figure")]


@pytest.mark.parametrize("look_up", look_ups(), ids=lambda value: value.__name__)
def test_a_benchmark_has_the_name_and_unit_of_its_figure(look_up):
    assert callable(getattr(look_up, f"track_{look_up.figure}"))
    assert look_up.unit == history.unit(look_up.figure)


@pytest.mark.parametrize("look_up", look_ups(), ids=lambda value: value.__name__)
def test_the_version_of_a_benchmark_is_that_of_its_definition(look_up):
    timed, counted = str(timing.DEFINITION), f"counting {memory.DEFINITION}"
    recorded = {"seconds": timed, "full softmax's": timed, "bytes": counted}
    assert look_up.version == recorded.get(look_up.unit, Score.version)
    assert issubclass(look_up, Score) == (look_up.unit not in recorded)


def test_every_quantity_of_the_history_has_a_benchmark():
    expected = {"layer_seconds", "peak_bytes", "agreement_error", "perplexity", "cer", "per"}
    expected |= {f"one_minus_rouge{n}_f1" for n in "12L"}
    assert expected <= {look_up.figure for look_up in look_ups()}


def test_a_missing_cell_is_skipped_and_a_failed_one_fails():
    cache = {
        ("torch", "huffman"): CellResults({"per": [0.5]}),
        ("jax", "huffman"): CellResults(failure="oom: no memory"),
    }
    benchmark = quality.PhoneErrorRate()
    benchmark.setup(cache, "torch", "huffman")
    assert benchmark.track_per(cache, "torch", "huffman") == {"samples": [0.5], "number": 1}
    with pytest.raises(NotImplementedError):
        benchmark.setup(cache, "tensorflow", "huffman")
    benchmark.setup(cache, "jax", "huffman")
    with pytest.raises(RuntimeError, match="oom: no memory"):
        benchmark.track_per(cache, "jax", "huffman")


@pytest.mark.parametrize("task", ["agreement", "timing"])
def test_the_suite_measures_the_methods_of_the_benchmarks(task):
    cells = Suite.load("asv").cells(Selection(tasks=[task], frameworks=["numpy"]))
    benchmark = layers.Agreement if task == "agreement" else layers.ForwardBackward
    assert {cell.method for cell in cells} >= set(benchmark.params[1])


@pytest.mark.parametrize(("package", "path"), [("harness", "pool.py"), ("vocabench/harness", "run/pool.py")])
def test_a_commit_is_measured_with_its_own_code(tmp_path, package, path):
    """Commits without the package `vocabench` have the modules of the harness in `harness`."""
    module = tmp_path / package / path
    module.parent.mkdir(parents=True)
    module.touch()
    for folder in module.relative_to(tmp_path).parents[:-1]:
        (tmp_path / folder / "__init__.py").touch()
    code = "from benchmarks._rows import harness_module; print(harness_module('run.pool').__file__)"
    import_path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": import_path, "ASV_PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{module}\n", done.stderr


SMALL = """
description = "Enough for a test"

[[sweep]]
task = "timing"
frameworks = ["torch"]
methods = ["huffman"]
vocab = [5000]
dim = 64
tokens = 320
settings = { rounds = 15, budget = 60, quantities = ["layer_seconds"] }

[[sweep]]
task = "language_modelling"
frameworks = ["torch"]
methods = ["huffman"]
dataset = "pydoc-small"
dim = 16
tokens = 640
settings = { epochs = 1, batch = 32, steps = 20, embedding = 16, decode_rows = 0 }
"""


@pytest.fixture
def copied_repository(in_empty_folder):
    """Create a repository of this code with a small suite."""
    for folder in ("harness", "impls", "benchmarks", "vocabench"):
        shutil.copytree(ROOT / folder, folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    Path("harness/suites/asv.toml").write_text(SMALL)
    configure()
    git("init", "--quiet", "--initial-branch=main")
    git("add", "asv.conf.json", "harness", "impls", "benchmarks", "vocabench")
    commit("as it is")
    assert asv("machine", "--yes", home=in_empty_folder).returncode == 0
    return in_empty_folder


def commit_change(path, old, new):
    text = Path(path).read_text()
    assert text.count(old) == 1
    Path(path).write_text(text.replace(old, new))
    git("add", path)
    commit(f"changes {path}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "path", "old", "new"),
    [
        (
            "relative_layer_seconds",
            "impls/on_torch/trees/tree_layer.py",
            "return self._leaf_nll(self._with_one(hidden_ND), targets_N)",
            "return [self._leaf_nll(self._with_one(hidden_ND), targets_N) for _ in range(20)][-1]",
        ),
        (
            "perplexity",
            "impls/on_torch/training/optimizers.py",
            "torch.optim.Adagrad(\n            parameters,\n            lr=rate,",
            "torch.optim.Adagrad(\n            parameters,\n            lr=rate / 4,",
        ),
    ],
)
def test_continuous_detects_a_planted_regression_and_nothing_else(copied_repository, pattern, path, old, new):
    commit("changes nothing")
    same = asv("continuous", "HEAD~1", "HEAD", "--bench", pattern, home=copied_repository)
    assert same.returncode == 0, same.stdout + same.stderr
    assert "BENCHMARKS NOT SIGNIFICANTLY CHANGED" in same.stdout
    commit_change(path, old, new)
    worse = asv("continuous", "HEAD~1", "HEAD", "--bench", pattern, home=copied_repository)
    assert worse.returncode == 1, worse.stdout + worse.stderr
    assert re.search(rf"\| \+ .*{pattern}\('torch', 'huffman'\)", worse.stdout)
    assert asv("publish", home=copied_repository).returncode == 0
