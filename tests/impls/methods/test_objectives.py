"""Label smoothing, token weights, z-loss, capped logits, entropy and sampling options in the definitions."""

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.calls import has_z_loss
from vocabench.impls.errors import BadInput

pytestmark = pytest.mark.many_cells

VOCAB, DIM, TOKENS = 30, 6, 5
METHODS = registry.methods("numpy")


def made(method):
    layer = layers.create("numpy", method, counts=zipf_counts(VOCAB), dim=DIM)
    rng = np.random.default_rng(0)
    layer.load({name: value + 0.1 * rng.standard_normal(value.shape) for name, value in layer.parameters().items()})
    return layer, rng.standard_normal((TOKENS, DIM)), rng.integers(0, VOCAB, TOKENS), rng.random(TOKENS)


def options_of(method):
    """Return all parts of an objective that a method defines."""
    definition = registry.definition(method)
    smoothing = {} if definition.train_only_loss else {"label_smoothing": 0.1}
    return smoothing | ({"z_loss": 0.01, "softcap": 2.0} if has_z_loss(definition) else {})


@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_an_objective_are_its_finite_differences(method):
    layer, hidden_ND, targets_N, weight_N = made(method)
    options = {**options_of(method), "token_weight": weight_N}
    _, dhidden_ND, grads = layer.loss_and_grads(hidden_ND, targets_N, **options)
    rng, step = np.random.default_rng(1), 1e-6
    direction_ND = rng.standard_normal(hidden_ND.shape)
    above, below = (layer.loss(hidden_ND + sign * step * direction_ND, targets_N, **options) for sign in (1, -1))
    assert (above - below) / (2 * step) == pytest.approx((dhidden_ND * direction_ND).sum(), rel=1e-5, abs=1e-8)
    params = layer.parameters()
    directions = {name: rng.standard_normal(value.shape) for name, value in params.items()}
    losses = []
    for sign in (1, -1):
        layer.load({name: value + sign * step * directions[name] for name, value in params.items()})
        losses.append(layer.loss(hidden_ND, targets_N, **options))
    expected = sum((grads[name] * directions[name]).sum() for name in params)
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("method", [method for method in METHODS if not registry.definition(method).train_only_loss])
def test_a_smoothed_loss_is_the_cross_entropy_with_the_smoothed_targets(method):
    layer, hidden_ND, targets_N, weight_N = made(method)
    log_NV = layer.log_probs(hidden_ND)
    losses_N = -0.9 * log_NV[np.arange(TOKENS), targets_N] - 0.1 * log_NV.mean(axis=1)
    loss = layer.loss(hidden_ND, targets_N, label_smoothing=0.1, token_weight=weight_N)
    assert loss == pytest.approx(np.average(losses_N, weights=weight_N))
    assert layer.loss(hidden_ND, targets_N, token_weight=np.zeros(TOKENS)) == 0


@pytest.mark.parametrize("method", ["full_softmax", "huffman"])
@pytest.mark.parametrize("scale", [1e308, 1e-300, 5e-324])
def test_weights_of_any_size_are_shares_of_the_mean(method, scale):
    layer, hidden_ND, targets_N, _ = made(method)
    equal = np.full(TOKENS, scale)
    assert layer.loss(hidden_ND, targets_N, token_weight=equal) == pytest.approx(layer.loss(hidden_ND, targets_N))


@pytest.mark.parametrize("method", [method for method in METHODS if has_z_loss(registry.definition(method))])
def test_capped_logits_and_z_loss_of_one_softmax(method):
    layer, hidden_ND, targets_N, _ = made(method)
    logits_NV = layer._logits(hidden_ND)
    capped_NV = 2.0 * np.tanh(logits_NV / 2.0)
    log_sum_N = np.log(np.exp(capped_NV).sum(axis=1))
    losses_N = log_sum_N - capped_NV[np.arange(TOKENS), targets_N] + 0.01 * log_sum_N**2
    assert layer.loss(hidden_ND, targets_N, z_loss=0.01, softcap=2.0) == pytest.approx(losses_N.mean())
    np.testing.assert_allclose(layer.log_probs(hidden_ND, softcap=2.0), capped_NV - log_sum_N[:, None])


