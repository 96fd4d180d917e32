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
from vocabench.impls.on_tensorflow import tying
from vocabench.impls.on_tensorflow.ops.tensors import Tensors
from vocabench.impls.options import Given, NestedLists, Table, Words, read_nested, read_table, read_words
from vocabench.impls.spec import LayerSpec
from vocabench.impls.tying import tied_name

_DIGEST = "structure_digest"


class Saveable(keras.layers.Layer):
    """A Keras layer made from a specification. It can be saved, loaded, cloned, copied and pickled.

    What is saved holds the digest of the structure, which gives the weights their meaning. Weights of another structure
    are refused.

    Attributes:
        tied_words: The (V, D) variable of the embedding with which the layer shares its word vectors, or None. What is
            saved does not depend on it.
    """

    tied_words: keras.Variable | None = None
    _embedding: keras.layers.Embedding | None = None
    _from_config = False  # whether the embedding may be one of the layer's own

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(dtype=spec.storage, **keyword)
        self.spec = spec

    def __init_subclass__(cls, **keyword: Any) -> None:
        super().__init_subclass__(**keyword)
        keras.saving.register_keras_serializable(package="vocabench")(cls)

    def load_canonical(self, tensors: Tensors) -> None:
        """Assign weights in canonical form."""
        raise NotImplementedError

    def to_canonical(self, tensors: Tensors) -> Tensors:
        """Convert weights to their canonical form."""
        raise NotImplementedError

    def named_weights(self) -> Tensors:
        """Return the values of all weights by name."""
        raise NotImplementedError

    def _word_slots(self) -> Tensors:
        """Return, for each weight with a vector for each word, the word in each slot; None in order of the words."""
        return {}

    def tie(self, embedding: keras.layers.Embedding) -> None:
        """Share the word vectors with an embedding (Press and Wolf 2017), whose present values the layer takes over.

        Gradients of both uses add up. Tie before an optimizer is built: the embedding's variable replaces the layer's.
        A layer that stores words by cluster looks its rows up in that variable, also after `reorganize`. Saved Keras
        models keep the tie. `keras.models.clone_model` gives the layer an embedding of its own, since it makes each
        layer from its configuration alone: tie the clones again.

        Args:
            embedding: (V, D), in the dtype of the layer.

        Raises:
            BadInput: The layer has no (V, D) weight of words, or the embedding has another shape or dtype.
        """
        tied_name(self.spec)
        variable = tying.variable_of(embedding, self.spec)
        if self.tied_words is not None and not self._from_config:
            raise BadInput(f"tie of {self.spec.method}: allowed: once")
        for name in self._word_slots() if self.tied_words is None else ["tied_words"]:
            delattr(self, name)
        self._tracker.unlock()  # as Keras does where a built layer gets another variable
        self.tied_words = variable
        self._lock_state()
        self._from_config = False
        object.__setattr__(self, "_embedding", embedding)  # not a part of this layer

    def _move_tie(self, to: Self) -> None:
        """Tie this layer's embedding, if there is one, to a layer with another vocabulary."""
        embedding = self._embedding
        if embedding is None:
            return
        object.__setattr__(self, "_embedding", None)  # this layer keeps its variable
        words_VD = to.to_canonical(to.named_weights())[tied_name(to.spec)]
        tying.give_vectors(embedding, tf.convert_to_tensor(words_VD))
        to.tie(embedding)

    def initialize(self) -> Self:
        """Assign the initial parameters of the specification, and return the layer."""
        self.load_canonical({name: tf.constant(value) for name, value in self.spec.initial_parameters().items()})
        return self

    def get_config(self) -> dict[str, Any]:
        """Return everything that `from_config` needs, in types of JSON; arrays and words are included, not files."""
        config = {**super().get_config(), **config_of(self.spec)}
        if self._embedding is not None:
            config["embedding"] = keras.saving.serialize_keras_object(self._embedding)
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Create a layer with its initial parameters."""
        keyword = {name: config[name] for name in ("name", "trainable") if name in config}
        layer = cls(spec_of(config), **keyword).initialize()
        if "embedding" in config:
            layer.tie(keras.saving.deserialize_keras_object(config["embedding"]))
            layer._from_config = True
        return layer

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        for name, value in self._stored().items():
            store[name] = value
        store[_DIGEST] = np.frombuffer(self.spec.structure_digest, np.uint8)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Assign saved weights.

        Raises:
            BadInput: They have another structure, or other names or shapes.
        """
        saved = {name: store[name] for name in store.keys()}  # noqa: SIM118 (a store is not always a mapping)
        digest = bytes(np.asarray(saved.pop(_DIGEST, [])).astype(np.uint8))
        shapes = {name: tuple(value.shape) for name, value in self._stored().items()}
        if saved.keys() != shapes.keys():
            refusal: str | None = f"the names {sorted(saved)}: allowed: {sorted(shapes)}"
        elif any(tuple(saved[name].shape) != shape for name, shape in shapes.items()):
            refusal = f"the shapes { {name: tuple(value.shape) for name, value in saved.items()} }: allowed: {shapes}"
        else:
            refusal = self._refusal(digest, saved)
        if refusal:
            raise BadInput(f"weights of {self.spec.method} have {refusal}")
        for variable in self.variables:
            if variable is not self.tied_words:
                variable.assign(saved[variable.name])
        if self.tied_words is not None:
            weights = {name: tf.convert_to_tensor(saved[name]) for name in self.named_weights()}
            self.tied_words.assign(self.to_canonical(weights)[tied_name(self.spec)])

    def _stored(self) -> Tensors:
        """Return the variables by name, with those that tied words replace."""
        own = {variable.name: variable for variable in self.variables if variable is not self.tied_words}
        if self.tied_words is None:
            return own
        weights = self.named_weights()
        return own | {name: weights[name] for name in self._word_slots()}

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
    if isinstance(kind, NestedLists):
        return read_nested(name, value)
    return list(value) if isinstance(value, tuple) else value
