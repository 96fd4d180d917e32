"""The speech recognizer of `impls/models/recognizer.py` in float64, which defines the frameworks' models.

It has a forward pass only and is written for readability. The frameworks' gradients are checked against finite
differences of its loss.

Shape letters in addition to those of `impls/models/recognizer.py`: H heads, E = D / H, C channels, P relative
positions, J frames of a depthwise window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.models.recognizer import NORM_EPSILON, Recognizer, RecognizerConfig, frames_after, sinusoids
from vocabench.impls.on_numpy.models import _ctc
from vocabench.impls.on_numpy.models._network import InFloat64
from vocabench.impls.on_numpy.oracle import log_softmax, sigmoid


class Heard(NamedTuple):
    """Output of the encoder: frames, and a mask that is False at padding."""

    frames_BSD: NDArray
    real_BS: NDArray


class NumpyRecognizer(InFloat64[RecognizerConfig], Recognizer):
    """Speech recognizer in float64, forward pass only."""

    def _begin(self) -> None:
        self.decoding: tuple[Heard, NDArray] | None = None  # with the units read so far by each row

    def step(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> NoReturn:
        raise BadInput("the recognizer's definition on numpy has no training: allowed: torch, tensorflow, jax")

    def loss(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray, **extra: NDArray) -> float:
        """Return the loss that a step minimizes, including smoothing and CTC.

        `extra` holds the random inputs of the layer.
        """
        smoothing, ctc_weight = self.config.smoothing, self.config.ctc_weight
        heard = self._encode(features_BFM, frames_B)
        hidden_ND, targets_N = self._hidden(heard, targets_BT)
        loss = self.layer._plain_loss_and_grads(hidden_ND, targets_N, **extra)[0]
        if smoothing:
            loss = (1 - smoothing) * loss - smoothing * float(self.layer._log_probs(hidden_ND).mean())
        if ctc_weight:
            loss = (1 - ctc_weight) * loss + ctc_weight * self._ctc_nll(heard, targets_BT) / len(targets_N)
        return loss

    def evaluate(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> float:
        hidden_ND, targets_N = self._hidden(self._encode(features_BFM, frames_B), targets_BT)
        return -float(self.layer._target_log_probs(hidden_ND, targets_N).sum())

    def listen(self, features_BFM: NDArray, frames_B: NDArray, longest: int) -> None:
        self.decoding = self._encode(features_BFM, frames_B), np.empty((len(features_BFM), 0), dtype=np.int64)

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decoding is not None
        return self._next_units(self.decoding[0], prompts_BT, k)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decoding is not None
        heard, read_RT = self.decoding
        return self._next_units(heard, np.concatenate([read_RT[rows_R], ids_R[:, None]], axis=1), k)

    def _next_units(self, heard: Heard, read_RT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        self.decoding = heard, read_RT
        rows_per_utterance = len(read_RT) // len(heard.real_BS)
        repeated = Heard(*(np.repeat(array, rows_per_utterance, axis=0) for array in heard))
        hidden_RD = self._decode(read_RT, repeated)[:, -1]
        if self.paths is None:
            return self.layer.topk(hidden_RD, k)
        return self.layer.beam(hidden_RD, k, self.paths.width, self.paths.levels)

    def synchronize(self) -> None:
        pass

    def _hidden(self, heard: Heard, targets_BT: NDArray) -> tuple[NDArray, NDArray]:
        """Return the hidden vectors (N, D) at the units of the targets, and these units (N,)."""
        real_BT = targets_BT >= 0
        return self._decode(self.inputs_of(targets_BT), heard)[real_BT], targets_BT[real_BT].astype(np.int64)

    def _ctc_nll(self, heard: Heard, targets_BT: NDArray) -> float:
        """Sum the CTC loss over the utterances that have enough frames."""
        log_probs_BSU = log_softmax(self._linear("ctc", heard.frames_BSD))
        nll_B = [
            _ctc.nll(log_probs_SU[real_S], targets_T[targets_T >= 0][:-1])
            for log_probs_SU, real_S, targets_T in zip(log_probs_BSU, heard.real_BS, targets_BT, strict=True)
        ]
        return sum(nll for nll in nll_B if np.isfinite(nll))

    # The encoder.
    def _encode(self, features_BFM: NDArray, frames_B: NDArray) -> Heard:
        x = self._front(features_BFM)
        real_BS = np.arange(x.shape[1]) < frames_after(frames_B)[:, None]
        for number in range(self.config.encoder_layers):
            block = f"encoder.{number}"
            x = x + self._feed_forward(f"{block}.feed1", x, _swish) / 2
            x = x + self._relative_attention(f"{block}.attention", x, real_BS)
            x = x + self._convolution(f"{block}.conv", x, real_BS)
            x = x + self._feed_forward(f"{block}.feed2", x, _swish) / 2
            x = self._norm(f"{block}.norm", x)
        return Heard(x, real_BS)

    def _front(self, features_BFM: NDArray) -> NDArray:
        """Apply the convolutions and the linear map: (B, F, M) to (B, S, D)."""
        x_BFMC = features_BFM.astype(np.float64)[:, :, :, None]
        for name in ("front.conv1", "front.conv2"):
            windows_BFMC33 = sliding_window_view(x_BFMC, (3, 3), axis=(1, 2))[:, ::2, ::2]
            x_BFMC = np.tensordot(windows_BFMC33, self.params[f"{name}_weight"], axes=([3, 4, 5], [1, 2, 3]))
            x_BFMC = np.maximum(x_BFMC + self.params[f"{name}_bias"], 0)
        flat_BSX = x_BFMC.swapaxes(2, 3).reshape(*x_BFMC.shape[:2], -1)
        return self._linear("front.out", flat_BSX) * self.config.dim**0.5

    def _relative_attention(self, name: str, x_BSD: NDArray, real_BS: NDArray) -> NDArray:
        normed_BSD = self._norm(f"{name}.norm", x_BSD)
        query, key, value = (self._heads(self._linear(f"{name}.{p}", normed_BSD)) for p in ("query", "key", "value"))
        frame_S = np.arange(x_BSD.shape[1])
        offset_SS = frame_S[:, None] - frame_S
        positions_PD = sinusoids(np.arange(-frame_S[-1], frame_S[-1] + 1), self.config.dim)
        positions_PHE = self._heads(positions_PD @ self.params[f"{name}.position_weight"].T)
        scores_BHSS = np.einsum("bihe,bjhe->bhij", query + self.params[f"{name}.content_bias"], key) + np.einsum(
            "bihe,ijhe->bhij", query + self.params[f"{name}.position_bias"], positions_PHE[offset_SS + frame_S[-1]]
        )
        return self._weighted(name, scores_BHSS, real_BS[:, None, None, :], value)

    def _convolution(self, name: str, x_BSD: NDArray, real_BS: NDArray) -> NDArray:
        kept, gate = np.split(self._linear(f"{name}.in", self._norm(f"{name}.norm", x_BSD)), 2, axis=2)
        x_BSD = np.where(real_BS[:, :, None], kept * sigmoid(gate), 0)
        side = self.config.kernel // 2
        windows_BSDJ = sliding_window_view(np.pad(x_BSD, ((0, 0), (side, side), (0, 0))), self.config.kernel, axis=1)
        x_BSD = np.einsum("bsdj,dj->bsd", windows_BSDJ, self.params[f"{name}.depth_weight"])
        x_BSD = self._norm(f"{name}.mid", x_BSD + self.params[f"{name}.depth_bias"])
        return self._linear(f"{name}.out", _swish(x_BSD))

    # The decoder.
    def _decode(self, read_BT: NDArray, heard: Heard) -> NDArray:
        """Return the hidden vector (B, T, D) after each unit read."""
        steps = np.arange(read_BT.shape[1])
        x = self.params["embedding"][read_BT] * self.config.dim**0.5 + sinusoids(steps, self.config.dim)
        for number in range(self.config.decoder_layers):
            block = f"decoder.{number}"
            normed = self._norm(f"{block}.self.norm", x)
            x = x + self._attention(f"{block}.self", normed, normed, steps <= steps[:, None])
            normed = self._norm(f"{block}.cross.norm", x)
            x = x + self._attention(f"{block}.cross", normed, heard.frames_BSD, heard.real_BS[:, None, None, :])
            x = x + self._feed_forward(f"{block}.feed", x, lambda inner: np.maximum(inner, 0))
        return self._norm("decoder.norm", x)

    def _attention(self, name: str, x_BTD: NDArray, memory_BSD: NDArray, seen: NDArray) -> NDArray:
        query = self._heads(self._linear(f"{name}.query", x_BTD))
        key, value = (self._heads(self._linear(f"{name}.{part}", memory_BSD)) for part in ("key", "value"))
        return self._weighted(name, np.einsum("bihe,bjhe->bhij", query, key), seen, value)

    # Building blocks of both stacks.
    def _weighted(self, name: str, scores_BHTS: NDArray, seen: NDArray, value_BSHE: NDArray) -> NDArray:
        """Return the mean (B, T, D) of the values, weighted by the softmax over the visible positions."""
        scaled_BHTS = scores_BHTS / value_BSHE.shape[3] ** 0.5
        weight_BHTS = np.exp(log_softmax(np.where(seen, scaled_BHTS, -np.inf)))
        mixed_BTHE = np.einsum("bhij,bjhe->bihe", weight_BHTS, value_BSHE)
        return self._linear(f"{name}.out", mixed_BTHE.reshape(*mixed_BTHE.shape[:2], -1))

    def _feed_forward(self, name: str, x: NDArray, activation: Callable[[NDArray], NDArray]) -> NDArray:
        return self._linear(f"{name}.out", activation(self._linear(f"{name}.in", self._norm(f"{name}.norm", x))))

    def _heads(self, x: NDArray) -> NDArray:
        """Reshape (..., D) to (..., H, E)."""
        return x.reshape(*x.shape[:-1], self.config.heads, -1)

    def _linear(self, name: str, x: NDArray) -> NDArray:
        return x @ self.params[f"{name}_weight"].T + self.params[f"{name}_bias"]

    def _norm(self, name: str, x: NDArray) -> NDArray:
        centred = x - x.mean(axis=-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + NORM_EPSILON)
        return normed * self.params[f"{name}_scale"] + self.params[f"{name}_bias"]


def _swish(x: NDArray) -> NDArray:
    return x * sigmoid(x)


NETWORK = NumpyRecognizer
