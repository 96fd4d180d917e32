"""The native layer of each method: a Keras layer to use inside any model."""

from __future__ import annotations

import importlib

from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.spec import LayerSpec


def layer_class(method: str) -> type[OutputLayer]:
    """Return the `OutputLayer` of a method."""
    return importlib.import_module(f"vocabench.impls.on_tensorflow.methods.{method}").LAYER


def native(spec: LayerSpec) -> OutputLayer:
    """Create the layer of `spec` with its initial parameters."""
    return layer_class(spec.method)(spec).initialize()
