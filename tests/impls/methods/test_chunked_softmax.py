"""The loss over chunks of tokens, with sizes at which there are several."""

import importlib

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import batch, zipf_counts

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("bias", [True, False])
def test_several_chunks_are_the_definition(framework, bias, monkeypatch):
    objectives = importlib.import_module(f"vocabench.impls.on_{framework}.objectives")
    monkeypatch.setattr(objectives, "_AT_ONCE", 97 * 5)  # 23 tokens are four chunks of five, and one of three
    given = {"vocab": 97, "dim": 11, "seed": 3, "bias": bias}
    layer, oracle = (layers.create(name, "chunked_softmax", **given) for name in (framework, "numpy"))
    inputs = batch(zipf_counts(97), tokens=23, dim=11, seed=0)
    (loss, dhidden, grads), (expected, dexpected, gexpected) = (
        made.loss_and_grads(inputs.hidden_ND, inputs.targets_N) for made in (layer, oracle)
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(dhidden, dexpected, atol=1e-6)
    assert grads.keys() == gexpected.keys()
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, gexpected[name], atol=1e-6)


def test_the_logits_of_all_tokens_are_never_kept():
    """No tensor that is saved for the backward pass is as large as half of the (N, V) logits."""
    torch = pytest.importorskip("torch")
    import vocabench.torch

    kept = []

    def pack(tensor):
        kept.append(tensor.numel())
        return tensor

    layer = vocabench.torch.layer("chunked_softmax", vocab=20_000, dim=2)
    hidden, targets = torch.randn(1700, 2, requires_grad=True), torch.randint(0, 20_000, (1700,))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(hidden, targets).backward()
    assert max(kept) < 1700 * 20_000 / 2
