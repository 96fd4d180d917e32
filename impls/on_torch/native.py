"""The native layer of each method: an `nn.Module` to use inside any model."""

from __future__ import annotations

import importlib

import torch

from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.spec import LayerSpec


def layer_class(method: str) -> type[OutputLayer]:
    """Return the `OutputLayer` of a method."""
    return importlib.import_module(f"vocabench.impls.on_torch.methods.{method}").LAYER


def blank(spec: LayerSpec) -> OutputLayer:
    """Create the layer of `spec`. Its parameters have yet to be loaded."""
    return layer_class(spec.method)(spec)


def native(spec: LayerSpec) -> OutputLayer:
    """Create the layer of `spec` with its initial parameters."""
    layer = blank(spec)
    layer.load_canonical({name: torch.from_numpy(value) for name, value in spec.initial_parameters().items()})
    return layer
