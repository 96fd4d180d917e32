"""Every method of every installed framework against the oracle; a new file below impls/ is met here as it is."""

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite
from vocabench.harness.tasks import agreement as agreement_task
from vocabench.impls.contract import WORK
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.optimizers import Optimizer

pytestmark = pytest.mark.many_cells

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
PAIRS = [(framework, method) for framework in FRAMEWORKS for method in registry.methods(framework)]
CELLS = [c for c in Suite.load("check").cells(Selection(frameworks=FRAMEWORKS))] if FRAMEWORKS else []


def make(framework, method, vocab=97, dim=24, dtype="float64", **options):
    return layers.create(framework, method, counts=zipf_counts(vocab), dim=dim, seed=5, dtype=dtype, **options)


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def pair(request):
    """Framework and method: the tests of one pair follow each other, and share layers."""
    return request.param


@lru_cache(maxsize=2)  # precisions
def shared(framework, method, dtype):
    return make(framework, method, dtype=dtype)


def anew(pair, dtype):
    """The pair's layer with its initial parameters; what an earlier test compiled of it is there."""
    layer = shared(*pair, dtype)
    layer.load(layer.spec.initial_parameters())
    return layer


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: f"{c.framework}-{c.method}-{c.precision}")
def test_agrees_with_the_oracle(cell: Cell):
    result = agreement_task.run(cell, lambda text: None)
    assert result.agreement["disagreements"] == []
    assert result.agreement["verdict"] == "agree"


@pytest.mark.parametrize(("framework", "method"), PAIRS)
def test_starts_from_the_oracles_parameters_and_gives_back_what_it_loads(framework, method):
    layer, oracle = make(framework, method), make("numpy", method)
    for name, value in oracle.parameters().items():
        assert np.array_equal(layer.parameters()[name], value)
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(shape) for name, shape in layer.spec.parameter_shapes().items()}
    layer.load(params)
    assert all(np.array_equal(layer.parameters()[name], value) for name, value in params.items())
    assert layer.structure().keys() == oracle.structure().keys()


def test_extreme_logits_stay_finite_and_right(pair):
    layer = anew(pair, "float32")
    layer.load({name: 40 * value for name, value in layer.parameters().items()})
    inputs = batch(layer.spec.counts, tokens=301, dim=24, seed=2)
    _, dhidden_ND, grads = layer.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    assert np.isfinite(dhidden_ND).all()
    assert all(np.isfinite(grad).all() for grad in grads.values())
    found = agreement.check_layer(layer, inputs, k=10)
    assert [str(c) for c in found if not c.agrees] == []


def test_targets_that_are_all_one_word(pair):
    layer = anew(pair, "float64")
    inputs = batch(layer.spec.counts, tokens=301, dim=24, seed=3)
    for word in (0, 96):
        same = type(inputs)(inputs.hidden_ND, np.full(301, word))
        assert [str(c) for c in agreement.check_layer(layer, same, k=10) if not c.agrees] == []


@pytest.mark.parametrize(("framework", "method"), PAIRS)
def test_the_smallest_vocabularies(framework, method):
    for vocab in (2, 3) if framework != "jax" else (3,):  # compiling for each takes JAX most of the time
        layer = make(framework, method, vocab=vocab, dim=3)
        inputs = batch(layer.spec.counts, tokens=9, dim=3, seed=4)
        found = [*agreement.check_layer(layer, inputs, k=vocab), agreement.check_ties(layer, inputs, k=vocab)]
        assert [str(c) for c in found if not c.agrees] == []


