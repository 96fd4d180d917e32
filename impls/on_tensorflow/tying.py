"""Weight tying: word vectors that an embedding and an output layer share (Press and Wolf 2017)."""

from __future__ import annotations

import keras
import tensorflow as tf

from vocabench.impls.errors import BadInput
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, look_up
from vocabench.impls.spec import LayerSpec
from vocabench.impls.tying import check_shape


def variable_of(embedding: object, spec: LayerSpec) -> keras.Variable:
    """Return the variable of an embedding, built if necessary.

    Raises:
        BadInput: It is no embedding of the layer's words in the layer's dtype, or more than its variable.
    """
    if not isinstance(embedding, keras.layers.Embedding):
        raise BadInput(f"embedding is a {type(embedding).__name__}: allowed: a keras.layers.Embedding")
    check_shape((embedding.input_dim, embedding.output_dim), spec)
    embedding.build()
    variable = embedding.embeddings
    if not isinstance(variable, keras.Variable) or variable.dtype != spec.storage:
        kind = variable.dtype if isinstance(variable, keras.Variable) else "computed from several variables"
        raise BadInput(f"embedding is {kind}: allowed: one variable in {spec.storage}")
    return variable


def give_vectors(embedding: keras.layers.Embedding, vectors_VD: Tensor) -> None:
    """Replace the variable of an embedding by one for any number of words."""
    embedding._tracker.unlock()  # as Keras does where a built layer gets another variable
    del embedding._embeddings
    embedding.input_dim, embedding.built = int(vectors_VD.shape[0]), False
    embedding.build()
    variable = embedding.embeddings
    assert variable is not None
    variable.assign(vectors_VD)


def by_slot(words_VD: Tensor, word_CS: Tensor | None) -> Tensor:
    """Return the vector of the word in each slot, and some vector in empty slots; all vectors if there are no slots."""
    return words_VD if word_CS is None else look_up(words_VD, tf.maximum(word_CS, 0))
