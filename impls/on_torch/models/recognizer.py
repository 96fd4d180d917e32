"""The speech recognizer in PyTorch.

See `impls/models/recognizer.py` for the formulas and `impls/on_numpy/models/recognizer.py` for the definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.models.recognizer import Recognizer, RecognizerConfig, frames_after
from vocabench.impls.on_torch.device import Switched, extra_on, ids_on, synchronize, to_numpy
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.models import _network
from vocabench.impls.on_torch.models._conformer import EncoderBlock, Front, Sinusoids
from vocabench.impls.on_torch.models._transformer import Decoder, KeysValues
from vocabench.impls.on_torch.native import blank
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, Tensors, at_least_float32
from vocabench.impls.on_torch.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


class Network(_network.Network):
    """An encoder and a decoder below any output layer."""

    def __init__(self, config: RecognizerConfig, output: OutputLayer, dtype: torch.dtype) -> None:
        super().__init__()
        self.sinusoids = Sinusoids(config.dim)
        self.front = Front(config)
        self.encoder = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.embedding = nn.Parameter(torch.empty(output.spec.vocab, config.dim))
        self.decoder = Decoder(config)
        if config.ctc_weight:
            self.ctc = nn.Linear(config.dim, output.spec.vocab + 1)
        self.to(dtype)  # the output layer has its own
        self.output = output

    def names(self) -> dict[str, str]:
        scales = {f"{name}.weight" for name, module in self.named_modules() if isinstance(module, nn.LayerNorm)}

        def canonical(name: str) -> str:
            owner, _, kind = name.rpartition(".")
            if kind not in ("weight", "bias"):
                return name
            return f"{owner}_{'scale' if name in scales else kind}".replace(".blocks.", ".")

        return {canonical(name): name for name in self.trained() if not name.startswith("output.")}

    def encode(self, features_BFM: Tensor, real_BS: Tensor) -> Tensor:
        """Return the (B, S, D) frames of the encoder."""
        x_BSD = self.front(features_BFM)
        offsets_PD = self.sinusoids.around(x_BSD.shape[1])
        for block in self.encoder:
            x_BSD = block(x_BSD, real_BS, offsets_PD)
        return x_BSD

    def decode(
        self,
        units_RT: Tensor,
        memory: Sequence[KeysValues],
        real_BS: Tensor,
        past: Sequence[KeysValues] | None = None,
    ) -> tuple[Tensor, list[KeysValues]]:
        """Return (R, T, D) hidden vectors after each of the units, and the `past` to pass with the next unit."""
        start = past[0][0].shape[2] if past else 0
        positions_TD = self.sinusoids.between(start, start + units_RT.shape[1])
        x_RTD = F.embedding(units_RT, self.embedding) * self.embedding.shape[1] ** 0.5 + positions_TD
        return self.decoder(x_RTD, memory, real_BS[:, None, None, :], past)


class Decoding(NamedTuple):
    """The state of a decode: the encoder's frames and the units so far."""

    memory: list[KeysValues]
    real_BS: Tensor
    past: list[KeysValues]


