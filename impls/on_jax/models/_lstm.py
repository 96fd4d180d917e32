"""The LSTM of `impls/models/lstm.py` in JAX, as a scan and with cuDNN. A prefix identifies its parameters.

Shape letters besides those of `impls/spec.py`: E width of word vectors, H width of the state, G = 4 H width of the four
gates.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.on_jax.device import Device
from vocabench.impls.on_jax.ops.arrays import Array, Tree
from vocabench.impls.spec import storage

State = tuple[Array, Array]  # h and c, (B, H)


class Lstm(Protocol):
    """A form of the LSTM."""

    def __call__(
        self,
        params: Tree,
        prefix: str,
        vectors_VE: Array,
        inputs_BT: Array,
        state: State,
        lengths_B: Array | None = None,
    ) -> tuple[Array, State]:
        """Return the outputs (B, T, H) and the final state.

        Args:
            params: Parameters, among them `<prefix>_input_weight`, `<prefix>_hidden_weight` and `<prefix>_bias`.
            prefix: Name of the LSTM in the network.
            vectors_VE: Word vectors.
            inputs_BT: Word ids; any ids beyond the length of a sequence.
            state: State before the first word.
            lengths_B: Number of words of each sequence, from 1; None if all have T. The final state is the one after
                the last word, and outputs beyond it are meaningless.
        """
        ...


def form_for(device: Device, dtype: str) -> Lstm:
    """Return the fastest form for a device and precision: cuDNN for float32 on a GPU, otherwise the scan."""
    return cudnn_lstm if device.platform == "gpu" and storage(dtype) == "float32" else lstm


def zero_state(batch: int, hidden: int, dtype: jnp.dtype) -> State:
    """Return a state of zeros."""
    return jnp.zeros((batch, hidden), dtype), jnp.zeros((batch, hidden), dtype)


def lstm(
    params: Tree, prefix: str, vectors_VE: Array, inputs_BT: Array, state: State, lengths_B: Array | None = None
) -> tuple[Array, State]:
    """Compute the LSTM as a scan, as described by `Lstm`. The products with the inputs precede the recurrence.

    The products are written as einsums without transposed weights: XLA would fuse the product of a single token with
    the following addition into a loop that is three times slower.
    """
    inputs_TBE = vectors_VE[inputs_BT.T]
    gates_TBG = jnp.einsum("tbe,ge->tbg", inputs_TBE, params[f"{prefix}_input_weight"]) + params[f"{prefix}_bias"]
    real_TB1 = None if lengths_B is None else (jnp.arange(len(gates_TBG))[:, None] < lengths_B)[:, :, None]
    hidden_weight = params[f"{prefix}_hidden_weight"]

    def cell(before: State, step: tuple[Array, Array | None]) -> tuple[State, Array]:
        (h_BH, c_BH), (gates_BG, real_B1) = before, step
        i, f, g, o = jnp.split(gates_BG + jnp.einsum("bh,gh->bg", h_BH, hidden_weight), 4, axis=1)
        c_BH = jax.nn.sigmoid(f) * c_BH + jax.nn.sigmoid(i) * jnp.tanh(g)
        h_BH = jax.nn.sigmoid(o) * jnp.tanh(c_BH)
        if real_B1 is not None:
            h_BH, c_BH = jnp.where(real_B1, h_BH, before[0]), jnp.where(real_B1, c_BH, before[1])
        return (h_BH, c_BH), h_BH

    state, outputs_TBH = lax.scan(cell, state, (gates_TBG, real_TB1))
    return outputs_TBH.swapaxes(0, 1), state


def cudnn_weights(params: Tree, prefix: str) -> Array:
    """Return the parameters as cuDNN's single array: input and hidden weights, then two biases, the second one zero."""
    bias = params[f"{prefix}_bias"]
    weights = params[f"{prefix}_input_weight"].ravel(), params[f"{prefix}_hidden_weight"].ravel()
    return jnp.concatenate([*weights, bias, jnp.zeros_like(bias)])


def cudnn_lstm(
    params: Tree, prefix: str, vectors_VE: Array, inputs_BT: Array, state: State, lengths_B: Array | None = None
) -> tuple[Array, State]:
    """Compute the LSTM with cuDNN, as described by `Lstm`."""
    from jax.experimental import rnn

    inputs_BTE = vectors_VE[inputs_BT]
    batch, steps, embedding = inputs_BTE.shape
    results: Any = rnn.lstm(
        inputs_BTE,
        state[0][None],
        state[1][None],
        cudnn_weights(params, prefix),
        seq_lengths=jnp.full((batch,), steps, jnp.int32) if lengths_B is None else lengths_B,
        input_size=embedding,
        hidden_size=state[0].shape[1],
        num_layers=1,
        dropout=0.0,
        bidirectional=False,
    )
    outputs_BTH, h, c = results
    return outputs_BTH, (h[0], c[0])