@pytest.mark.parametrize(("framework", "method"), PAIRS)
def test_topk_is_exact_from_flat_to_peaked(framework, method):
    """Bounds settle every row of a peaked distribution, no row of a flat one; coarse parameters make ties."""
    layer, oracle = (make(name, method, vocab=600, dim=12) for name in (framework, "numpy"))
    for scale in (0.0, 0.5, 3.0, 30.0):
        rng = np.random.default_rng(8)
        params = {name: scale * rng.standard_normal(value.shape) for name, value in oracle.parameters().items()}
        if scale == 0.5:
            params = {name: np.round(2 * value) / 2 for name, value in params.items()}
        for one in (layer, oracle):
            one.load(params)
        rows = 400 if framework == "torch" else 120  # so many that no layer prefers to score all words
        hidden_ND = rng.standard_normal((rows, 12))
        log_probs_NV = oracle.log_probs(hidden_ND)
        for k in (1, 10, 300, 600) if framework == "torch" else (1, 300):  # the others trace or compile for each
            values_NK, ids_NK = layer.topk(hidden_ND, k)
            expected_NK, _ = oracle.topk(hidden_ND, k)
            np.testing.assert_allclose(values_NK, expected_NK, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(np.take_along_axis(log_probs_NV, ids_NK, 1), expected_NK, rtol=1e-9, atol=1e-9)
            assert all(len(np.unique(row)) == k for row in ids_NK)
            share_N = layer.expanded_share(hidden_ND, k)
            assert share_N.shape == (rows,)
            assert (share_N > 0).all()
            assert (share_N <= 1).all()


@pytest.mark.parametrize(("framework", "method"), PAIRS)
def test_samples_and_beams_are_the_oracles(framework, method):
    """The same words from the same uniform numbers, the extreme ones among them; the same beams of any width."""
    layer, oracle = (make(name, method, vocab=300, dim=12) for name in (framework, "numpy"))
    for scale in (0.0, 1.0, 30.0):
        rng = np.random.default_rng(9)
        params = {name: scale * rng.standard_normal(value.shape) for name, value in oracle.parameters().items()}
        for one in (layer, oracle):
            one.load(params)
        hidden_ND = rng.standard_normal((200, 12))
        uniforms_NU = rng.random((200, layer.spec.draws))
        uniforms_NU[:2] = [[0.0], [1 - 1e-12]]
        assert layer.sample(hidden_ND, uniforms_NU).tolist() == oracle.sample(hidden_ND, uniforms_NU).tolist()
        # With all parameters zero, every choice of a beam is a tie.
        for k, width in ((1, 1), (5, 20), (10, 300), (300, 300)) if scale else ():
            values_NK, ids_NK = layer.beam(hidden_ND, k, width)
            expected_NK, expected_ids_NK = oracle.beam(hidden_ND, k, width)
            np.testing.assert_allclose(values_NK, expected_NK, rtol=1e-9, atol=1e-9)
            assert ids_NK.tolist() == expected_ids_NK.tolist()
        if scale and "children" in layer.spec.structure:  # two levels of a tree at a time
            values_NK, ids_NK = layer.beam(hidden_ND, 5, 20, 2)
            expected_NK, expected_ids_NK = oracle.beam(hidden_ND, 5, 20, 2)
            np.testing.assert_allclose(values_NK, expected_NK, rtol=1e-9, atol=1e-9)
            assert ids_NK.tolist() == expected_ids_NK.tolist()


def test_prepared_work_runs_and_a_step_learns(pair):
    layer = anew(pair, "float32")
    inputs = batch(layer.spec.counts, tokens=301, dim=24, seed=6)
    for work in WORK:
        layer.prepare(work, inputs.hidden_ND, inputs.targets_N, k=10, width=30)()
    before = layer.loss(inputs.hidden_ND, inputs.targets_N)
    step = layer.prepare("layer_step", inputs.hidden_ND, inputs.targets_N, optimizer=Optimizer(clip_norm=0.0))
    for _ in range(5):
        step()
    assert layer.loss(inputs.hidden_ND, inputs.targets_N) < before - 0.1


# Every optimizer with the layers that differ most in their parameters; the others with one.
OPTIMIZED = [(f, m, "adagrad") for f, m in PAIRS]
OPTIMIZED += [(f, m, name) for f, m in PAIRS for name in ("adam", "sgd") if m in ("full_softmax", "sohsm", "huffman")]


@pytest.mark.parametrize(("framework", "method", "name"), OPTIMIZED)
def test_the_optimizer_means_the_same_in_parameters_too(framework, method, name):
    """Parameters after steps, not only losses; a high weight decay and a low clip so that both matter."""
    optimizer = Optimizer(name=name, learning_rate=0.02, weight_decay=0.01, clip_norm=0.1, epsilon=1e-8)
    config = LanguageModelConfig(embedding=7, hidden=9, optimizer=optimizer, seed=1)
    counts_V = zipf_counts(41)
    spec = layers.spec(method, counts=counts_V, dim=9, dtype="float64")
    models = [layers.create_network(f, spec, config) for f in (framework, "numpy")]
    text_BT = np.random.default_rng(0).integers(0, 41, (3, 31)).astype(np.int32)
    for model in models:
        for step in range(6):
            if step == 3:
                model.reorganize()
            start = 5 * step
            window = (text_BT[:, start : start + 5], text_BT[:, start + 1 : start + 6])
            model.step(*window, carry=step > 0)
    ours, oracle = (model.parameters() for model in models)
    assert ours.keys() == oracle.keys() == models[0].parameter_shapes().keys()
    for key, value in oracle.items():
        np.testing.assert_allclose(ours[key], value, rtol=0, atol=1e-9, err_msg=key)
    sums = [model.evaluate(text_BT[:, :7], text_BT[:, 1:8], carry=False) for model in models]
    assert sums[0].keys() == sums[1].keys()
    for key, value in sums[1].items():
        assert sums[0][key] == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(models[0].hidden(text_BT[:, :4]), models[1].hidden(text_BT[:, :4]), atol=1e-9)


# Each optimizer with rows that do change without a gradient and rows that do not, where it has both.
BY_ROWS = [
    ("huffman", "adagrad", 0.0),
    ("huffman", "adagrad", 0.01),
    ("huffman", "adam", 0.0),
    ("sampled_softmax", "sgd", 0.01),
    ("sampled_softmax", "adam", 0.01),
    ("nce", "adagrad", 0.0),
    ("sohsm", "adam", 0.01),
    ("sohsm", "sgd", 0.0),
]


@pytest.mark.parametrize(("method", "name", "decay"), BY_ROWS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_row_sparse_updates_give_what_dense_ones_give(framework, method, name, decay):
    """In the whole model, weight decay, clipping, slots and a re-organization included, and a read in between."""
    dense = Optimizer(name=name, learning_rate=0.02, weight_decay=decay, clip_norm=0.1, epsilon=1e-8)
    counts_V = zipf_counts(350)
    options: dict[str, Any] = {"normaliser": "learned"} if method == "nce" else {}
    spec = layers.spec(method, counts=counts_V, dim=9, dtype="float64", **options)
    models = [
        layers.create_network(f, spec, LanguageModelConfig(embedding=7, hidden=9, optimizer=o, seed=1))
        for f, o in ((framework, dataclasses.replace(dense, row_sparse=True)), ("numpy", dense))
    ]
    text_BT = np.random.default_rng(0).integers(0, 350, (2, 33)).astype(np.int32)
    for step in range(8):
        for model in models:
            if step == 4:
                model.reorganize()
            window = (text_BT[:, 4 * step : 4 * step + 4], text_BT[:, 4 * step + 1 : 4 * step + 5])
            model.step(*window, carry=step > 0)
        if step in (4, 7):
            ours, oracle = (model.parameters() for model in models)
            for key, value in oracle.items():
                np.testing.assert_allclose(ours[key], value, rtol=0, atol=1e-9, err_msg=key)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_whatever_reads_a_row_sparse_model_finds_it_up_to_date(framework):
    dense = Optimizer(learning_rate=0.5, weight_decay=0.1)
    spec = layers.spec("huffman", counts=zipf_counts(350), dim=9, dtype="float64")
    models = [
        layers.create_network(f, spec, LanguageModelConfig(embedding=7, hidden=9, optimizer=o))
        for f, o in ((framework, dataclasses.replace(dense, row_sparse=True)), ("numpy", dense))
    ]
    text_BT = np.random.default_rng(0).integers(0, 350, (2, 5)).astype(np.int32)
    other_BT = np.random.default_rng(1).integers(0, 350, (2, 5)).astype(np.int32)

    def read(model, how):
        model.step(text_BT[:, :-1], text_BT[:, 1:], carry=False)
        return how(model)

    for how in (
        lambda model: model.evaluate(other_BT[:, :-1], other_BT[:, 1:], carry=False)["nll"],
        lambda model: model.hidden(other_BT),
        lambda model: model.prime(other_BT, 3)[0],
    ):
        ours, oracle = (read(model, how) for model in models)
        np.testing.assert_allclose(ours, oracle, rtol=1e-9)


SEVERAL_CODES = {"tree": "adaptive_eps", "eps": 0.4, "vectors": np.random.default_rng(7).standard_normal((600, 3))}


@pytest.mark.parametrize(
    ("method", "name", "decay", "options", "extra"),
    [
        ("huffman", "adagrad", 0.0, {}, {}),
        ("binary_tree", "adam", 0.0, SEVERAL_CODES, {}),
        ("sampled_softmax", "adagrad", 0.01, {"samples": 40}, {"correction": np.linspace(-3.0, 3.0, 600)}),
    ],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_row_sparse_step_of_the_layer_alone(framework, method, name, decay, options, extra):
    """With reads in between of rows that the steps have left behind, and of the gradient as it is without a step."""
    dense = Optimizer(name=name, clip_norm=0.1, weight_decay=decay, epsilon=1e-8)
    ours, oracle = (make(f, method, vocab=600, **options) for f in (framework, "numpy"))
    assert ours.reaches_few_rows()
    inputs, other = (batch(ours.spec.counts, tokens=40, dim=24, seed=seed) for seed in (6, 7))
    losses = []
    for layer, optimizer in ((ours, dataclasses.replace(dense, row_sparse=True)), (oracle, dense)):
        step = layer.prepare("layer_step", inputs.hidden_ND, inputs.targets_N, optimizer=optimizer, **extra)
        for steps in (3, 1):
            for _ in range(steps):
                step()
            losses.append(layer.loss(other.hidden_ND, other.targets_N))
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-9)
    for key, value in oracle.parameters().items():
        np.testing.assert_allclose(ours.parameters()[key], value, rtol=0, atol=1e-9, err_msg=key)
    grads = ours.loss_and_grads(other.hidden_ND, other.targets_N)[2]
    for key, value in oracle.loss_and_grads(other.hidden_ND, other.targets_N)[2].items():
        np.testing.assert_allclose(grads[key], value, rtol=0, atol=1e-9, err_msg=key)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_layer_that_reaches_most_rows_says_so(framework):
    assert not make(framework, "full_softmax").reaches_few_rows()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_reorganizing_leaves_what_the_layer_computes_for_a_word(framework):
    """Word vectors follow their words: the in-cluster scores move with them, parameters in vocabulary order stay."""
    config = LanguageModelConfig(embedding=6, hidden=8)
    counts_V = zipf_counts(150)
    spec = layers.spec("sohsm", counts=counts_V, dim=8, dtype="float32", bias=True)
    model = layers.create_network(framework, spec, config)
    text_BT = np.random.default_rng(1).integers(0, 150, (4, 6)).astype(np.int32)
    float(model.step(text_BT[:, :-1], text_BT[:, 1:], carry=False))
    before = model.parameters()
    change = model.reorganize()
    assert change is not None
    assert (change[0] != change[1]).any()
    after = model.parameters()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_flipped_sign_is_found_and_named(framework, monkeypatch):
    layer = make(framework, "huffman", dtype="float32")
    inputs = batch(layer.spec.counts, tokens=20, dim=24, seed=7)
    truth = layer._loss_and_grads

    def flipped(*arguments, **extra):
        loss, dhidden_ND, grads = truth(*arguments, **extra)
        return loss, -dhidden_ND, grads

    monkeypatch.setattr(layer, "_loss_and_grads", flipped)
    found = agreement.check_layer(layer, inputs, k=3)
    wrong = [c.quantity for c in found if not c.agrees]
    assert wrong == ["grad_hidden", "grad_hidden with token_weight, label_smoothing"]
    assert agreement.summary(found)["verdict"] == "disagree"


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("scale", [1.0, np.nan])
def test_steps_in_bfloat16_that_change_nothing_or_leave_no_number_are_found(framework, scale, monkeypatch):
    layer = shared(framework, "full_softmax", "bfloat16")
    inputs = batch(layer.spec.counts, tokens=20, dim=24, seed=7)
    truth = layer.loss

    def prepare(*arguments, **named):
        return lambda: monkeypatch.setattr(layer, "loss", lambda *inputs: scale * truth(*inputs))

    monkeypatch.setattr(layer, "prepare", prepare)
    found = agreement.check_descent(layer, inputs, agreement.TRAINING_OPTIMIZERS["bfloat16"])
    assert not found.agrees


@pytest.mark.parametrize("dropped", ["token_weight", "label_smoothing", "z_loss", "softcap"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_loss_without_a_part_of_its_objective_is_found(framework, dropped, monkeypatch):
    layer = shared(framework, "full_softmax", "float32")
    layer.load(layer.spec.initial_parameters())
    whole = layer.loss_and_grads

    def partial(*inputs, **options):
        return whole(*inputs, **{name: value for name, value in options.items() if name != dropped})

    monkeypatch.setattr(layer, "loss_and_grads", partial)
    found = agreement.check_layer(layer, batch(layer.spec.counts, tokens=20, dim=24, seed=7), k=5)
    wrong = {c.quantity.partition(" with ")[0] for c in found if not c.agrees}
    assert {"loss", "grad_hidden", "gradient of weight"} <= wrong


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_device_that_is_not_here_is_refused(framework):
    with pytest.raises(ValueError, match="allowed"):
        layers.create(framework, "full_softmax", counts=zipf_counts(9), dim=3, device="cuda:99")
