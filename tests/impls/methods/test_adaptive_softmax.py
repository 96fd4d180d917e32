"""Adaptive softmax: the choice of the cuts, and its function against PyTorch's own module."""

import itertools
from typing import Any

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.structures import cutoffs

FRAMEWORKS = [f for f in registry.installed_frameworks() if f != "numpy"]


def cost(counts_V, ends, div_value):
    """The cost model spelled out for one set of cuts."""
    bounds = [*ends, len(counts_V)]
    total = float(cutoffs.head_cost(bounds[0], len(ends)))
    for tail, (start, end) in enumerate(itertools.pairwise(bounds)):
        share = counts_V[start:end].sum() / counts_V.sum()
        total += float(cutoffs.tail_cost(end - start, share, div_value ** -(tail + 1)))
    return total


@pytest.mark.parametrize("vocab", [2, 3, 5, 12, 24])
@pytest.mark.parametrize("div_value", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("call", [0.0, 3e3])
def test_the_choice_is_the_cheapest_of_all(vocab, div_value, call, monkeypatch):
    monkeypatch.setattr(cutoffs, "CALL", call)
    counts_V = np.sort(np.random.default_rng(vocab).zipf(1.3, vocab).clip(max=10**4))[::-1]
    found = cutoffs.choose(counts_V, div_value)
    allowed = [()] + [
        ends
        for tails in range(1, cutoffs.MOST_TAILS + 1)
        for ends in itertools.combinations(range(1, vocab), tails)
        if counts_V[: ends[0]].sum() / counts_V.sum() >= cutoffs.HEAD_SHARE
    ]
    assert tuple(found) in allowed
    assert cost(counts_V, found, div_value) == pytest.approx(min(cost(counts_V, e, div_value) for e in allowed))


@pytest.mark.parametrize("vocab", [44_000, 1_000_000])
def test_large_vocabularies_have_tails(vocab):
    found = cutoffs.choose(zipf_counts(vocab), 4.0)
    assert 1 <= len(found) <= cutoffs.MOST_TAILS
    assert 1000 < found[0] < vocab / 5
    assert found == sorted(set(found))
    assert found[-1] < vocab


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("9,3", "rising"),
        ([3, 3], "rising"),
        ([0, 3], "rising"),
        ([2.5], "rising"),
        ("a", "rising"),
        ([3, 30], "below 30"),
    ],
)
def test_cuts_that_are_none_are_refused(value, message):
    with pytest.raises(ValueError, match=message):
        layers.create("numpy", "adaptive_softmax", counts=zipf_counts(30), dim=4, cutoffs=value)


def test_cuts_are_a_list_or_text():
    made = [layers.spec("adaptive_softmax", counts=zipf_counts(30), dim=4, cutoffs=c) for c in ([5, 9], "5, 9")]
    assert made[0].options == made[1].options
    assert made[0].parameter_shapes()["tail1_weight"] == (21, 1)


def shuffled_counts(vocab):
    """Words that are not in order of their counts, some of them equal."""
    return np.random.default_rng(3).permutation(zipf_counts(vocab))


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("cuts", [[1], [20, 21], [30, 60, 100], [149]])
def test_agrees_with_the_definition_whatever_the_cuts(framework, cuts):
    layer = layers.create(
        framework, "adaptive_softmax", counts=shuffled_counts(150), dim=20, seed=2, dtype="float64", cutoffs=cuts
    )
    inputs = batch(layer.spec.counts, tokens=300, dim=20, seed=3)
    found = [*agreement.check_layer(layer, inputs, k=40), agreement.check_ties(layer, inputs, k=40)]
    assert [str(c) for c in found if not c.agrees] == []


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_topk_samples_and_beams_with_words_in_any_order(framework):
    rng = np.random.default_rng(4)
    made: list[Any] = [
        layers.create(
            name, "adaptive_softmax", counts=shuffled_counts(150), dim=9, dtype="float64", cutoffs=[4, 30, 90]
        )
        for name in (framework, "numpy")
    ]
    params = {name: 3 * rng.standard_normal(value.shape) for name, value in made[1].parameters().items()}
    for layer in made:
        layer.load(params)
    hidden_ND, uniforms_N2 = rng.standard_normal((80, 9)), rng.random((80, 2))
    assert made[0].sample(hidden_ND, uniforms_N2).tolist() == made[1].sample(hidden_ND, uniforms_N2).tolist()
    for k, width in ((1, 1), (2, 2), (10, 20), (150, 150)):
        for verb in (
            lambda layer, k=k: layer.topk(hidden_ND, k),
            lambda layer, k=k, w=width: layer.beam(hidden_ND, k, w),
        ):
            (values, ids), (oracle_values, oracle_ids) = (verb(layer) for layer in made)
            np.testing.assert_allclose(values, oracle_values, rtol=1e-9)
            assert ids.tolist() == oracle_ids.tolist()


def test_the_definition_is_torchs_module():
    torch = pytest.importorskip("torch")
    counts_V = np.sort(shuffled_counts(90))[::-1]  # torch's ids are ranks
    oracle = layers.create("numpy", "adaptive_softmax", counts=counts_V, dim=64, cutoffs=[10, 25, 60])
    inputs = batch(counts_V, tokens=70, dim=64, seed=2)
    truth: Any = torch.nn.AdaptiveLogSoftmaxWithLoss(64, 90, [10, 25, 60], dtype=torch.float64)
    named = {"head_weight": truth.head.weight}
    for tail, (projection, weight) in enumerate(truth.tail):
        named |= {f"tail{tail}_projection": projection.weight, f"tail{tail}_weight": weight.weight}
    oracle.load({name: value.detach().numpy() for name, value in named.items()})

    hidden: Any = torch.tensor(inputs.hidden_ND, requires_grad=True)
    output, loss = truth(hidden, torch.tensor(inputs.targets_N))
    loss.backward()
    ours, dhidden_ND, grads = oracle.loss_and_grads(inputs.hidden_ND, inputs.targets_N)
    assert ours == pytest.approx(float(loss.detach()), rel=1e-12)
    np.testing.assert_allclose(dhidden_ND, hidden.grad.numpy(), atol=1e-14)
    assert grads.keys() == named.keys()
    for name, parameter in named.items():
        np.testing.assert_allclose(grads[name], parameter.grad.numpy(), atol=1e-14, err_msg=name)
    np.testing.assert_allclose(oracle.log_probs(inputs.hidden_ND), truth.log_prob(hidden).detach().numpy(), atol=1e-12)
    targets = oracle.target_log_probs(inputs.hidden_ND, inputs.targets_N)
    np.testing.assert_allclose(targets, output.detach().numpy(), atol=1e-12)
