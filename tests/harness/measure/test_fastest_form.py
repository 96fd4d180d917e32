"""The ways to compute a layer: all of them agree with the definition, and the fastest one here is taken."""

import dataclasses
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

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]


def spec_of(method, dtype="float32", vocab=97):
    return layers.spec(method, counts=zipf_counts(vocab), dim=24, seed=5, dtype=dtype)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_form_computes_the_same(framework):
    """But the first of each layer, which all other tests take; layers of the same forms share their code."""
    found, seen = [], set()
    for method in ("fused_softmax", "sohsm", "huffman", *registry.methods(framework)):
        # PyTorch's forms for GPUs run nowhere else, nor do JAX's kernels.
        on_gpu = layers.forms(framework, spec_of(method), "cuda") if framework != "torch" else ()
        on_gpu = (form for form in on_gpu if form != "Pallas kernels")
        names = tuple(dict.fromkeys((*layers.forms(framework, spec_of(method)), *on_gpu)))
        if names in seen:
            continue
        seen.add(names)
        for form in names[1:]:
            spec = dataclasses.replace(spec_of(method), form=form)
            layer = layers.from_spec(framework, spec)
            assert form in layer.formulation()
            inputs = batch(spec.counts, tokens=301, dim=24, seed=5)
            found += agreement.check_layer(layer, inputs, k=10, whole_vocabulary=False)
    assert [str(c) for c in found if not c.agrees] == []
    assert len(found) > len(seen) > 1


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs PyTorch")
@pytest.mark.parametrize("method", ["sohsm", "class_hsm"])
def test_large_clusters_of_torch_are_decoded_by_the_loop(method, monkeypatch):
    from vocabench.impls.on_torch.two_level import cluster_softmax

    taken = []
    scores = cluster_softmax.scores
    monkeypatch.setattr(cluster_softmax, "scores", lambda *given: taken.append(given[-1].form) or scores(*given))
    spec = dataclasses.replace(layers.spec(method, counts=zipf_counts(2000), dim=1536), form=cluster_softmax.GROUPED)
    layer, inputs = layers.from_spec("torch", spec), batch(spec.counts, tokens=12, dim=1536, seed=0)
    found = agreement.check_layer(layer, inputs, k=10, whole_vocabulary=False)
    assert [str(c) for c in found if not c.agrees] == []
    assert cluster_softmax.GROUPED in taken
    taken.clear()
    layer.beam(inputs.hidden_ND, 10, 10)
    layer.sample(inputs.hidden_ND, np.full((12, spec.draws), 0.5))
    assert cluster_softmax.LOOP in taken


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_form_that_there_is_not_is_refused(framework):
    spec = dataclasses.replace(spec_of("fused_softmax"), form="blocks of one")
    with pytest.raises(BadInput, match=r"unknown form of fused_softmax 'blocks of one': .*allowed: blocks of (16|2),"):
        layers.from_spec(framework, spec)


def test_an_oracle_has_no_forms_and_nothing_is_tried():
    spec = spec_of("sohsm", dtype="float64")
    inputs = batch(spec.counts, tokens=9, dim=24, seed=5)
    assert fastest_form("numpy", spec, inputs, "cpu", pytest.fail) == (spec, {})


class Pretended:
    """A layer whose forward and backward take as long as its form says, or fail."""

    def __init__(self, form):
        self.form = form
        self.calls = 0

    def prepare(self, work, hidden_ND, targets_N, *, calls):
        assert (work, calls) == ("layer", 1)
        assert len(hidden_ND) == len(targets_N)

        def run():
            if self.form == "unknown to the device":
                raise RuntimeError("no kernel")
            self.calls += 1
            disturbed = self.form == "fast, mostly disturbed" and self.calls % 5
            time.sleep({"slow": 0.02, "fast": 0.002}.get(self.form, 0.05 if disturbed else 0.001))

        return run


def test_the_fastest_form_is_taken_and_one_that_fails_is_passed_over(monkeypatch):
    names = ("unknown to the device", "slow", "fast")
    monkeypatch.setattr(layers, "forms", lambda framework, spec, device: names)
    monkeypatch.setattr(layers, "from_spec", lambda framework, spec, device: Pretended(spec.form))
    spec, said = spec_of("full_softmax"), []
    chosen, seconds = fastest_form("torch", spec, batch(spec.counts, tokens=9, dim=24, seed=5), "cpu", said.append)
    assert chosen.form == "fast"
    assert float(seconds["slow"]) > float(seconds["fast"]) > 0
    assert seconds["unknown to the device"] == "no kernel"
    assert said == [f"trying {name}" for name in names]
    assert np.array_equal(chosen.counts, spec.counts)


def test_calls_that_are_disturbed_say_nothing_of_a_form(monkeypatch):
    monkeypatch.setattr(layers, "forms", lambda framework, spec, device: ("slow", "fast, mostly disturbed"))
    monkeypatch.setattr(layers, "from_spec", lambda framework, spec, device: Pretended(spec.form))
    spec = spec_of("full_softmax")
    inputs = batch(spec.counts, tokens=9, dim=24, seed=5)
    assert fastest_form("torch", spec, inputs, "cpu", lambda text: None)[0].form == "fast, mostly disturbed"


def test_where_every_form_fails_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(layers, "forms", lambda framework, spec, device: ("unknown to the device",))
    monkeypatch.setattr(layers, "from_spec", lambda framework, spec, device: Pretended(spec.form))
    spec = spec_of("full_softmax")
    with pytest.raises(RuntimeError, match="no kernel"):
        fastest_form("torch", spec, batch(spec.counts, tokens=9, dim=24, seed=5), "cpu", lambda text: None)


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs PyTorch, whose two-level layers have several forms")
def test_what_is_timed_is_the_form_that_was_taken(monkeypatch):
    tried = []

    def second(framework, spec, inputs, device, progress):
        names = layers.forms(framework, spec)
        tried.append(spec.method)
        return (dataclasses.replace(spec, form=names[1]), dict.fromkeys(names, 1.0)) if names else (spec, {})

    monkeypatch.setattr(timing, "fastest_form", second)
    settings = {"quantities": ("layer_seconds", "peak_bytes"), "rounds": 6, "budget": 0.0, "checked_tokens": 8}
    cell = Cell("s", "timing", "torch", "sohsm", vocab=60, dim=8, tokens=40, settings=settings)
    found = by_quantity(row_of(timing, cell))
    names = layers.forms("torch", spec_of("sohsm"))
    assert found["layer_seconds"]["detail"]["formulation"] == names[1]
    assert found["layer_seconds"]["detail"]["tried"] == dict.fromkeys(names, 1.0)
    assert found["peak_bytes"]["value"] >= 0
    assert tried == ["sohsm", "full_softmax"]
