"""The encoder-decoder in PyTorch. See `impls/on_numpy/models/summarizer.py` for the definition."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vocabench.impls.models.summarizer import Summarizer, SummarizerConfig
from vocabench.impls.on_torch.device import Switched, extra_on, ids_on, synchronize, to_numpy
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.models import _lstm, _network
from vocabench.impls.on_torch.native import blank
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, at_least_float32
from vocabench.impls.on_torch.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


class Memory(NamedTuple):
    """The encoded sources, which the attention reads."""

    states_BSH: Tensor  # e_s
    padding_BS: Tensor


class Network(_network.Network):
    """Two embeddings, two LSTMs and an attention below any output layer."""

    NAMES: ClassVar = {
        "source_embedding": "source_embedding.weight",
        **_lstm.names("encoder", "encoder"),
        "target_embedding": "target_embedding.weight",
        **_lstm.names("decoder", "decoder"),
        "attention_weight": "attention.weight",
        "combine_weight": "combine.weight",
    }

    def __init__(self, config: SummarizerConfig, output: OutputLayer, dtype: torch.dtype) -> None:
        super().__init__()
        hidden = config.hidden
        self.source_embedding = nn.Embedding(config.sources, config.embedding, dtype=dtype)
        self.encoder = _lstm.build(config.embedding, hidden, dtype)
        self.target_embedding = nn.Embedding(output.spec.vocab, config.embedding, dtype=dtype)
        self.decoder = _lstm.build(config.embedding, hidden, dtype)
        self.attention = nn.Linear(hidden, hidden, bias=False, dtype=dtype)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False, dtype=dtype)
        self.output = output

    def encode(self, sources_BS: Tensor, lengths_B: Tensor) -> tuple[Memory, _lstm.State]:
        """Return the memory and the state after each source's last word; `lengths_B` is on the host."""
        vectors_BSE = self.source_embedding(sources_BS.clamp(min=0))
        states_BSH, final = _lstm.over_padded(self.encoder, vectors_BSE, lengths_B)
        return Memory(states_BSH, sources_BS < 0), final

    def decode(self, inputs_BT: Tensor, state: _lstm.State) -> tuple[Tensor, _lstm.State]:
        """Return s_t (B, T, H) and the state after the last step."""
        return self.decoder(self.target_embedding(inputs_BT), state)

    def attend(self, states_BTH: Tensor, memory: Memory, places_N: Tensor | None = None) -> Tensor:
        """Return h_t (N, H) at the given of the B T batch-major places, or at all of them."""
        # W_a is applied to the decoder's states, which are fewer than the encoder's.
        queries_BTH = states_BTH @ self.attention.weight
        scores_BTS = at_least_float32(queries_BTH @ memory.states_BSH.mT)
        weight_BTS = scores_BTS.masked_fill(memory.padding_BS[:, None], -torch.inf).softmax(dim=2)
        context_BTH = weight_BTS.to(states_BTH.dtype) @ memory.states_BSH
        combined_NX = torch.cat([context_BTH, states_BTH], dim=2).flatten(0, 1)
        if places_N is not None:
            combined_NX = combined_NX.index_select(0, places_N)
        return self.combine(combined_NX).tanh()


class TorchSummarizer(Switched, Summarizer):
    def __init__(self, spec: LayerSpec, config: SummarizerConfig, device: torch.device) -> None:
        super().__init__(spec, config)
        self.device = device
        self.network = Network(config, blank(spec), TORCH_DTYPES[spec.dtype]).to(device)
        self._load(self.initial_parameters())

    def parameters(self) -> Arrays:
        return self.network.read()

    def _load(self, params: Arrays) -> None:
        self.network.write(params)
        self.optimizer = optimizers.build(self.config.optimizer, self.network.trained().values())
        self.decoding: tuple[Memory, _lstm.State] | None = None

    def _ids(self, ids: NDArray) -> Tensor:
        return ids_on(self.device, ids)

    def _encode(self, sources_BS: NDArray) -> tuple[Memory, _lstm.State]:
        return self.network.encode(self._ids(sources_BS), torch.from_numpy((sources_BS >= 0).sum(axis=1)))

    def _forward(self, sources_BS: NDArray, targets_BT: NDArray) -> tuple[Tensor, Tensor]:
        """Return (N, H) hidden vectors and (N,) words of the targets that are not padding, determined on the host."""
        places_N = np.flatnonzero(targets_BT >= 0)
        memory, final = self._encode(sources_BS)
        states_BTH, _ = self.network.decode(self._ids(self.inputs_of(targets_BT)), final)
        hidden_NH = self.network.attend(states_BTH, memory, self._ids(places_N))
        return hidden_NH, self._ids(targets_BT.ravel()[places_N])

    def step(self, sources_BS: NDArray, targets_BT: NDArray) -> Tensor:
        extra = extra_on(self.device, self.next_extra_for(targets_BT))
        loss = self.network.output(*self._forward(sources_BS, targets_BT), **extra)
        optimizers.descend(loss, self.config.optimizer, self.optimizer, self.network.trained().values())
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, sources_BS: NDArray, targets_BT: NDArray) -> float:
        return -float(self.network.output.target_log_probs(*self._forward(sources_BS, targets_BT)).double().sum())

    @torch.no_grad()
    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        return self._next_words(*self._encode(prompts_BT), np.full(len(prompts_BT), self.config.end), k)

    @torch.no_grad()
    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decoding is not None
        memory, (h_1RH, c_1RH) = self.decoding
        rows = self._ids(rows_R)
        return self._next_words(memory, (h_1RH[:, rows], c_1RH[:, rows]), ids_R, k)

    def _next_words(self, memory: Memory, state: _lstm.State, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        states_R1H, state = self.network.decode(self._ids(ids_R[:, None]), state)
        self.decoding = memory, state
        # The attention treats a source's rows like steps of one summary, so that its memory is not copied.
        states_BWH = states_R1H.unflatten(0, (len(memory.padding_BS), -1)).squeeze(2)
        values, ids = self.network.output.topk(self.network.attend(states_BWH, memory), k)
        return to_numpy(values), to_numpy(ids)

    def synchronize(self) -> None:
        synchronize(self.device)


NETWORK = TorchSummarizer
