"""The forms of a layer: all of them agree with the definition, and the fastest one here is chosen."""

import dataclasses
import platform
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.rows import by_quantity, row_of
from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.fastest_form import fastest_form
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run.cells import Cell
from vocabench.harness.tasks import timing
from vocabench.impls.errors import BadInput
from vocabench.impls.forms import Form

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]


def spec_of(method, dtype="float32", vocab=97):
    return layers.spec(method, counts=zipf_counts(vocab), dim=24, seed=5, dtype=dtype)


def disagreements(comparisons):
    return [str(comparison) for comparison in comparisons if not comparison.agrees]


@pytest.mark.lengthy
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_form_agrees_with_the_definition(framework):
    """All forms but the preferred one of each layer, which the other tests use. Layers of the same forms share code."""
    comparisons, tested = [], set()
    for method in ("fused_softmax", "sohsm", "huffman", *registry.methods(framework)):
        # PyTorch's GPU forms and JAX's GPU kernels do not run on a CPU.
        gpu_forms = layers.forms(framework, spec_of(method), "cuda") if framework != "torch" else ()
        portable = (form for form in gpu_forms if form.id != "pallas")
        forms = tuple(dict.fromkeys((*layers.forms(framework, spec_of(method)), *portable)))
        if forms in tested:
            continue
        tested.add(forms)
        for form in forms[1:]:
            spec = dataclasses.replace(spec_of(method), form=form.id)
            layer = layers.from_spec(framework, spec)
            assert form.label in layer.formulation()
            inputs = batch(spec.counts, tokens=301, dim=24, seed=5)
            comparisons += agreement.check_layer(layer, inputs, k=10)
    assert disagreements(comparisons) == []
    assert len(comparisons) > len(tested) > 1


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs PyTorch")
@pytest.mark.parametrize("method", ["sohsm", "class_hsm"])
def test_torch_decodes_large_clusters_by_the_loop(method, monkeypatch):
    from vocabench.impls.on_torch.two_level import cluster_softmax

    used = []
    scores = cluster_softmax.scores
    monkeypatch.setattr(cluster_softmax, "scores", lambda *given: used.append(given[-1].form) or scores(*given))
    spec = dataclasses.replace(layers.spec(method, counts=zipf_counts(2000), dim=1536), form=cluster_softmax.GROUPED.id)
    layer, inputs = layers.from_spec("torch", spec), batch(spec.counts, tokens=12, dim=1536, seed=0)
    comparisons = agreement.check_layer(layer, inputs, k=10, whole_vocabulary=False)
    assert disagreements(comparisons) == []
    assert cluster_softmax.GROUPED in used
    used.clear()
    layer.beam(inputs.hidden_ND, 10, 10)
    layer.sample(inputs.hidden_ND, np.full((12, spec.draws), 0.5))
    assert cluster_softmax.LOOP in used


