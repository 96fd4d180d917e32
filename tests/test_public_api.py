"""The functions of `vocabench` itself, which import only what they need."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vocabench
from tests import ROOT
from vocabench.harness import registry
from vocabench.harness.measure.workload import batch, zipf_counts

HEAVY = {"numpy", "pandas", "scipy", "rich", "torch", "tensorflow", "jax", "keras"}
COUNTS = zipf_counts(60)


def imported_modules(code):
    """Return the top-level modules that `code` imports in a new process."""
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    lines = [line for line in process.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


def test_import_imports_nothing_heavy():
    modules = imported_modules("import vocabench")
    assert "vocabench" in modules
    assert not modules & HEAVY


def test_import_takes_less_than_a_tenth_of_a_second():
    code = "import time; start = time.perf_counter(); import vocabench; print(time.perf_counter() - start)"
    seconds = min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout)
        for _ in range(3)
    )
    assert seconds < 0.1


def test_listing_names_imports_no_framework():
    modules = imported_modules("import vocabench; vocabench.methods(); vocabench.frameworks()")
    assert not modules & {"torch", "tensorflow", "jax", "keras", "pandas"}


def test_methods_are_those_of_the_framework():
    assert vocabench.methods()[0] == "full_softmax"
    assert vocabench.methods() == registry.methods("numpy")
    assert set(vocabench.methods("jax")) <= set(vocabench.methods())
    with pytest.raises(ValueError, match="unknown framework 'pytorch'"):
        vocabench.methods("pytorch")


def test_frameworks_are_the_installed_ones_with_the_definitions_first():
    assert vocabench.frameworks()[0] == "numpy"
    assert vocabench.frameworks() == registry.installed_frameworks()


def test_returned_lists_may_be_changed():
    vocabench.methods().clear()
    vocabench.frameworks().clear()
    assert vocabench.methods()
    assert vocabench.frameworks()


def test_a_spec_has_parameters_before_any_framework():
    spec = vocabench.spec("sohsm", counts=COUNTS, dim=8, seed=3, projection="none")
    assert (spec.method, spec.vocab, spec.dim, spec.seed, spec.dtype) == ("sohsm", 60, 8, 3, "float32")
    assert spec.options["projection"] == "none"
    assert spec.initial_parameters()
    with pytest.raises(ValueError, match="did you mean 'sohsm'"):
        vocabench.spec("sohms", counts=COUNTS, dim=8)


@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_a_layer_has_the_same_initial_parameters_and_loss_in_every_framework(framework):
    inputs = batch(COUNTS, tokens=9, dim=8, seed=0)
    layer = vocabench.create(framework, "huffman", counts=COUNTS, dim=8, seed=3)
    definition = vocabench.create("numpy", "huffman", counts=COUNTS, dim=8, seed=3)
    for name, values in definition.parameters().items():
        assert np.allclose(layer.parameters()[name], values, atol=1e-6)
    expected = definition.loss(inputs.hidden_ND, inputs.targets_N)
    assert layer.loss(inputs.hidden_ND, inputs.targets_N) == pytest.approx(expected, rel=1e-5)


def test_wrong_arguments_of_create_are_refused():
    with pytest.raises(ValueError, match="unknown framework"):
        vocabench.create("pytorch", "huffman", counts=COUNTS, dim=8)
    with pytest.raises(ValueError, match="unknown method of numpy"):
        vocabench.create("numpy", "hufman", counts=COUNTS, dim=8)
    with pytest.raises(ValueError, match="counts"):
        vocabench.create("numpy", "huffman", counts=np.zeros(60, int), dim=8)


def test_read_gives_one_row_per_measured_figure():
    path = ROOT / "results" / "archive" / "quick.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    figures = {(row["key"], m["quantity"]): m["value"] for row in rows for m in row["measurements"]}
    frame = vocabench.read(path)
    assert len(frame) == len(figures)
    assert sorted(frame["value"]) == sorted(figures.values())
    assert {"suite", "framework", "method", "quantity", "value", "unit", "agreement", "status"} <= {*frame.columns}
    assert vocabench.read(str(path)).equals(frame)


def test_a_path_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        vocabench.read(tmp_path / "rows.jsonl")
    (tmp_path / "notes.txt").write_text("no rows\n")
    with pytest.raises(ValueError, match="not a JSON row"):
        vocabench.read(tmp_path / "notes.txt")


def test_names_are_listed_without_reading_folders_again(monkeypatch):
    listings = (registry.frameworks, registry.methods, registry.tasks, registry.datasets, registry.suites)
    names = [listing() for listing in listings]
    monkeypatch.setattr(Path, "glob", None)
    assert [listing() for listing in listings] == names
