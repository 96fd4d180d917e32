"""A network's variables, the output layer's as `output.<name>` among them, and its canonical parameters."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from vocabench.impls.on_tensorflow.device import to_numpy
from vocabench.impls.on_tensorflow.layer import OutputLayer, Tensor, Tensors
from vocabench.impls.spec import Arrays

Variables = dict[str, tf.Variable]

_TRANSPOSED = ("_input_weight", "_hidden_weight")  # an LSTM's matrices, as Keras has them


def with_output(body: Mapping[str, Tensor], output: Mapping[str, Tensor]) -> Tensors:
    return {**body, **{f"output.{name}": value for name, value in output.items()}}


def output_of(tensors: Mapping[str, Tensor]) -> Tensors:
    return {n.removeprefix("output."): value for n, value in tensors.items() if n.startswith("output.")}


def to_canonical(variables: Variables, output: OutputLayer) -> Arrays:
    found = {name: tf.convert_to_tensor(value) for name, value in variables.items()}
    canonical = {name: _turned(name, value) for name, value in found.items() if not name.startswith("output.")}
    canonical |= {f"output.{name}": value for name, value in output.to_canonical(output_of(found)).items()}
    return {name: to_numpy(value) for name, value in canonical.items()}


def load_canonical(params: Arrays, variables: Variables, output: OutputLayer) -> None:
    dtype = next(iter(variables.values())).dtype  # one for all
    tensors = {name: tf.cast(tf.constant(value), dtype) for name, value in params.items()}
    output.load_canonical(output_of(tensors))
    for name, variable in variables.items():
        if not name.startswith("output."):
            variable.assign(_turned(name, tensors[name]))


def _turned(name: str, value: Tensor) -> Tensor:
    return tf.transpose(value) if name.endswith(_TRANSPOSED) else value
