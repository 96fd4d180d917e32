"""The encoder-decoder in JAX. See `impls/on_numpy/models/summarizer.py` for the definition.

Each shape of a batch is compiled separately, so callers pad sources and targets to few lengths.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from vocabench.impls.models.summarizer import PADDING, Summarizer, SummarizerConfig
from vocabench.impls.on_jax.device import JAX_DTYPES, Device, extra_on, precision, to_numpy
from vocabench.impls.on_jax.models import _lstm, _output
from vocabench.impls.on_jax.models._lstm import State
from vocabench.impls.on_jax.models._output import output_of
from vocabench.impls.on_jax.models._packing import pack, packed_extra
from vocabench.impls.on_jax.native import native
from vocabench.impls.on_jax.ops.arrays import Array, Tree, wide
from vocabench.impls.on_jax.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


class Memory(NamedTuple):
    """The encoder's states, and the mask of those that belong to words."""

    state_BSH: Array
    real_BS: Array


def attend(params: Tree, states_BTH: Array, memory: Memory) -> Array:
    """Return the output layer's hidden vectors (B, T, H) from the decoder's states.

    W_a multiplies the decoder's states instead of the memory. In training there are fewer of them, in a typical search
    not more, and no product with the memory has to be kept.
    """
    kind = wide(states_BTH.dtype)
    query_BTH = states_BTH @ params["attention_weight"]
    scores_BTS = jnp.einsum("bth,bsh->bts", query_BTH, memory.state_BSH, preferred_element_type=kind)
    scores_BTS = jnp.where(memory.real_BS[:, None], scores_BTS, -jnp.inf)
    weights_BTS = jax.nn.softmax(scores_BTS, axis=2).astype(states_BTH.dtype)
    context_BTH = jnp.einsum("bts,bsh->bth", weights_BTS, memory.state_BSH)
    return jnp.tanh(jnp.concatenate([context_BTH, states_BTH], axis=2) @ params["combine_weight"].T)


