"""The encoder-decoder of `impls/models/summarizer.py` in float64, which defines the frameworks' models.

Back-propagation is written by hand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.models.summarizer import Summarizer, SummarizerConfig
from vocabench.impls.on_numpy.models import _lstm
from vocabench.impls.on_numpy.models._network import InFloat64
from vocabench.impls.on_numpy.optimizers import Updates
from vocabench.impls.on_numpy.oracle import log_softmax
from vocabench.impls.spec import Arrays


class Memory(NamedTuple):
    """Keys and values of the attention over the sources."""

    states_BSH: NDArray  # e_s
    keys_BSH: NDArray  # W_a e_s
    real_BS: NDArray


class Read(NamedTuple):
    """Output of the attention, and the values that its gradient needs."""

    hidden_BTH: NDArray  # h_t
    weight_BTS: NDArray  # a_ts, 0 at padding
    combined_BTX: NDArray  # [c_t; s_t], X = 2 H


class NumpySummarizer(InFloat64[SummarizerConfig], Summarizer):
    """Encoder-decoder in float64."""

    def _begin(self) -> None:
        self.updates = Updates(self.config.optimizer, self.params)
        self.decoding: tuple[Memory, _lstm.State] | None = None

    def step(self, sources_BS: NDArray, targets_BT: NDArray) -> float:
        inputs_BT, real_BT = self.inputs_of(targets_BT), targets_BT >= 0
        memory, final, encoder_tape = self._encode(sources_BS)
        states_BTH, _, decoder_tape = self._decode(inputs_BT, final)
        read = self._attend(states_BTH, memory)
        loss, dhidden_NH, output = self.layer._plain_loss_and_grads(
            read.hidden_BTH[real_BT], targets_BT[real_BT], **self.next_extra_for(targets_BT)
        )
        dhidden_BTH = np.zeros_like(read.hidden_BTH)
        dhidden_BTH[real_BT] = dhidden_NH
        attention, dstates_BTH, dmemory_BSH = self._attend_backward(states_BTH, memory, read, dhidden_BTH)
        decoder, dtarget_BTE, dfinal = _lstm.backward(self.params, "decoder", decoder_tape, dstates_BTH)
        encoder, dsource_BSE, _ = _lstm.backward(self.params, "encoder", encoder_tape, dmemory_BSH, dfinal)
        embeddings = {name: np.zeros_like(self.params[name]) for name in ("source_embedding", "target_embedding")}
        np.add.at(embeddings["source_embedding"], np.maximum(sources_BS, 0), dsource_BSE)
        np.add.at(embeddings["target_embedding"], inputs_BT, dtarget_BTE)
        output = {f"output.{name}": grad for name, grad in output.items()}
        self.updates.apply(self.params, {**embeddings, **encoder, **decoder, **attention, **output})
        return loss

    def evaluate(self, sources_BS: NDArray, targets_BT: NDArray) -> float:
        memory, final, _ = self._encode(sources_BS)
        hidden_BTH = self._attend(self._decode(self.inputs_of(targets_BT), final)[0], memory).hidden_BTH
        real_BT = targets_BT >= 0
        return -float(self.layer._target_log_probs(hidden_BTH[real_BT], targets_BT[real_BT]).sum())

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        memory, state, _ = self._encode(prompts_BT)
        return self._next_words(memory, state, np.full(len(prompts_BT), self.config.end), k)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decoding is not None
        memory, (h_RH, c_RH) = self.decoding
        return self._next_words(memory, (h_RH[rows_R], c_RH[rows_R]), ids_R, k)

    def _next_words(self, memory: Memory, state: _lstm.State, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        _, state, _ = self._decode(ids_R[:, None], state)
        self.decoding = memory, state
        h_RH = state[0]
        # The rows of a source attend to its memory as the steps of a summary do.
        h_BWH = h_RH.reshape(len(memory.real_BS), -1, h_RH.shape[1])
        return self.layer._topk(self._attend(h_BWH, memory).hidden_BTH.reshape(h_RH.shape), k)

    def synchronize(self) -> None:
        pass

    def _encode(self, sources_BS: NDArray) -> tuple[Memory, _lstm.State, _lstm.Tape]:
        """Return the memory, the state after the last word of each source, and the tape of the encoder."""
        real_BS = sources_BS >= 0
        vectors_BSE = self.params["source_embedding"][np.maximum(sources_BS, 0)]
        states_BSH, final, tape = _lstm.forward(self.params, "encoder", vectors_BSE, real_BT=real_BS)
        return Memory(states_BSH, states_BSH @ self.params["attention_weight"].T, real_BS), final, tape

    def _decode(self, inputs_BT: NDArray, state: _lstm.State) -> tuple[NDArray, _lstm.State, _lstm.Tape]:
        return _lstm.forward(self.params, "decoder", self.params["target_embedding"][inputs_BT], state)

    def _attend(self, states_BTH: NDArray, memory: Memory) -> Read:
        scores_BTS = states_BTH @ memory.keys_BSH.swapaxes(1, 2)
        weight_BTS = np.exp(log_softmax(np.where(memory.real_BS[:, None, :], scores_BTS, -np.inf)))
        combined_BTX = np.concatenate([weight_BTS @ memory.states_BSH, states_BTH], axis=2)
        return Read(np.tanh(combined_BTX @ self.params["combine_weight"].T), weight_BTS, combined_BTX)

    def _attend_backward(
        self, states_BTH: NDArray, memory: Memory, read: Read, dhidden_BTH: NDArray
    ) -> tuple[Arrays, NDArray, NDArray]:
        """Return the gradients of the parameters of the attention, of s_t and of e_s, given that of h_t."""
        dsum_BTH = dhidden_BTH * (1 - read.hidden_BTH**2)
        dcontext_BTH, dstates_BTH = np.split(dsum_BTH @ self.params["combine_weight"], 2, axis=2)
        dweight_BTS = dcontext_BTH @ memory.states_BSH.swapaxes(1, 2)
        mean_BT1 = (read.weight_BTS * dweight_BTS).sum(axis=2, keepdims=True)
        dmatch_BTS = read.weight_BTS * (dweight_BTS - mean_BT1)
        dkeys_BSH = dmatch_BTS.swapaxes(1, 2) @ states_BTH
        dmemory_BSH = read.weight_BTS.swapaxes(1, 2) @ dcontext_BTH + dkeys_BSH @ self.params["attention_weight"]
        grads = {
            "attention_weight": np.einsum("bsi,bsj->ij", dkeys_BSH, memory.states_BSH),
            "combine_weight": np.einsum("bth,btx->hx", dsum_BTH, read.combined_BTX),
        }
        return grads, dstates_BTH + dmatch_BTS @ memory.keys_BSH, dmemory_BSH


NETWORK = NumpySummarizer
