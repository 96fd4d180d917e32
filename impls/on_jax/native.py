"""The native layer of each method: pure functions to use inside any model."""

from __future__ import annotations

import importlib
from dataclasses import replace

from vocabench.impls.forms import on_device
from vocabench.impls.on_jax.device import Device
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.spec import LayerSpec


def layer_class(method: str) -> type[OutputLayer]:
    """Return the `OutputLayer` of a method."""
    return importlib.import_module(f"vocabench.impls.on_jax.methods.{method}").LAYER


def native(spec: LayerSpec, device: Device | None = None) -> OutputLayer:
    """Create the layer of `spec`, in the preferred form for `device`, or for JAX's default backend if it is None."""
    cls = layer_class(spec.method)
    if device is not None and not spec.form:
        preferred = next((form.id for form in on_device(cls.forms(spec), device.platform)), "")
        spec = replace(spec, form=preferred)
    return cls(spec)