class JaxSummarizer(Summarizer):
    """The encoder-decoder with a compiled training step, whose parameters are updated in place."""

    def __init__(self, spec: LayerSpec, config: SummarizerConfig, device: Device) -> None:
        super().__init__(spec, config)
        self.device, self.dtype = device, JAX_DTYPES[spec.dtype]
        self.output = native(spec, device)
        self._lstm = _lstm.form_for(device, spec.dtype)
        with precision(spec.dtype), jax.default_device(device):
            self.structure = self.output.structure()
        self._step = jax.jit(self._step_of, donate_argnums=(0, 1))
        self._evaluate = jax.jit(self._evaluate_of)
        self._prime = jax.jit(self._prime_of, static_argnums=3)
        self._extend = jax.jit(self._next_of, static_argnums=5)
        self._load(self.initial_parameters())

    def _load(self, params: Arrays) -> None:
        with precision(self.spec.dtype), jax.default_device(self.device):
            self.params = _output.from_canonical(self.output, self.structure, params, self.dtype)
            self.optimizer = optimizers.init(self.config.optimizer, self.params)
        self.memory: Memory | None = None
        self.decode_state: State | None = None

    def parameters(self) -> Arrays:
        with precision(self.spec.dtype):
            return _output.to_canonical(self.output, self.structure, self.params)

    def _encode(self, params: Tree, sources_BS: Array) -> tuple[Memory, State]:
        real_BS = sources_BS != PADDING
        lengths_B = real_BS.sum(axis=1, dtype=jnp.int32)
        words_BS, vectors = jnp.maximum(sources_BS, 0), params["source_embedding"]
        zeros = _lstm.zero_state(len(sources_BS), self.config.hidden, self.dtype)
        states_BSH, state = self._lstm(params, "encoder", vectors, words_BS, zeros, lengths_B)
        return Memory(states_BSH, real_BS), state

    def _decode(self, params: Tree, inputs_BT: Array, state: State) -> tuple[Array, State]:
        return self._lstm(params, "decoder", params["target_embedding"], inputs_BT, state)

    def _hidden_of(self, params: Tree, sources_BS: Array, inputs_BT: Array, places_N: Array) -> Array:
        """Return the output layer's hidden vectors (N, H) at these places."""
        memory, state = self._encode(params, sources_BS)
        states_BTH, _ = self._decode(params, inputs_BT, state)
        return attend(params, states_BTH, memory).reshape(-1, self.config.hidden)[places_N]

    def _step_of(
        self,
        params: Tree,
        optimizer: optimizers.State,
        structure: Tree,
        sources_BS: Array,
        inputs_BT: Array,
        places_N: Array,
        targets_N: Array,
        extra: dict[str, Any],
    ) -> tuple[Tree, optimizers.State, Array]:
        def loss_of(params: Tree) -> Array:
            hidden_NH = self._hidden_of(params, sources_BS, inputs_BT, places_N)
            return self.output.loss(output_of(params), structure, hidden_NH, targets_N, ignore_index=PADDING, **extra)

        loss, grads = jax.value_and_grad(loss_of)(params)
        return *optimizers.update(self.config.optimizer, params, grads, optimizer), loss

    def _evaluate_of(
        self, params: Tree, structure: Tree, sources_BS: Array, inputs_BT: Array, places_N: Array, targets_N: Array
    ) -> Array:
        hidden_NH = self._hidden_of(params, sources_BS, inputs_BT, places_N)
        words_N = jnp.maximum(targets_N, 0)
        log_probs_N = self.output.target_log_probs(output_of(params), structure, hidden_NH, words_N)
        return -jnp.where(targets_N != PADDING, log_probs_N, 0).sum()

    def _batch(self, sources_BS: NDArray, targets_BT: NDArray) -> tuple[NDArray[np.int32], ...]:
        return sources_BS.astype(np.int32), self.inputs_of(targets_BT), *pack(targets_BT, PADDING)

    def step(self, sources_BS: NDArray, targets_BT: NDArray) -> Array:
        with precision(self.spec.dtype), jax.default_device(self.device):
            batch = self._batch(sources_BS, targets_BT)
            extra = packed_extra(self.spec, self.next_extra_for(targets_BT), len(batch[-1]))
            extra = extra_on(self.device, extra)
            self.params, self.optimizer, loss = self._step(self.params, self.optimizer, self.structure, *batch, extra)
            return loss

    def evaluate(self, sources_BS: NDArray, targets_BT: NDArray) -> float:
        with precision(self.spec.dtype), jax.default_device(self.device):
            return float(self._evaluate(self.params, self.structure, *self._batch(sources_BS, targets_BT)))

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        with precision(self.spec.dtype), jax.default_device(self.device):
            values, ids, self.decode_state, self.memory = self._prime(
                self.params, self.structure, prompts_BT.astype(np.int32), k
            )
            return to_numpy(values), to_numpy(ids)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decode_state is not None
        with precision(self.spec.dtype), jax.default_device(self.device):
            # Gathered outside of the compiled function, which would otherwise be compiled for each number of states.
            h_RH, c_RH = (state_BH[rows_R] for state_BH in self.decode_state)
            values, ids, self.decode_state = self._extend(
                self.params, self.structure, self.memory, ids_R.astype(np.int32), (h_RH, c_RH), k
            )
            return to_numpy(values), to_numpy(ids)

    def _prime_of(self, params: Tree, structure: Tree, sources_BS: Array, k: int) -> tuple[Array, Array, State, Memory]:
        memory, state = self._encode(params, sources_BS)
        ends_B = jnp.full(len(sources_BS), self.config.end, jnp.int32)
        return *self._next_of(params, structure, memory, ends_B, state, k), memory

    def _next_of(
        self, params: Tree, structure: Tree, memory: Memory, inputs_R: Array, state: State, k: int
    ) -> tuple[Array, Array, State]:
        states_R1H, state = self._decode(params, inputs_R[:, None], state)
        states_BWH = states_R1H.reshape(len(memory.real_BS), -1, self.config.hidden)
        hidden_RH = attend(params, states_BWH, memory).reshape(-1, self.config.hidden)
        return *self.output.topk(output_of(params), structure, hidden_RH, k), state

    def synchronize(self) -> None:
        jax.block_until_ready(self.params)


NETWORK = JaxSummarizer
