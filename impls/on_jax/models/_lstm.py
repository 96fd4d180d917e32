"""The LSTM of `impls/models/lstm.py` in JAX: a scan, and the same by cuDNN. Parameters are named after a prefix.

Shape letters besides those of `impls/spec.py`: E width of a word's vector, H of the state, G the four gates' 4 H.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.on_jax import adapter
from vocabench.impls.on_jax.layer import Array, Tree
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
        """(B, T, H) outputs and the final state.

        Args:
            params: Holds `<prefix>_input_weight`, `<prefix>_hidden_weight` and `<prefix>_bias`.
            prefix: Which LSTM of the network.
            vectors_VE: Word vectors.
            inputs_BT: Word ids; beyond a sequence's length any.
            state: Before the first word.
            lengths_B: Words of each sequence, from 1: its final state is that after the last, and outputs beyond mean
                nothing. None where all have T.
        """
        ...


def form_for(device: adapter.Device, dtype: str) -> Lstm:
    """The fast form there; cuDNN's is float32's, and elsewhere the scan is the only one."""
    return cudnn_lstm if device.platform == "gpu" and storage(dtype) == "float32" else lstm


def zero_state(batch: int, hidden: int, dtype: jnp.dtype) -> State:
    return jnp.zeros((batch, hidden), dtype), jnp.zeros((batch, hidden), dtype)


def lstm(
    params: Tree, prefix: str, vectors_VE: Array, inputs_BT: Array, state: State, lengths_B: Array | None = None
) -> tuple[Array, State]:
    """See `Lstm`; the products with the inputs are taken out of the recurrence.

    Weights are not transposed: XLA would merge the product of a single token with what is added to it, into a loop that
    takes three times as long.
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
    """The LSTM's parameters in cuDNN's single array: input and hidden weights, then two biases, the second one zero."""
    bias = params[f"{prefix}_bias"]
    weights = params[f"{prefix}_input_weight"].ravel(), params[f"{prefix}_hidden_weight"].ravel()
    return jnp.concatenate([*weights, bias, jnp.zeros_like(bias)])


def cudnn_lstm(
    params: Tree, prefix: str, vectors_VE: Array, inputs_BT: Array, state: State, lengths_B: Array | None = None
) -> tuple[Array, State]:
    """See `Lstm`."""
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