_TRIED = """
import psutil
from vocabench.harness import layers
from vocabench.harness.measure import memory
from vocabench.harness.measure.fastest_form import fastest_form
from vocabench.harness.measure.workload import batch, zipf_counts

memory.keep_freed()
layer = layers.from_spec("torch", layers.spec("sohsm", counts=zipf_counts(100), dim=256))
spec = layers.spec("sohsm", counts=zipf_counts(100_000), dim=256)  # 100 MB of words, and as much of gradients
inputs = batch(spec.counts, tokens=16, dim=256, seed=0)
before = psutil.Process().memory_info().rss
_, tried = fastest_form("torch", spec, inputs, "cpu", lambda line: None)
print(len(tried), psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs PyTorch")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tests the allocator of glibc")
def test_forms_that_were_tried_leave_no_memory_behind():
    tried, left = subprocess.check_output([sys.executable, "-c", _TRIED], text=True).split()
    assert int(tried) > 1
    assert int(left) < 100e6


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_unknown_form_is_refused(framework):
    spec = dataclasses.replace(spec_of("fused_softmax"), form="blocks of one")
    with pytest.raises(
        BadInput, match=r"unknown form of fused_softmax 'blocks of one': .*allowed: .*(words|tokens)_\d+m"
    ):
        layers.from_spec(framework, spec)


def test_a_definition_has_one_form_and_nothing_is_measured():
    spec = spec_of("sohsm", dtype="float64")
    inputs = batch(spec.counts, tokens=9, dim=24, seed=5)
    assert fastest_form("numpy", spec, inputs, "cpu", pytest.fail) == (spec, {})


class FakeLayer:
    """A layer whose forward and backward pass take as long as its form says, or fail."""

    def __init__(self, form):
        self.form = form
        self.calls = 0

    def prepare(self, work, hidden_ND, targets_N, *, calls):
        assert (work, calls) == ("layer", 1)
        assert len(hidden_ND) == len(targets_N)

        def run():
            if self.form == "unsupported":
                raise RuntimeError("no kernel")
            self.calls += 1
            disturbed = self.form == "fast, mostly disturbed" and self.calls % 5
            time.sleep({"slow": 0.02, "fast": 0.002}.get(self.form, 0.05 if disturbed else 0.001))

        return run


@pytest.fixture
def choose(monkeypatch):
    """Run `fastest_form` on fake layers with the given forms."""

    def run(*ids, progress=lambda text: None):
        monkeypatch.setattr(layers, "forms", lambda framework, spec, device: tuple(Form(name, name) for name in ids))
        monkeypatch.setattr(layers, "from_spec", lambda framework, spec, device: FakeLayer(spec.form))
        spec = spec_of("full_softmax")
        return fastest_form("torch", spec, batch(spec.counts, tokens=9, dim=24, seed=5), "cpu", progress)

    return run


def test_the_fastest_form_is_chosen_and_one_that_fails_is_skipped(choose):
    messages = []
    spec, tried = choose("unsupported", "slow", "fast", progress=messages.append)
    assert spec.form == "fast"
    assert float(tried["slow"]) > float(tried["fast"]) > 0
    assert tried["unsupported"] == "no kernel"
    assert messages == ["trying unsupported", "trying slow", "trying fast"]
    assert np.array_equal(spec.counts, spec_of("full_softmax").counts)


def test_disturbed_calls_do_not_decide(choose):
    assert choose("slow", "fast, mostly disturbed")[0].form == "fast, mostly disturbed"


def test_if_every_form_fails_the_reason_is_raised(choose):
    with pytest.raises(RuntimeError, match="no kernel"):
        choose("unsupported")


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs PyTorch, whose two-level layers have several forms")
def test_the_chosen_form_is_the_one_that_is_timed(monkeypatch):
    methods = []

    def choose_second(framework, spec, inputs, device, progress):
        forms = layers.forms(framework, spec)
        methods.append(spec.method)
        labels = [form.label for form in forms]
        return (dataclasses.replace(spec, form=forms[1].id), dict.fromkeys(labels, 1.0)) if forms else (spec, {})

    monkeypatch.setattr(timing, "fastest_form", choose_second)
    settings = {
        "quantities": ("layer_seconds", "peak_bytes"),
        "processes": 1,
        "rounds": 6,
        "budget": 0.0,
        "checked_tokens": 8,
        "longest_step": 0.0,
        "slow_precision": "measure",
        "baseline_bias": True,
    }
    cell = Cell("s", "timing", "torch", "sohsm", vocab=60, dim=8, tokens=40, settings=settings)
    measurements = by_quantity(row_of(timing, cell))
    labels = [form.label for form in layers.forms("torch", spec_of("sohsm"))]
    assert measurements["layer_seconds"].detail["formulation"] == labels[1]
    assert measurements["layer_seconds"].detail["tried"] == dict.fromkeys(labels, 1.0)
    assert measurements["peak_bytes"].value >= 0
    assert methods == ["sohsm", "full_softmax"]
