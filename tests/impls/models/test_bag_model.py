"""The bag model of every framework against its definition."""

from dataclasses import replace

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.errors import BadInput, Unsupported
from vocabench.impls.models.bag_model import BagModelConfig
from vocabench.impls.optimizers import Optimizer

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", ["full_softmax", "class_hsm", "adaptive_softmax", "negative_sampling"])
def test_steps_are_the_definitions(framework, method):
    spec = layers.spec(method, counts=zipf_counts(60), dim=8, dtype="float64")
    config = BagModelConfig(inputs=31, optimizer=Optimizer(clip_norm=0.1, weight_decay=0.01), seed=3)
    models = [layers.create_network(name, spec, config) for name in (framework, "numpy")]
    rng = np.random.default_rng(0)
    for _ in range(4):
        bags_NJ = rng.integers(0, 31, (40, 5))
        bags_NJ[np.arange(5) >= rng.integers(1, 6, 40)[:, None]] = -1
        targets_N = rng.integers(0, 60, 40)
        losses = [float(model.step(bags_NJ, targets_N)) for model in models]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    ours, oracle = (model.parameters() for model in models)
    assert ours.keys() == oracle.keys() == models[0].parameter_shapes().keys()
    for name, value in oracle.items():
        np.testing.assert_allclose(ours[name], value, atol=1e-9, err_msg=name)
    sums = [model.evaluate(bags_NJ, targets_N) for model in models]
    assert sums[0] == pytest.approx(sums[1], rel=1e-9)
    models[0].load(models[0].initial_parameters())
    assert np.array_equal(models[0].parameters()["input"], models[0].initial_parameters()["input"])


def test_the_definitions_gradient_is_that_of_its_loss():
    """A step of plain descent moves every parameter by the loss's finite difference."""
    spec = layers.spec("full_softmax", counts=zipf_counts(7), dim=3, dtype="float64")
    plain = Optimizer(name="sgd", learning_rate=1.0, weight_decay=0.0, clip_norm=0.0)
    model = layers.create_network("numpy", spec, BagModelConfig(inputs=4, optimizer=plain))
    bags_NJ, targets_N = np.array([[0, 1], [3, -1], [1, 1]]), np.array([2, 0, 6])
    before = model.parameters()
    base = float(model.step(bags_NJ, targets_N))
    after = model.parameters()
    for place in ((0, 0), (1, 2), (2, 1), (3, 0)):
        nudged = {**before, "input": before["input"].copy()}
        nudged["input"][place] += 1e-6
        model.load(nudged)
        slope = (model.evaluate(bags_NJ, targets_N) / 3 - base) / 1e-6
        assert before["input"][place] - after["input"][place] == pytest.approx(slope, abs=1e-5)


BY_EXAMPLE = [("huffman", {}), ("negative_sampling", {"sharing": "token", "samples": 5, "bias": False})]


def examples(rng, count, inputs, vocab, width):
    bags_NJ = rng.integers(0, inputs, (count, width))
    bags_NJ[(rng.random((count, width)) < 0.3) & (np.arange(width) > 0)] = -1
    return bags_NJ, rng.integers(0, vocab, count)


@pytest.mark.parametrize(("method", "options"), BY_EXAMPLE)
def test_a_step_by_example_is_plain_descent_on_one_example(method, options):
    spec = layers.spec(method, counts=zipf_counts(60), dim=8, dtype="float64", **options)
    plain = Optimizer(name="sgd", learning_rate=0.3, weight_decay=0.0, clip_norm=0.0)
    ours, by_batches = (
        layers.create_network("numpy", spec, BagModelConfig(inputs=31, optimizer=plain, seed=3)) for _ in range(2)
    )
    bags_NJ, targets_N = examples(np.random.default_rng(0), 20, 31, 60, 3)
    for bag_J, target in zip(bags_NJ, targets_N, strict=True):
        loss = ours.step_by_example(bag_J[None], np.array([target]), (0.3, 0.3))
        assert float(loss) == pytest.approx(float(by_batches.step(bag_J[None], np.array([target]))), rel=1e-12)
    for name, value in by_batches.parameters().items():
        np.testing.assert_allclose(ours.parameters()[name], value, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("name", "size"), [("input_I", 0), ("output_R", 7)])
