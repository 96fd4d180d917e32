"""Bad input to the contract: a ValueError that names the argument, its value and what is allowed."""

from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.impls.optimizers import Optimizer

COUNTS = np.array([9, 5, 3, 1, 1])
HIDDEN = np.zeros((2, 4))


def layer():
    return layers.create("numpy", "full_softmax", counts=COUNTS, dim=4)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([3], "counts holds 1 words"),
        ([], "counts holds 0 words"),
        ([[1, 2]], "one dimension"),
        ([3, -1], r"counts\[1\]=-1 is negative"),
        ([3, 1.5], r"counts\[1\]=1.5 is not whole"),
        ([3, float("nan")], r"counts\[1\] is not finite"),
        ([0, 0], "all zero"),
        (["a", "b"], "whole numbers"),
    ],
)
def test_counts(counts, message):
    with pytest.raises(ValueError, match=message):
        layers.create("numpy", "full_softmax", counts=counts, dim=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim=0"),
        ({"dim": 2.5}, "dim=2.5"),
        ({"seed": -1}, "seed=-1"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
        ({"dtype": "float32"}, "the oracle's precision"),
        ({"device": "cuda"}, "unknown device of numpy 'cuda'"),
        ({"gamma": 2.0}, "unknown option of full_softmax 'gamma'"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.create("numpy", "full_softmax", **{"counts": COUNTS, "dim": 4, **arguments})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"projection": "rlu"}, "projection='rlu': allowed: 'relu', 'linear', 'residual', 'cluster_residual', 'none'"),
        ({"bias": 1}, "bias=1"),
        ({"gamma": 0.5}, "gamma=0.5"),
        ({"gamma": float("nan")}, "gamma=nan"),
        ({"interval": 2.5}, "interval=2.5"),
        ({"clusters": 6}, "no room|6 clusters"),
        ({"intervall": 3}, "did you mean 'interval'"),
    ],
)
def test_options(options, message):
    with pytest.raises(ValueError, match=message):
        layers.create("numpy", "sohsm", counts=COUNTS, dim=4, **options)


def test_names():
    with pytest.raises(ValueError, match="unknown framework 'pytorch'"):
        layers.create("pytorch", "sohsm", counts=COUNTS, dim=4)
    with pytest.raises(ValueError, match="did you mean 'sohsm'"):
        layers.create("numpy", "sohms", counts=COUNTS, dim=4)


@pytest.mark.parametrize(
    ("hidden", "targets", "message"),
    [
        (np.zeros((2, 3)), [0, 1], r"hidden has shape \(2, 3\): allowed: \(N, 4\)"),
        (np.zeros(4), [0], "hidden has shape"),
        (np.zeros((0, 4)), [], "hidden has shape"),
        (np.zeros((2, 4), dtype=int), [0, 1], "floating point"),
        (np.array([[0, 0, np.nan, 0]]), [0], r"hidden\[0, 2\]=nan is not finite"),
        (HIDDEN, [0, 5], r"targets\[1\]=5: allowed: word ids from 0 to 4"),
        (HIDDEN, [-1, 0], r"targets\[0\]=-1"),
        (HIDDEN, [0], r"targets has shape \(1,\)"),
        (HIDDEN, [0.0, 1.0], "whole numbers"),
    ],
)
def test_inputs(hidden, targets, message):
    for method in (layer().loss, layer().loss_and_grads, layer().target_log_probs):
        with pytest.raises(ValueError, match=message):
            method(hidden, targets)


@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_hidden_vectors_of_every_kind_of_array(framework):
    given = layers.create(framework, "full_softmax", counts=COUNTS, dim=4)
    plain = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    fixed = plain.copy()
    fixed.flags.writeable = False
    expected = given.loss(plain, [0, 3])
    backwards = np.ascontiguousarray(plain[:, ::-1])[:, ::-1]
    for hidden in (fixed, backwards, plain.astype(">f4"), plain.astype(np.longdouble), plain.tolist()):
        assert given.loss(hidden, [0, 3]) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match=r"hidden\[0, 0\]=.* is not finite"):
        given.loss(np.full((2, 4), np.longdouble("1e4000")), [0, 3])
    half = plain.astype(pytest.importorskip("ml_dtypes").bfloat16)
    assert given.loss(half, [0, 3]) == pytest.approx(given.loss(half.astype(np.float32), [0, 3]), rel=1e-6)


@pytest.mark.parametrize("k", [0, 6, -1, 2.0, True])
def test_k(k):
    with pytest.raises(ValueError, match="from 1 to 5, the vocabulary"):
        layer().topk(HIDDEN, k)


@pytest.mark.parametrize("width", [2, 6, 3.0, True])
def test_width(width):
    with pytest.raises(ValueError, match="from 3 to 5, the vocabulary"):
        layer().beam(HIDDEN, 3, width)