@pytest.mark.parametrize("method", METHODS)
def test_the_entropy_is_that_of_the_distribution(method):
    layer, hidden_ND, _, _ = made(method)
    log_NV = layer.log_probs(hidden_ND)
    np.testing.assert_allclose(layer.entropy(hidden_ND), -(np.exp(log_NV) * log_NV).sum(axis=1))


@pytest.mark.parametrize(
    ("options", "share_of"),
    [
        ({"temperature": 0.5}, lambda p: p**2),
        ({"top_k": 3}, lambda p: np.where(p >= np.sort(p)[-3], p, 0)),
        (
            {"top_p": 0.6},
            lambda p: np.where(p >= np.sort(p)[::-1][np.searchsorted(np.sort(p)[::-1].cumsum(), 0.6)], p, 0),
        ),
    ],
    ids=["temperature", "top_k", "top_p"],
)
@pytest.mark.parametrize("method", ["full_softmax", "huffman", "sohsm"])
def test_sampling_options_draw_from_what_they_leave(method, options, share_of):
    layer, hidden_ND, _, _ = made(method)
    share_V = share_of(np.exp(layer.log_probs(hidden_ND[:1]))[0])
    uniforms = np.zeros((4000, layer.spec.draws))
    uniforms[:, 0] = (np.arange(4000) + 0.5) / 4000
    drawn = layer.sample(np.repeat(hidden_ND[:1], 4000, axis=0), uniforms, **options)
    np.testing.assert_allclose(np.bincount(drawn, minlength=VOCAB) / 4000, share_V / share_V.sum(), atol=5e-4)


@pytest.mark.parametrize("temperature", [1e-3, 1e-300, 5e-324])
@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.5}], ids=["all", "top_k", "top_p"])
@pytest.mark.parametrize("method", ["full_softmax", "huffman"])
def test_a_tiny_temperature_leaves_the_likeliest_word(method, options, temperature):
    layer, hidden_ND, _, _ = made(method)
    layer.load({name: 20 * value for name, value in layer.parameters().items()})
    uniforms_NU = np.full((TOKENS, layer.spec.draws), 0.99)
    drawn_N = layer.sample(hidden_ND, uniforms_NU, temperature=temperature, **options)
    assert drawn_N.tolist() == layer.topk(hidden_ND, 1)[1][:, 0].tolist()
    assert any(drawn_N)


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        ("full_softmax", {"label_smoothing": 1.0}, "label_smoothing"),
        ("full_softmax", {"softcap": 0.0}, "softcap"),
        ("full_softmax", {"z_loss": -1.0}, "z_loss"),
        ("full_softmax", {"token_weight": [1.0]}, "token_weight"),
        ("full_softmax", {"token_weight": [-1.0] * TOKENS}, "token_weight"),
        ("huffman", {"z_loss": 0.1}, "z_loss"),
        ("sohsm", {"softcap": 5.0}, "softcap"),
        ("nce", {"label_smoothing": 0.1}, "label_smoothing"),
        ("nce", {"z_loss": 0.1}, "z_loss"),
    ],
)
def test_what_a_method_does_not_define_is_refused_by_name(method, options, named):
    layer, hidden_ND, targets_N, _ = made(method)
    with pytest.raises(BadInput, match=f"^{named}.*allowed"):
        layer.loss(hidden_ND, targets_N, **options)


def test_capped_probabilities_are_refused_where_there_are_no_logits():
    layer, hidden_ND, _, _ = made("huffman")
    with pytest.raises(BadInput, match=r"^softcap=5\.0: allowed: None for huffman"):
        layer.log_probs(hidden_ND, softcap=5.0)


def test_a_misspelt_keyword_of_a_loss_suggests_the_nearest():
    layer, hidden_ND, targets_N, _ = made("huffman")
    for call in (layer.loss, layer.loss_and_grads):
        with pytest.raises(BadInput, match="unknown input of huffman 'label_smothing': did you mean 'label_smoothing'"):
            call(hidden_ND, targets_N, label_smothing=0.1)
