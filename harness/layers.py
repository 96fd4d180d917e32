"""The stable Python contract: any layer of any framework, with NumPy arrays in and out.

from vocabench.harness import layers

layer = layers.create("torch", "sohsm", counts=counts, dim=512)
loss, grad_hidden, grads = layer.loss_and_grads(hidden, targets)
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from vocabench.harness import registry
from vocabench.impls.adapter import Adapter
from vocabench.impls.arrays import array_of
from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput, Unsupported, unknown
from vocabench.impls.forms import Form
from vocabench.impls.models.bag_model import BagModel, BagModelConfig
from vocabench.impls.models.language_model import LanguageModel, LanguageModelConfig
from vocabench.impls.models.network import Config, Network
from vocabench.impls.models.recognizer import Recognizer, RecognizerConfig
from vocabench.impls.models.summarizer import Summarizer, SummarizerConfig
from vocabench.impls.spec import Definition, LayerSpec


def frameworks() -> list[str]:
    """Return the installed frameworks, with "numpy", the float64 definitions, first."""
    return registry.installed_frameworks()


def methods(framework: str) -> list[str]:
    """Return the methods that `framework` implements."""
    return registry.methods(framework)


def spec(
    method: str,
    *,
    counts: ArrayLike | None = None,
    dim: int,
    vocab: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
    **options: object,
) -> LayerSpec:
    """Return the specification of a layer: checked arguments, structure, parameter shapes and initial parameters."""
    definition = registry.definition(method)
    counts = _counts(definition, counts, vocab)
    return LayerSpec.build(definition, counts=counts, dim=dim, seed=seed, dtype=dtype, options=options)


def _counts(definition: Definition, counts: ArrayLike | None, vocab: int | None) -> ArrayLike:
    """Return the counts that a caller gives, or ones if the size of the vocabulary is enough."""
    if vocab is not None and (isinstance(vocab, bool) or not isinstance(vocab, int | np.integer) or vocab < 2):
        raise BadInput(f"vocab={vocab!r}: allowed: a whole number from 2")
    if counts is None:
        if vocab is None or definition.needs_counts:
            instead = "" if definition.needs_counts else "; or vocab, their number"
            raise BadInput(f"counts of {definition.name} is missing: allowed: how often each word occurs{instead}")
        return np.ones(vocab, np.int64)
    given = array_of("counts", counts)
    if vocab is not None and given.shape != (vocab,):
        raise BadInput(f"vocab={vocab} and counts of shape {given.shape}: allowed: one of them, or both alike")
    return given


def create(
    framework: str,
    method: str,
    *,
    counts: ArrayLike | None = None,
    dim: int,
    vocab: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: str | None = None,
    **options: object,
) -> Layer:
    """Create a layer with its initial parameters, which are the same in every framework.

    Args:
        framework: One of `frameworks()`.
        method: One of `methods(framework)`.
        counts: (V,) integers: how often each word id occurs in the training text. Some methods do not need them.
        dim: Width D of the hidden vectors.
        vocab: Size of the vocabulary, instead of `counts`, for methods that do not need them.
        seed: Seed of the initial parameters and of random structure.
        device: "cpu", "cuda", "cuda:1", ...
        dtype: "float32" (the default), "tf32" (float32 with matrix products in TF32), "float64" or "bfloat16". The
            definitions ("numpy") compute in "float64" only, their default.
        **options: Options of the method, as listed in `registry.definition(method).options`.

    Raises:
        BadInput: An argument is invalid. This ValueError names the argument, its value and what is allowed.
        Unsupported: The method or the precision cannot run on this machine. This is a BadInput too.
    """
    registry.check_framework(framework)
    if method not in registry.methods(framework):
        raise unknown(f"method of {framework}", method, registry.methods(framework))
    if dtype is None:
        dtype = "float64" if framework == "numpy" else "float32"
    made = spec(method, counts=counts, dim=dim, vocab=vocab, seed=seed, dtype=dtype, **options)
    return from_spec(framework, made, device)


def _adapter(framework: str, layer_spec: LayerSpec, device: str) -> Adapter:
    """Return the adapter of a framework if the device supports the layer's precision."""
    adapter = registry.adapter(framework)
    if layer_spec.dtype == "tf32" and adapter.compute_capability(device) < (8, 0):
        raise Unsupported(
            f"tf32 in {framework} on {device}: needs a CUDA device of compute capability 8.0 or newer: "
            "allowed here: the other precisions"
        )
    return adapter


def from_spec(framework: str, layer_spec: LayerSpec, device: str = "cpu") -> Layer:
    """Create the layer of `layer_spec` in a framework, as `create` does."""
    return _adapter(framework, layer_spec, device).create_layer(layer_spec, device)


def forms(framework: str, layer_spec: LayerSpec, device: str = "cpu") -> tuple[Form, ...]:
    """Return the forms in which `framework` can compute this layer on `device`, the preferred one first.

    `LayerSpec.form` asks for one by its id. The tuple is empty if there is only one way. `measure.fastest_form`
    measures which form is the fastest here.
    """
    return registry.adapter(framework).forms(layer_spec, device)


def form_label(framework: str, layer_spec: LayerSpec, device: str = "cpu") -> str:
    """Return the label of the form that `layer_spec` asks for, or "" if it leaves the choice to the framework."""
    return next((form.label for form in forms(framework, layer_spec, device) if form.id == layer_spec.form), "")


@overload
def create_network(
    framework: str, layer_spec: LayerSpec, config: LanguageModelConfig, device: str = "cpu"
) -> LanguageModel: ...
@overload
def create_network(framework: str, layer_spec: LayerSpec, config: BagModelConfig, device: str = "cpu") -> BagModel: ...
@overload
def create_network(
    framework: str, layer_spec: LayerSpec, config: SummarizerConfig, device: str = "cpu"
) -> Summarizer: ...
@overload
def create_network(
    framework: str, layer_spec: LayerSpec, config: RecognizerConfig, device: str = "cpu"
) -> Recognizer: ...
@overload
def create_network(framework: str, layer_spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]: ...
def create_network(framework: str, layer_spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]:
    """Create a framework's network with the output layer of `layer_spec`.

    Args:
        framework: One of `frameworks()`.
        layer_spec: The output layer, as `spec` makes it.
        config: Settings of the network. Their type decides its kind: a language model, a bag model (word2vec and
            paragraph vectors), a summarizer or a speech recognizer.
        device: Device, as in `create`.

    Raises:
        BadInput: An argument is invalid, as in `create`.
    """
    return _adapter(framework, layer_spec, device).create_network(layer_spec, config, device)