@pytest.mark.parametrize(
    ("uniforms", "message"),
    [
        ([0.5, 0.5], r"uniforms has shape \(2,\).*allowed: \(2, 1\)"),
        ([[0], [0]], "floating point"),
        ([[0.5], [1.0]], "from 0, below 1"),
        ([[0.5], [np.nan]], "from 0, below 1"),
        ([[-0.1], [0.5]], "from 0, below 1"),
    ],
)
def test_uniforms(uniforms, message):
    with pytest.raises(ValueError, match=message):
        layer().sample(HIDDEN, np.array(uniforms))


def test_prepared_work():
    with pytest.raises(ValueError, match="unknown work 'top'"):
        layer().prepare("top", HIDDEN)
    with pytest.raises(ValueError, match=r"targets is missing: allowed: \(2,\) word ids"):
        layer().prepare("layer", HIDDEN)
    for calls in (0, 1.0, True, "2"):
        with pytest.raises(ValueError, match=f"calls={calls!r}: allowed: a whole number from 1 on"):
            layer().prepare("topk", HIDDEN, calls=calls)  # type: ignore[arg-type]


def test_prepared_work_is_waited_for_after_all_of_its_calls(monkeypatch):
    done = []
    ours = layer()
    monkeypatch.setattr(ours, "_prepare", lambda job: lambda: done.append("begun") or len(done))
    monkeypatch.setattr(ours, "_wait", done.append)
    run = ours.prepare("topk", HIDDEN, calls=3)
    assert not done
    run()
    assert done == ["begun", "begun", "begun", 3]


def test_parameters():
    right = layer().parameters()
    cases: list[tuple[Any, str]] = [
        ({"weight": right["weight"]}, r"missing \['bias'\]"),
        ({**right, "extra": right["bias"]}, r"unexpected \['extra'\]"),
        ({**right, "bias": np.zeros(4)}, r"bias of full_softmax has shape \(4,\): allowed: \(5,\)"),
        ({**right, "bias": np.full(5, np.inf)}, "has NaN, infinity or values beyond float64"),
        ({**right, "bias": np.array([0, 0, np.nan, 0, 0])}, "has NaN"),
        ({**right, "bias": np.array(["1"] * 5)}, "bias of full_softmax has dtype <U1: allowed: numbers"),
        ({**right, "bias": np.zeros(5, complex)}, "has dtype complex128"),
        ({**right, "bias": np.zeros(5, "M8[s]")}, "has dtype datetime64"),
        ({**right, "bias": np.zeros(5, object)}, "has dtype object"),
        ({**right, "bias": [[0, 0], [0, 0, 0]]}, "bias of full_softmax is no array: allowed: numbers"),
        ([right["weight"], right["bias"]], "parameters of full_softmax: list: allowed: a dictionary"),
    ]
    layer().load({name: value.astype(np.float32) for name, value in right.items()})
    for wrong, message in cases:
        with pytest.raises(ValueError, match=message):
            layer().load(wrong)


def test_numbers_that_a_precision_cannot_hold():
    framework = next((name for name in registry.installed_frameworks() if name != "numpy"), None)
    if framework is None:
        pytest.skip("needs a framework with float32")
    single, large = layers.create(framework, "full_softmax", counts=COUNTS, dim=4), np.full((5, 4), 1e300)
    layer().loss(large[:2] / 1e300, [0, 3])
    with pytest.raises(ValueError, match=r"hidden\[0, 0\]=1e\+300 is not finite in float32"):
        single.topk(large[:2], 2)
    with pytest.raises(ValueError, match="weight of full_softmax has NaN, infinity or values beyond float32"):
        single.load({**single.parameters(), "weight": large})


def test_values_of_another_kind():
    with pytest.raises(ValueError, match="unknown method of numpy None"):
        layers.create("numpy", None, counts=COUNTS, dim=4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown device of numpy 5"):
        layers.create("numpy", "full_softmax", counts=COUNTS, dim=4, device=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown dtype ''"):
        layers.create("numpy", "full_softmax", counts=COUNTS, dim=4, dtype="")
    with pytest.raises(ValueError, match="unknown work None"):
        layer().prepare(None, HIDDEN)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="optimizer='adam': allowed: an Optimizer"):
        layer().prepare("layer_step", HIDDEN, [0, 1], optimizer="adam")  # type: ignore[arg-type]
    for ragged in ([[0.0] * 4, [0.0]], "text"):
        with pytest.raises(ValueError, match="hidden"):
            layer().loss(ragged, [0, 1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="counts is no array"):
        layers.create("numpy", "full_softmax", counts=[[1], [1, 2]], dim=4)  # type: ignore[arg-type]


def test_optimizer_settings():
    for wrong in ({"name": "adagrd"}, {"learning_rate": -1.0}, {"epsilon": float("nan")}, {"beta1": 1.0}):
        with pytest.raises(ValueError, match="allowed"):
            Optimizer(**wrong)  # type: ignore[arg-type]
