"""Native PyTorch layers of all methods and forms, for the tests of their calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vocabench.harness import layers, registry
from vocabench.impls.on_torch import adapter
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.spec import LayerSpec

VOCAB, DIM = 60, 16
COUNTS = np.round(2000 / np.arange(1, VOCAB + 1)).astype(int)
METHODS = registry.methods("torch")
SOFTMAXES = [
    method
    for method in METHODS
    if (known := registry.definition(method)).one_softmax and not known.train_only_loss
]  # fmt: skip
DISTRIBUTIONS = [method for method in METHODS if not registry.definition(method).train_only_loss]


def spec_of(method: str, **options: Any) -> LayerSpec:
    return layers.spec(method, **{"counts": COUNTS, "dim": DIM, **options})


def layer_of(method: str, **options: Any) -> OutputLayer:
    return adapter.native(spec_of(method, **options))


def in_all_forms(method: str, **options: Any) -> Iterator[OutputLayer]:
    """Yield the layer in the form that PyTorch prefers and in each form that a CPU has."""
    spec = spec_of(method, **options)
    yield adapter.native(spec)
    for form in adapter.forms(spec):
        yield adapter.native(replace(spec, form=form.id))


def extra_of(layer: OutputLayer) -> dict[str, Tensor]:
    return {name: torch.tensor(array) for name, array in layer.spec.draw_extra(np.random.default_rng(0)).items()}


def batch(*leading: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return hidden vectors (..., D) and targets (...)."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*leading, DIM, generator=generator, dtype=torch.float64).to(dtype)
    return hidden, torch.randint(0, VOCAB, leading, generator=generator)


def gradients(loss: Tensor, hidden: Tensor, layer: OutputLayer) -> list[Tensor]:
    """Return the gradients with respect to hidden vectors and parameters; zeros where there is none."""
    return list(torch.autograd.grad(loss, [hidden, *layer.parameters()], materialize_grads=True))


of_all_methods = pytest.mark.parametrize("method", METHODS)
of_all_softmaxes = pytest.mark.parametrize("method", SOFTMAXES)
of_all_distributions = pytest.mark.parametrize("method", DISTRIBUTIONS)
