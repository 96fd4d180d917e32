"""The bag model of every framework against its definition."""

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.models.bag_model import BagModelConfig
from vocabench.impls.optimizers import Optimizer

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]


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
