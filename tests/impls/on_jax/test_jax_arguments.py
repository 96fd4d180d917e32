"""Parameters and structure as JAX's layers take them: arrays of JAX or NumPy, of the layer itself."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.impls.errors import BadInput
from vocabench.impls.on_jax.native import native
from vocabench.impls.spec import LayerSpec

pytestmark = pytest.mark.many_cells

COUNTS_V = zipf_counts(60)
DIM = 8
METHODS = registry.methods("jax")


def spec_of(method: str, dim: int = DIM) -> LayerSpec:
    return layers.spec(method, counts=COUNTS_V, dim=dim)


def batch_of():
    inputs = batch(COUNTS_V, tokens=4, dim=DIM, seed=1)
    return inputs.hidden_ND.astype(np.float32), inputs.targets_N


@pytest.mark.many_cells
@pytest.mark.parametrize("method", METHODS)
def test_arrays_of_numpy_give_what_arrays_of_jax_give(method):
    hidden, targets = batch_of()
    layer: Any = native(spec_of(method))
    forms = [replace(layer.spec, form=form.id) for form in layer.forms(layer.spec)] or [layer.spec]
    params, structure = layer.init()
    trees = jax.tree.map(np.asarray, (params, structure))
    extra = {"key": jax.random.key(0)} if layer.spec.definition.extra else {}
    loss = layer.loss(params, structure, hidden, targets, **extra)
    best = layer.topk(params, structure, hidden, 3)
    for form in forms:
        layer = native(form)
        assert float(layer.loss(*trees, hidden, targets, **extra)) == pytest.approx(float(loss), rel=1e-5)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), layer.topk(*trees, hidden, 3), best)
    canonical = layer.to_canonical(trees[1], trees[0])
    again = layer.from_canonical(trees[1], {name: np.asarray(value) for name, value in canonical.items()})
    jax.tree.map(np.testing.assert_array_equal, again, trees[0])


@pytest.mark.parametrize("method", METHODS)
def test_the_parameters_of_another_layer_are_refused(method):
    layer: Any = native(spec_of(method))
    other = native(spec_of(method, dim=2 * DIM))
    hidden, targets = batch_of()
    params, structure = layer.init()
    extra = {"key": jax.random.key(0)} if layer.spec.definition.extra else {}

    def refused(match, params, structure=structure):
        for call in (layer.loss, jax.jit(layer.loss)):
            with pytest.raises(BadInput, match=match) as caught:
                call(params, structure, hidden, targets, **extra)
            assert "\n" not in str(caught.value)

    refused(rf"params of {method}: \w+ has shape \(.*: allowed: \(", other.init()[0])
    name = next(iter(params))
    refused(rf"params of {method}: missing \['{name}'\], unexpected none", {k: params[k] for k in params if k != name})
    refused("missing none, unexpected \\['more'\\]", {**params, "more": params[name]})
    if structure:
        refused(f"structure of {method}: missing", params, {})
    with pytest.raises(BadInput, match=f"params of {method} is a list: allowed: a dictionary"):
        layer.topk(list(params.values()), structure, hidden, 1)
