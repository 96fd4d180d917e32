"""Layers as Keras objects: their configuration, and weights that are saved together with their structure."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, MutableMapping
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from vocabench.impls.errors import BadInput
from vocabench.impls.on_tensorflow.ops.tensors import Tensors
from vocabench.impls.options import Given, Table, Words, read_table, read_words
from vocabench.impls.spec import LayerSpec

_DIGEST = "structure_digest"


class Saveable(keras.layers.Layer):
    """A Keras layer made from a specification. It can be saved, loaded, cloned, copied and pickled.

    What is saved holds the digest of the structure, which gives the weights their meaning. Weights of another structure
    are refused.
    """

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(dtype=spec.storage, **keyword)
        self.spec = spec

    def __init_subclass__(cls, **keyword: Any) -> None:
        super().__init_subclass__(**keyword)
        keras.saving.register_keras_serializable(package="vocabench")(cls)

    def load_canonical(self, tensors: Tensors) -> None:
        """Assign weights in canonical form."""
        raise NotImplementedError

    def initialize(self) -> Self:
        """Assign the initial parameters of the specification, and return the layer."""
        self.load_canonical({name: tf.constant(value) for name, value in self.spec.initial_parameters().items()})
        return self

    def get_config(self) -> dict[str, Any]:
        """Return everything that `from_config` needs, in types of JSON; arrays and words are included, not files."""
        return {**super().get_config(), **config_of(self.spec)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Create a layer with its initial parameters."""
        keyword = {name: config[name] for name in ("name", "trainable") if name in config}
        return cls(spec_of(config), **keyword).initialize()

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        for variable in self.variables:
            store[variable.name] = variable
        store[_DIGEST] = np.frombuffer(self.spec.structure_digest, np.uint8)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Assign saved weights.

        Raises:
            BadInput: They have another structure, or other names or shapes.
        """
        saved = {name: store[name] for name in store.keys()}  # noqa: SIM118 (a store is not always a mapping)
        digest = bytes(np.asarray(saved.pop(_DIGEST, [])).astype(np.uint8))
        shapes = {variable.name: tuple(variable.shape) for variable in self.variables}
        if saved.keys() != shapes.keys():
            refusal: str | None = f"the names {sorted(saved)}: allowed: {sorted(shapes)}"
        elif any(tuple(saved[name].shape) != shape for name, shape in shapes.items()):
            refusal = f"the shapes { {name: tuple(value.shape) for name, value in saved.items()} }: allowed: {shapes}"
        else:
            refusal = self._refusal(digest, saved)
        if refusal:
            raise BadInput(f"weights of {self.spec.method} have {refusal}")
        for variable in self.variables:
            variable.assign(saved[variable.name])

    def _refusal(self, digest: bytes, saved: Tensors) -> str | None:
        """Return why saved weights of the right shapes have another meaning, or None."""
        if digest == self.spec.structure_digest:
            return None
        wanted = f"{self.spec.structure_digest.hex()[:16]}..., that of a layer with the same counts, options and seed"
        return f"structure_digest={digest.hex()[:16]}...: allowed: {wanted}"


def config_of(spec: LayerSpec) -> dict[str, Any]:
    """Return a specification in types of JSON."""
    return {
        "method": spec.method,
        "counts": spec.counts.tolist(),
        "dim": spec.dim,
        "seed": spec.seed,
        "dtype": spec.dtype,
        "options": {name: _plain(spec, name, value) for name, value in spec.options.items()},
        "form": spec.form,
    }


def spec_of(config: Mapping[str, Any]) -> LayerSpec:
    """Return the specification that `config_of` has described."""
    definition = importlib.import_module(f"vocabench.impls.on_numpy.methods.{config['method']}").DEFINITION
    options = {
        name: Given(np.array(value["values"], value["dtype"])) if isinstance(value, dict) else value
        for name, value in config["options"].items()
    }
    arguments = {name: config[name] for name in ("counts", "dim", "seed", "dtype")}
    spec = LayerSpec.build(definition, options=options, **arguments)
    return dataclasses.replace(spec, form=config["form"])


def _plain(spec: LayerSpec, name: str, value: object) -> object:
    kind = spec.definition.options[name]
    if value is not None and isinstance(kind, Table):
        array: Any = read_table(name, value)
        return {"dtype": array.dtype.name, "values": array.tolist()}
    if value is not None and isinstance(kind, Words):
        return list(read_words(name, value) or ())
    return list(value) if isinstance(value, tuple) else value