def test_sums_of_squares_of_another_size_are_refused(framework, name, size, monkeypatch):
    spec = layers.spec("huffman", counts=zipf_counts(60), dim=8)
    model = layers.create_network(framework, spec, BagModelConfig(inputs=31, seed=3))
    kernel = "output_squares" if name == "output_R" else "input_squares"
    monkeypatch.setattr(model, "_squares", replace(model._squares, **{name: np.ones(size, np.float32)}))
    try:
        with pytest.raises((BadInput, RuntimeError), match=kernel):  # XLA raises errors of its own
            float(model.step_by_example(np.array([[7]]), np.array([4]), (0.1, 0.1), adagrad=True))
    except Unsupported as error:
        pytest.skip(str(error))  # no compiler


def test_adagrad_divides_a_step_by_the_root_of_the_mean_squares_of_a_vectors_gradients():
    spec = layers.spec("huffman", counts=zipf_counts(60), dim=8, dtype="float64")
    plain, scaled = (layers.create_network("numpy", spec, BagModelConfig(inputs=31, seed=3)) for _ in range(2))
    first = plain.initial_parameters()["input"][7]
    bag, target = np.array([[7]]), np.array([4])
    squares, expected = 1e-6, first.copy()
    for _ in range(3):
        before = scaled.parameters()
        plain.load(before)
        plain.step_by_example(bag, target, (1.0, 1.0))
        gradient = before["input"][7] - plain.parameters()["input"][7]
        squares += np.mean(gradient**2)
        expected -= 0.3 * gradient / np.sqrt(squares)
        scaled.step_by_example(bag, target, (0.3, 0.3), adagrad=True)
    np.testing.assert_allclose(scaled.parameters()["input"][7], expected, rtol=1e-12)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("adagrad", [False, True], ids=["sgd", "adagrad"])
