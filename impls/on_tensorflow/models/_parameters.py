"""The variables of a network, in which the output layer's have names `output.<name>`, and canonical parameters."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from vocabench.impls.on_tensorflow.device import to_numpy
from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors
from vocabench.impls.spec import Arrays

Variables = dict[str, tf.Variable]

_TRANSPOSED = ("_input_weight", "_hidden_weight")  # matrices of an LSTM, which Keras stores transposed


def with_output(body: Mapping[str, Tensor], output: Mapping[str, Tensor]) -> Tensors:
    """Join tensors of the body and of the output layer."""
    return {**body, **{f"output.{name}": value for name, value in output.items()}}


def output_of(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors of the output layer by their names in the layer."""
    return {name.removeprefix("output."): value for name, value in tensors.items() if name.startswith("output.")}


def to_canonical(variables: Variables, output: OutputLayer) -> Arrays:
    """Return the parameters in canonical form."""
    tensors = {name: tf.convert_to_tensor(value) for name, value in variables.items()}
    canonical = {name: _transposed(name, value) for name, value in tensors.items() if not name.startswith("output.")}
    canonical |= {f"output.{name}": value for name, value in output.to_canonical(output_of(tensors)).items()}
    return {name: to_numpy(value) for name, value in canonical.items()}


def load_canonical(params: Arrays, variables: Variables, output: OutputLayer) -> None:
    """Assign parameters in canonical form to the variables."""
    dtype = next(iter(variables.values())).dtype  # the same for all variables
    tensors = {name: tf.cast(tf.constant(value), dtype) for name, value in params.items()}
    output.load_canonical(output_of(tensors))
    for name, variable in variables.items():
        if not name.startswith("output."):
            variable.assign(_transposed(name, tensors[name]))


def _transposed(name: str, value: Tensor) -> Tensor:
    """Convert between canonical form and the form of Keras, in either direction."""
    return tf.transpose(value) if name.endswith(_TRANSPOSED) else value