class TorchRecognizer(Switched, Recognizer):
    def __init__(self, spec: LayerSpec, config: RecognizerConfig, device: torch.device) -> None:
        super().__init__(spec, config)
        self.device, self.dtype = device, TORCH_DTYPES[spec.dtype]
        self.network = Network(config, blank(spec), self.dtype).to(device)
        self._load(self.initial_parameters())

    def parameters(self) -> Arrays:
        shapes = self.parameter_shapes()
        return {name: value.reshape(shapes[name]) for name, value in self.network.read().items()}

    def _load(self, params: Arrays) -> None:
        self.network.write(params)
        self.optimizer = optimizers.build(self.config.optimizer, self.network.trained().values())
        self.steps = 0
        self.decoding: Decoding | None = None

    def _ids(self, ids: NDArray) -> Tensor:
        return ids_on(self.device, ids)

    def _encode(self, features_BFM: NDArray, frames_B: NDArray) -> tuple[Tensor, Tensor]:
        """Return the (B, S, D) frames, and a mask (B, S) of frames that are not padding."""
        real_BS = np.arange(int(frames_after(features_BFM.shape[1]))) < frames_after(frames_B)[:, None]
        real = torch.from_numpy(real_BS).to(self.device, non_blocking=True)
        features = torch.from_numpy(np.ascontiguousarray(features_BFM)).to(self.device, self.dtype, non_blocking=True)
        return self.network.encode(features, real), real

    def _hidden(self, frames_BSD: Tensor, real_BS: Tensor, targets_BT: NDArray) -> tuple[Tensor, Tensor]:
        """Return the (N, D) hidden vectors of the output layer for the targets' units, and (N,) these units."""
        memory = self.network.decoder.memory(frames_BSD)
        hidden_BTD, _ = self.network.decode(self._ids(self.inputs_of(targets_BT)), memory, real_BS)
        place_N = np.flatnonzero(targets_BT >= 0)
        return hidden_BTD.flatten(0, 1).index_select(0, self._ids(place_N)), self._ids(targets_BT.ravel()[place_N])

    def step(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> Tensor:
        frames_BSD, real_BS = self._encode(features_BFM, frames_B)
        hidden_ND, targets_N = self._hidden(frames_BSD, real_BS, targets_BT)
        extra, weight = extra_on(self.device, self.next_extra_for(targets_BT)), self.config.ctc_weight
        loss = self._unit_loss(hidden_ND, targets_N, extra)
        if weight:
            ctc_nll = self._ctc_nll(frames_BSD, frames_B, targets_BT)
            loss = (1 - weight) * loss + weight / len(targets_N) * ctc_nll
        self.steps += 1
        rate, trained = self.config.rate_at(self.steps), self.network.trained().values()
        optimizers.descend(loss, self.config.optimizer, self.optimizer, trained, rate)
        return loss.detach()

    def _unit_loss(self, hidden_ND: Tensor, targets_N: Tensor, extra: Tensors) -> Tensor:
        """Return the mean loss over the units, with label smoothing."""
        smoothing = self.config.smoothing
        if not smoothing:
            return self.network.output(hidden_ND, targets_N, **extra)
        log_probs_NV = self.network.output.log_probs(hidden_ND)
        if self.spec.definition.train_only_loss:
            loss = self.network.output(hidden_ND, targets_N, **extra)
        else:
            loss = F.nll_loss(
                log_probs_NV, targets_N
            )  # equals the layer's loss, from the log-probabilities that smoothing needs anyway
        return (1 - smoothing) * loss - smoothing * log_probs_NV.mean()

    def _ctc_nll(self, frames_BSD: Tensor, frames_B: NDArray, targets_BT: NDArray) -> Tensor:
        """Return the CTC loss, summed over the utterances with enough frames."""
        log_probs_BSU = F.log_softmax(at_least_float32(self.network.ctc(frames_BSD)), dim=2)
        return F.ctc_loss(
            log_probs_BSU.transpose(0, 1),
            self._ids(np.maximum(targets_BT, 0)),
            torch.from_numpy(frames_after(frames_B)),  # PyTorch reads lengths on the host
            torch.from_numpy((targets_BT >= 0).sum(axis=1) - 1),
            blank=self.spec.vocab,
            reduction="sum",
            zero_infinity=True,
        )

    @torch.no_grad()
    def evaluate(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> float:
        hidden_ND, targets_N = self._hidden(*self._encode(features_BFM, frames_B), targets_BT)
        return -float(self.network.output.target_log_probs(hidden_ND, targets_N).double().sum())

    @torch.no_grad()
    def listen(self, features_BFM: NDArray, frames_B: NDArray, longest: int) -> None:
        frames_BSD, real_BS = self._encode(features_BFM, frames_B)
        self.decoding = Decoding(self.network.decoder.memory(frames_BSD), real_BS, [])

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decoding is not None
        return self._next_units(prompts_BT, [], k)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decoding is not None
        rows = self._ids(rows_R)
        past = [(keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in self.decoding.past]
        return self._next_units(ids_R[:, None], past, k)

    @torch.no_grad()
    def _next_units(self, units_RT: NDArray, past: list[KeysValues], k: int) -> tuple[NDArray, NDArray]:
        assert self.decoding is not None
        memory, real_BS, _ = self.decoding
        hidden_RTD, past = self.network.decode(self._ids(units_RT), memory, real_BS, past)
        self.decoding = Decoding(memory, real_BS, past)
        output, hidden_RD = self.network.output, hidden_RTD[:, -1]
        if self.paths is None:
            values, ids = output.topk(hidden_RD, k)
        else:
            values, ids = output.beam(hidden_RD, k, self.paths.width, self.paths.levels)
        return to_numpy(values), to_numpy(ids)

    def synchronize(self) -> None:
        synchronize(self.device)


NETWORK = TorchRecognizer