@pytest.mark.parametrize(("method", "options"), BY_EXAMPLE)
def test_steps_by_example_are_the_definitions(framework, method, options, adagrad, width):
    models = []
    for name, dtype in ((framework, "float32"), ("numpy", "float64")):
        spec = layers.spec(method, counts=zipf_counts(60), dim=37, dtype=dtype, **options)
        models.append(layers.create_network(name, spec, BagModelConfig(inputs=31, seed=3)))
    rng = np.random.default_rng(1)
    for _ in range(2):
        batch = examples(rng, 300, 31, 60, width)
        try:
            losses = [float(model.step_by_example(*batch, (0.5, 0.1), adagrad=adagrad)) for model in models]
        except Unsupported as error:
            pytest.skip(str(error))  # no compiler
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    ours, oracle = (model.parameters() for model in models)
    for name, value in oracle.items():
        np.testing.assert_allclose(ours[name], value, atol=2e-5, err_msg=name)
    assert np.abs(oracle["input"] - models[1].initial_parameters()["input"]).max() > 0.1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_examples_out_of_range_are_refused_and_change_nothing(framework):
    spec = layers.spec("huffman", counts=zipf_counts(60), dim=8)
    model = layers.create_network(framework, spec, BagModelConfig(inputs=31))
    before = model.parameters()
    for bags_NJ, targets_N, message in (
        ([[31]], [0], r"bags\[0, 0\]=31: allowed: word ids from -1 to 30"),
        ([[2**32]], [0], r"bags\[0, 0\]=4294967296"),
        ([[0.5]], [0], "bags has dtype float64"),
        ([[-1]], [0], r"bags\[0\] holds no input: allowed: at least one"),
        ([[0], [1]], [0], r"bags have shape \(2, 1\): allowed: \(1, J\)"),
        ([[0]], [60], r"targets\[0\]=60"),
        ([[0]], [-1], r"targets\[0\]=-1"),
    ):
        with pytest.raises(BadInput, match=message):
            model.step_by_example(np.array(bags_NJ), np.array(targets_N), (0.1, 0.1))
    after = model.parameters()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_layer_without_binary_decisions_is_refused():
    for method, options in (("full_softmax", {}), ("negative_sampling", {"bias": False}), ("class_hsm", {})):
        model = layers.create_network(
            "numpy",
            layers.spec(method, counts=zipf_counts(60), dim=8, dtype="float64", **options),
            BagModelConfig(inputs=3),
        )
        with pytest.raises(BadInput, match=f"single examples with {method}: allowed: trees"):
            model.step_by_example(np.array([[0]]), np.array([0]), (0.1, 0.1))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_threads_share_the_examples(framework):
    """Without locks the results differ, but the loss of the whole falls as with one thread."""
    spec = layers.spec("huffman", counts=zipf_counts(60), dim=16)
    rng = np.random.default_rng(2)
    bags_NJ = rng.integers(0, 60, (4000, 1))
    targets_N = (bags_NJ[:, 0] + 1) % 60
    falls = []
    for threads in (1, 2):
        model = layers.create_network(framework, spec, BagModelConfig(inputs=60))
        try:
            losses = [float(model.step_by_example(bags_NJ, targets_N, (0.1, 0.1), threads=threads)) for _ in range(5)]
        except Unsupported as error:
            pytest.skip(str(error))
        falls.append(losses[-1] / losses[0])
    assert falls[0] < 0.8
    assert falls[1] == pytest.approx(falls[0], abs=0.1)


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", ["full_softmax", "huffman", "class_hsm", "negative_sampling"])
def test_a_frozen_output_layer_does_not_move(framework, method):
    """Inference of document vectors: the inputs agree between frameworks, and nothing else changes."""
    spec = layers.spec(method, counts=zipf_counts(60), dim=8, dtype="float64")
    config = BagModelConfig(inputs=6, optimizer=Optimizer(clip_norm=0.1), seed=3, frozen_output=True)
    models = [layers.create_network(name, spec, config) for name in (framework, "numpy")]
    rng = np.random.default_rng(1)
    trained = {
        name: rng.standard_normal(value.shape) if name.startswith("output.") else value
        for name, value in models[0].initial_parameters().items()
    }
    for model in models:
        model.load(dict(trained))
    for _ in range(4):
        bags_N1, targets_N = rng.integers(0, 6, (40, 1)), rng.integers(0, 60, 40)
        losses = [float(model.step(bags_N1, targets_N)) for model in models]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    ours, oracle = (model.parameters() for model in models)
    assert ours.keys() == oracle.keys() == trained.keys()
    np.testing.assert_allclose(ours["input"], oracle["input"], atol=1e-9)
    assert np.abs(ours["input"] - trained["input"]).max() > 0.01
    for name in trained.keys() - {"input"}:
        assert np.array_equal(oracle[name], trained[name]), name
        np.testing.assert_allclose(ours[name], trained[name], atol=1e-12, err_msg=name)


def test_a_document_is_inferred_as_if_it_were_alone():
    """With SGD and a fixed output layer, a document's vector depends on its own words only."""
    spec = layers.spec("full_softmax", counts=zipf_counts(20), dim=4, dtype="float64")
    plain = Optimizer(name="sgd", learning_rate=0.5, weight_decay=0.0, clip_norm=0.0)
    rng = np.random.default_rng(2)
    weight, words_N = rng.standard_normal((20, 4)), rng.integers(0, 20, 12)
    inferred = []
    for others in (4, 9):
        model = layers.create_network("numpy", spec, BagModelConfig(inputs=4, optimizer=plain, frozen_output=True))
        start = model.initial_parameters()
        model.load({**start, "output.weight": weight})
        documents_N = np.r_[np.zeros(6, dtype=np.int64), 1 + rng.integers(0, 3, 6)]
        targets_N = np.r_[words_N[:6], np.full(6, others)]
        for _ in range(3):
            model.step(documents_N[:, None], targets_N)
        inferred.append(model.parameters()["input"])
    np.testing.assert_allclose(inferred[0][0], inferred[1][0], atol=1e-12)
    assert not np.allclose(inferred[0][1], inferred[1][1])
