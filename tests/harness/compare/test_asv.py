"""asv's history: what it keeps of a row, and that it sees what became worse."""

import re
import shutil
from pathlib import Path

import pytest

from benchmarks import layers, quality
from benchmarks._rows import Cell as Known
from benchmarks._rows import LookUp, Score
from tests.harness.compare.asv_project import FULL, LAYER, RATIO, ROOT, TIMES, asv, commit, configure, git, row
from vocabench.harness.compare import history
from vocabench.harness.measure import memory, timing
from vocabench.harness.quantities import NOT_JUDGED, Measurement
from vocabench.harness.run.cells import Selection, Suite


def test_a_time_is_its_rounds_and_a_share_of_full_softmax():
    found = history.figures(row(LAYER))
    assert found.keys() == {"layer_seconds", "relative_layer_seconds"}
    assert found["layer_seconds"] == TIMES
    assert found["relative_layer_seconds"] == pytest.approx([t / f for t, f in zip(TIMES, FULL, strict=True)])
    assert history.figures(row(LAYER, method="full_softmax")).keys() == {"layer_seconds"}


def test_steps_in_flight_have_a_name_of_their_own():
    measured = Measurement("layer_seconds", 0.0111, samples=TIMES, ratio=RATIO, detail={"timing": 4})
    found = history.figures(row(measured, device="cuda"))
    assert found.keys() == {"in_flight_layer_seconds", "relative_in_flight_layer_seconds"}
    assert {history.definition(row(measured), figure) for figure in found} == {4}
    awaited = Measurement("topk_seconds", 0.1, samples=TIMES, ratio=RATIO, detail={"timing": 3})
    assert history.figures(row(awaited, device="cuda")).keys() == {"topk_seconds", "relative_topk_seconds"}


def test_the_machine_s_and_the_method_s_figures_are_no_history():
    others = [Measurement(quantity, 0.1) for quantity in NOT_JUDGED]
    assert NOT_JUDGED
    assert history.figures(row(LAYER, *others)).keys() == history.figures(row(LAYER)).keys()


def test_a_score_is_one_sample_of_which_lower_is_better():
    cer = Measurement("cer", 0.25, samples=[0.0, 0.0, 1.0])
    rouge = Measurement("rouge1_f1", 0.9, samples=[1.0, 0.8])
    assert history.figures(row(cer, rouge)) == {"cer": [0.25], "one_minus_rouge1_f1": [pytest.approx(0.1)]}
    nothing = row(cer)
    nothing["measurements"][0]["value"] = None  # not a number, in JSON
    assert history.figures(nothing) == {}


def test_what_disagrees_has_no_speed():
    found = history.figures(row(LAYER, Measurement("agreement_error", 3.0), status="disagree"))
    assert found == {"agreement_error": [3.0]}


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
def test_units_are_those_that_asv_scales(figure, unit):
    assert history.unit(figure) == unit


def look_ups():
    found = [value for module in (layers, quality) for value in vars(module).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, LookUp) and hasattr(value, "figure")]


@pytest.mark.parametrize("look_up", look_ups(), ids=lambda value: value.__name__)
def test_a_benchmark_is_named_by_its_figure_and_has_its_unit(look_up):
    assert callable(getattr(look_up, f"track_{look_up.figure}"))
    assert look_up.unit == history.unit(look_up.figure)


@pytest.mark.parametrize("look_up", look_ups(), ids=lambda value: value.__name__)
def test_a_benchmark_s_version_is_its_definition(look_up):
    timed, counted = str(timing.DEFINITION), f"counting {memory.DEFINITION}"
    recorded = {"seconds": timed, "full softmax's": timed, "bytes": counted}
    assert look_up.version == recorded.get(look_up.unit, Score.version)
    assert issubclass(look_up, Score) == (look_up.unit not in recorded)


def test_every_quantity_of_the_history_is_there():
    expected = {"layer_seconds", "peak_bytes", "agreement_error", "perplexity", "cer", "per"}
    expected |= {f"one_minus_rouge{n}_f1" for n in "12L"}
    assert expected <= {each.figure for each in look_ups()}


def test_a_cell_that_is_missing_is_skipped_and_one_that_failed_fails():
    known = {("torch", "huffman"): Known({"per": [0.5]}), ("jax", "huffman"): Known(failure="oom: no memory")}
    benchmark = quality.PhoneErrorRate()
    benchmark.setup(known, "torch", "huffman")
    assert benchmark.track_per(known, "torch", "huffman") == {"samples": [0.5], "number": 1}
    with pytest.raises(NotImplementedError):
        benchmark.setup(known, "tensorflow", "huffman")
    benchmark.setup(known, "jax", "huffman")
    with pytest.raises(RuntimeError, match="oom: no memory"):
        benchmark.track_per(known, "jax", "huffman")


@pytest.mark.parametrize("task", ["agreement", "timing"])
def test_the_suite_measures_what_is_looked_up(task):
    cells = Suite.load("asv").cells(Selection(tasks=[task], frameworks=["numpy"]))
    benchmark = layers.Agreement if task == "agreement" else layers.ForwardBackward
    assert {cell.method for cell in cells} >= set(benchmark.params[1])


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
def copied(in_empty_folder):
    """A repository of this code with a small suite."""
    for room in ("harness", "impls", "benchmarks", "vocabench"):
        shutil.copytree(ROOT / room, room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    Path("harness/suites/asv.toml").write_text(SMALL)
    configure()
    git("init", "--quiet", "--initial-branch=main")
    git("add", "asv.conf.json", "harness", "impls", "benchmarks", "vocabench")
    commit("as it is")
    assert asv("machine", "--yes", home=in_empty_folder).returncode == 0
    return in_empty_folder


def replaced(path, old, new):
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
            "near_scores_NH = hidden_ND_cast @ node_weight[first:].T",
            "near_scores_NH = [hidden_ND_cast @ node_weight[first:].T for _ in range(50)][-1]",
        ),
        ("perplexity", "impls/on_torch/training/optimizers.py", " lr=rate,\n", " lr=rate / 4,\n"),
    ],
)
def test_continuous_catches_what_is_planted_and_nothing_else(copied, pattern, path, old, new):
    commit("changes nothing")
    same = asv("continuous", "HEAD~1", "HEAD", "--bench", pattern, home=copied)
    assert same.returncode == 0, same.stdout + same.stderr
    assert "BENCHMARKS NOT SIGNIFICANTLY CHANGED" in same.stdout
    replaced(path, old, new)
    worse = asv("continuous", "HEAD~1", "HEAD", "--bench", pattern, home=copied)
    assert worse.returncode == 1, worse.stdout + worse.stderr
    assert re.search(rf"\| \+ .*{pattern}\('torch', 'huffman'\)", worse.stdout)
    assert asv("publish", home=copied).returncode == 0
