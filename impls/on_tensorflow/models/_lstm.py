"""An LSTM over sequences of any length, with a single trace for all lengths.

On an accelerator it is cuDNN's, through Keras. On a CPU it is a loop whose gradient is written out.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from vocabench.impls.on_tensorflow.ops.tensors import Tensor

State = tuple[Tensor, Tensor]


def keras_lstm(inputs: int, hidden: int, dtype: str, *, unroll: bool = False) -> keras.layers.LSTM:
    """Return Keras's LSTM with zero parameters.

    It has the same order of gates and one bias. Its matrices are the transposes of the canonical ones.
    """
    blank = keras.layers.LSTM(
        hidden,
        return_sequences=True,
        return_state=True,
        dtype=dtype,
        unroll=unroll,
        recurrent_initializer="zeros",  # the default initializer does not support bfloat16
    )
    blank.build((None, None, inputs))
    return blank


def variables_of(prefix: str, layer: keras.layers.LSTM) -> dict[str, tf.Variable]:
    """Return the variables of a layer by the names of `impls/models/lstm.py`."""
    cell = layer.cell
    values = {"input_weight": cell.kernel, "hidden_weight": cell.recurrent_kernel, "bias": cell.bias}
    return {f"{prefix}_{name}": value.value for name, value in values.items()}


class LSTM:
    """One LSTM of a network.

    On a CPU, Keras's masked loop takes 1.5 times as long as the loop here. Keras's unrolled loop is as fast, but is
    traced for each length (two cores, 64 sequences of 50 words, width 128).

    Args:
        prefix: Prefix of the parameter names.
        inputs: Width of an input.
        hidden: Width of a state.
        dtype: Dtype of inputs, states and parameters.
        on_cpu: Whether to run the loop.
    """

    def __init__(self, prefix: str, inputs: int, hidden: int, dtype: str, *, on_cpu: bool) -> None:
        self._prefix, self._on_cpu = prefix, on_cpu
        self._layer = keras_lstm(inputs, hidden, dtype)

    def variables(self) -> dict[str, tf.Variable]:
        """Return the variables by parameter name."""
        return variables_of(self._prefix, self._layer)

    def __call__(self, inputs_BTE: Tensor, real_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """Return (B, T, H) states, which are meaningless at padding, and the final state of each sequence.

        Args:
            inputs_BTE: (B, T, E).
            real_BT: False for padding, which is at the end of a sequence. No sequence consists of padding alone.
            state: The two (B, H) arrays before the first position.
        """
        if not self._on_cpu:
            states_BTH, *final = self._layer(inputs_BTE, mask=real_BT, initial_state=list(state))
            return states_BTH, tuple(final)
        input_EG, hidden_HG, bias_G = (tf.convert_to_tensor(value) for value in self.variables().values())
        # The product with the inputs does not depend on the state, so it is one product for all steps.
        gates_TBG = tf.matmul(tf.transpose(inputs_BTE, [1, 0, 2]), input_EG) + bias_G
        states: Any = _loop(gates_TBG, hidden_HG, *state)
        h_TBH, c_TBH = states
        last_B = tf.math.count_nonzero(real_BT, axis=1, dtype=tf.int32) - 1
        last_B2 = tf.stack([last_B, tf.range(tf.size(last_B))], axis=1)
        return tf.transpose(h_TBH, [1, 0, 2]), (tf.gather_nd(h_TBH, last_B2), tf.gather_nd(c_TBH, last_B2))


@tf.custom_gradient
def _loop(gates_TBG: Tensor, hidden_HG: Tensor, h_BH: Tensor, c_BH: Tensor) -> tuple[tuple[Tensor, Tensor], object]:
    """Return h and c (T, B, H) after each step, from the contributions of inputs and bias to the gates.

    The backward loop computes only the gradients that depend on the next step. The gradient of the matrix is one
    product for all steps.
    """
    steps, width = tf.shape(gates_TBG)[0], hidden_HG.shape[0]
    inputs = _array(gates_TBG)

    def step(t: Tensor, h_BH: Tensor, c_BH: Tensor, *outputs: tf.TensorArray) -> tuple[Tensor | tf.TensorArray, ...]:
        i, f, g, o = tf.split(inputs.read(t) + tf.matmul(h_BH, hidden_HG), 4, axis=1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        c_BH = f * c_BH + i * g
        h_BH = o * tf.tanh(c_BH)
        values = (h_BH, c_BH, tf.concat([i, f, g, o], axis=1))
        return t + 1, h_BH, c_BH, *(array.write(t, value) for array, value in zip(outputs, values, strict=True))

    empty = (tf.TensorArray(gates_TBG.dtype, steps, element_shape=[None, size]) for size in (width, width, 4 * width))
    _, _, _, *outputs = tf.while_loop(lambda t, *_: t < steps, step, (0, h_BH, c_BH, *empty), maximum_iterations=steps)
    h_TBH, c_TBH, activated_TBG = (array.stack() for array in outputs)

    def gradient(dh_TBH: Tensor, dc_TBH: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        i, f, g, o = tf.split(activated_TBG, 4, axis=2)
        before_h, before_c = (tf.concat([first[None], rest[:-1]], 0) for first, rest in ((h_BH, h_TBH), (c_BH, c_TBH)))
        tanh_c = tf.tanh(c_TBH)
        slopes_TBG = tf.concat([g * i * (1 - i), before_c * f * (1 - f), i * (1 - g * g), tanh_c * o * (1 - o)], axis=2)
        by_step = [_array(values) for values in (dh_TBH, dc_TBH, o * (1 - tanh_c * tanh_c), f, slopes_TBG)]

        def backward(t: Tensor, dh: Tensor, dc: Tensor, dgates: tf.TensorArray) -> tuple[Tensor | tf.TensorArray, ...]:
            dh_here, dc_here, slope, forget, slopes = (array.read(t) for array in by_step)
            dh += dh_here
            dc += dc_here + dh * slope
            dgates_BG = tf.concat([dc, dc, dc, dh], axis=1) * slopes
            return t - 1, tf.matmul(dgates_BG, hidden_HG, transpose_b=True), dc * forget, dgates.write(t, dgates_BG)

        blank = tf.TensorArray(gates_TBG.dtype, steps, element_shape=[None, 4 * width])
        start = (steps - 1, tf.zeros_like(h_BH), tf.zeros_like(c_BH), blank)
        _, dh, dc, dgates = tf.while_loop(lambda t, *_: t >= 0, backward, start, maximum_iterations=steps)
        dgates_TBG = dgates.stack()
        flat = (tf.reshape(array, [-1, array.shape[2]]) for array in (before_h, dgates_TBG))
        return dgates_TBG, tf.matmul(*flat, transpose_a=True), dh, dc

    return (h_TBH, c_TBH), gradient


def _array(values_TBX: Tensor) -> tf.TensorArray:
    """Return an array that a loop reads by step."""
    array = tf.TensorArray(values_TBX.dtype, tf.shape(values_TBX)[0], element_shape=[None, values_TBX.shape[2]])
    return array.unstack(values_TBX)
