"""An LSTM over sequences of any length, without a trace for each: cuDNN's on an accelerator, through Keras, and on a
CPU a loop whose gradient is written out."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from vocabench.impls.on_tensorflow.layer import Tensor

State = tuple[Tensor, Tensor]


def keras_lstm(inputs: int, hidden: int, dtype: str, *, unroll: bool = False) -> keras.layers.LSTM:
    """Keras's, blank: its gate order is ours, it has one bias, and its matrices are ours transposed."""
    blank = keras.layers.LSTM(
        hidden,
        return_sequences=True,
        return_state=True,
        dtype=dtype,
        unroll=unroll,
        recurrent_initializer="zeros",  # the orthogonal one knows no bfloat16
    )
    blank.build((None, None, inputs))
    return blank


def variables_of(prefix: str, layer: keras.layers.LSTM) -> dict[str, tf.Variable]:
    """By the names of `impls/models/lstm.py`."""
    cell = layer.cell
    values = {"input_weight": cell.kernel, "hidden_weight": cell.recurrent_kernel, "bias": cell.bias}
    return {f"{prefix}_{name}": value.value for name, value in values.items()}


class LSTM:
    """One LSTM of a network.

    Keras's own masked loop takes half as long again on a CPU; unrolled it is as fast as ours, but traced for every
    length (two cores, 64 sequences of 50 words, width 128).

    Args:
        prefix: Of its parameters' names.
        inputs: Width of an input.
        hidden: Of a state.
        dtype: Of everything.
        on_cpu: Whether to run the loop.
    """

    def __init__(self, prefix: str, inputs: int, hidden: int, dtype: str, *, on_cpu: bool) -> None:
        self._prefix, self._on_cpu = prefix, on_cpu
        self._layer = keras_lstm(inputs, hidden, dtype)

    def variables(self) -> dict[str, tf.Variable]:
        return variables_of(self._prefix, self._layer)

    def __call__(self, inputs_BTE: Tensor, real_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T, H) states, of no meaning where there is padding, and the state after each sequence's last real place.

        Args:
            inputs_BTE: (B, T, E).
            real_BT: False in the places of padding, which stand at the end of a sequence; none has only these.
            state: (B, H) both, before the first place.
        """
        if not self._on_cpu:
            states_BTH, *final = self._layer(inputs_BTE, mask=real_BT, initial_state=list(state))
            return states_BTH, tuple(final)
        input_EG, hidden_HG, bias_G = (tf.convert_to_tensor(value) for value in self.variables().values())
        # The product with the inputs needs no state, so it is one for all steps.
        gates_TBG = tf.matmul(tf.transpose(inputs_BTE, [1, 0, 2]), input_EG) + bias_G
        states: Any = _loop(gates_TBG, hidden_HG, *state)
        h_TBH, c_TBH = states
        last_B = tf.math.count_nonzero(real_BT, axis=1, dtype=tf.int32) - 1
        last_B2 = tf.stack([last_B, tf.range(tf.size(last_B))], axis=1)
        return tf.transpose(h_TBH, [1, 0, 2]), (tf.gather_nd(h_TBH, last_B2), tf.gather_nd(c_TBH, last_B2))


@tf.custom_gradient
def _loop(gates_TBG: Tensor, hidden_HG: Tensor, h_BH: Tensor, c_BH: Tensor) -> tuple[tuple[Tensor, Tensor], object]:
    """(T, B, H) of h and c after each step, from what the inputs and the bias give to the gates.

    The loop back carries only what one step hands to the one before; the matrix's gradient is one product for all.
    """
    steps, width = tf.shape(gates_TBG)[0], hidden_HG.shape[0]
    inputs = _array(gates_TBG)

    def step(t: Tensor, h_BH: Tensor, c_BH: Tensor, *done: tf.TensorArray) -> tuple[Tensor | tf.TensorArray, ...]:
        i, f, g, o = tf.split(inputs.read(t) + tf.matmul(h_BH, hidden_HG), 4, axis=1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        c_BH = f * c_BH + i * g
        h_BH = o * tf.tanh(c_BH)
        made = (h_BH, c_BH, tf.concat([i, f, g, o], axis=1))
        return t + 1, h_BH, c_BH, *(array.write(t, value) for array, value in zip(done, made, strict=True))

    empty = (tf.TensorArray(gates_TBG.dtype, steps, element_shape=[None, n]) for n in (width, width, 4 * width))
    _, _, _, *done = tf.while_loop(lambda t, *_: t < steps, step, (0, h_BH, c_BH, *empty), maximum_iterations=steps)
    h_TBH, c_TBH, opened_TBG = (array.stack() for array in done)

    def gradient(dh_TBH: Tensor, dc_TBH: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        i, f, g, o = tf.split(opened_TBG, 4, axis=2)
        before_h, before_c = (tf.concat([first[None], rest[:-1]], 0) for first, rest in ((h_BH, h_TBH), (c_BH, c_TBH)))
        tanh_c = tf.tanh(c_TBH)
        slopes_TBG = tf.concat([g * i * (1 - i), before_c * f * (1 - f), i * (1 - g * g), tanh_c * o * (1 - o)], axis=2)
        known = [_array(each) for each in (dh_TBH, dc_TBH, o * (1 - tanh_c * tanh_c), f, slopes_TBG)]

        def back(t: Tensor, dh: Tensor, dc: Tensor, dgates: tf.TensorArray) -> tuple[Tensor | tf.TensorArray, ...]:
            dh_here, dc_here, slope, forget, slopes = (array.read(t) for array in known)
            dh += dh_here
            dc += dc_here + dh * slope
            made = tf.concat([dc, dc, dc, dh], axis=1) * slopes
            return t - 1, tf.matmul(made, hidden_HG, transpose_b=True), dc * forget, dgates.write(t, made)

        blank = tf.TensorArray(gates_TBG.dtype, steps, element_shape=[None, 4 * width])
        start = (steps - 1, tf.zeros_like(h_BH), tf.zeros_like(c_BH), blank)
        _, dh, dc, dgates = tf.while_loop(lambda t, *_: t >= 0, back, start, maximum_iterations=steps)
        dgates_TBG = dgates.stack()
        flat = (tf.reshape(each, [-1, each.shape[2]]) for each in (before_h, dgates_TBG))
        return dgates_TBG, tf.matmul(*flat, transpose_a=True), dh, dc

    return (h_TBH, c_TBH), gradient


def _array(values_TBX: Tensor) -> tf.TensorArray:
    array = tf.TensorArray(values_TBX.dtype, tf.shape(values_TBX)[0], element_shape=[None, values_TBX.shape[2]])
    return array.unstack(values_TBX)
