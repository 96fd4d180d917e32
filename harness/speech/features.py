"""Log-Mel filterbanks as Kaldi computes them, in NumPy, so that every framework gets the same values.

Shape letters: S samples, T frames, W samples in a window, K frequencies of the transform, M mel channels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from vocabench.harness.datasets.shared.dataset import Progress
from vocabench.harness.datasets.speech.recordings import SAMPLE_RATE, Utterance
from vocabench.harness.datasets.speech.speech_corpora import Speech
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput, unknown

WINDOWS = ("povey", "hamming")

_FORMAT = 1  # version of the cache, raised if the same samples would give other features
_FLOATS = np.dtype("<f4")
_LOWEST_HERTZ = 20.0
_FLOOR = float(np.finfo(np.float32).eps)  # smallest power of a channel


def mel(hertz: Any) -> Any:
    """Return the mel scale of O'Shaughnessy 1987, as in HTK and Kaldi: 1127 ln(1 + f / 700)."""
    return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)


@dataclass(frozen=True)
class Filterbank:
    """Log-Mel filterbanks: Kaldi's `compute-fbank-feats` with `--dither=0 --use-energy=false`.

    Each frame is cut out (without padding), its mean is subtracted, and it is pre-emphasized (x_t - a x_{t-1}; the
    first
    sample by itself), windowed and transformed. Each channel is the natural logarithm of the sum of the power spectrum
    under a triangle on the mel scale between 20 Hz and half the sample rate.

    Attributes:
        channels: Number of channels M.
        window_seconds, shift_seconds: Length and shift of a frame. The length of the transform is the next power of
        two.
        preemphasis: The coefficient a.
        window: "povey", Hann's window to the power of 0.85, or "hamming".
    """

    channels: int = 80
    window_seconds: float = 0.025
    shift_seconds: float = 0.010
    preemphasis: float = 0.97
    window: str = "povey"

    def __post_init__(self) -> None:
        if self.window not in WINDOWS:
            raise unknown("window", self.window, WINDOWS)
        if self.channels < 1:
            raise BadInput(f"{self.channels} mel channels: allowed: from 1")
        if min(self.window_samples, self.shift_samples) < 1:
            raise BadInput(
                f"window of {self.window_seconds} s every {self.shift_seconds} s: allowed: from {1 / SAMPLE_RATE} s"
            )
        if not (self.weights_KM.sum(axis=0) > 0).all():
            raise BadInput(f"{self.channels} mel channels: allowed: so few that each contains a frequency")

    @property
    def window_samples(self) -> int:
        return round(self.window_seconds * SAMPLE_RATE)

    @property
    def shift_samples(self) -> int:
        return round(self.shift_seconds * SAMPLE_RATE)

    @property
    def signature(self) -> str:
        """Everything that the features depend on, in one line."""
        return (
            f"fbank|rate:{SAMPLE_RATE}|channels:{self.channels}|window:{self.window}-{self.window_samples}"
            f"|shift:{self.shift_samples}|preemphasis:{self.preemphasis}|dither:0|edges:snip"
        )

    @cached_property
    def window_W(self) -> NDArray[np.float64]:
        phase_W = 2 * np.pi * np.arange(self.window_samples) / (self.window_samples - 1)
        if self.window == "hamming":
            return 0.54 - 0.46 * np.cos(phase_W)
        return (0.5 - 0.5 * np.cos(phase_W)) ** 0.85

    @cached_property
    def weights_KM(self) -> NDArray[np.float64]:
        """The triangles over M + 2 equidistant points in mel. Each rises from one point to the next and falls again."""
        hertz_K = np.arange(self._transform // 2 + 1) * SAMPLE_RATE / self._transform
        points = np.linspace(mel(_LOWEST_HERTZ), mel(SAMPLE_RATE / 2), self.channels + 2)
        step = points[1] - points[0]
        return np.maximum(0, 1 - np.abs(mel(hertz_K)[:, None] - points[None, 1:-1]) / step)

    @property
    def _transform(self) -> int:
        return 1 << (self.window_samples - 1).bit_length()

    def frames(self, samples: int) -> int:
        """Return the number of frames T for a number of samples."""
        return max(0, 1 + (samples - self.window_samples) // self.shift_samples)

    def __call__(self, samples_S: NDArray[np.int16]) -> NDArray[np.float32]:
        """Return (T, M) features of 16-bit samples. T is 0 for less than a window."""
        if len(samples_S) < self.window_samples:
            return np.zeros((0, self.channels), np.float32)
        frames_TW = sliding_window_view(samples_S, self.window_samples)[:: self.shift_samples].astype(np.float64)
        frames_TW -= frames_TW.mean(axis=1, keepdims=True)
        before_TW = np.concatenate([frames_TW[:, :1], frames_TW[:, :-1]], axis=1)
        emphasised_TW = frames_TW - self.preemphasis * before_TW
        spectrum_TK = np.fft.rfft(emphasised_TW * self.window_W, self._transform)
        power_TK = spectrum_TK.real**2 + spectrum_TK.imag**2
        return np.log(np.maximum(power_TK @ self.weights_KM, _FLOOR)).astype(np.float32)


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation of each channel, both (M,) float32, for normalization."""

    mean_M: NDArray[np.float32]
    deviation_M: NDArray[np.float32]


def statistics(features: Iterable[NDArray[np.float32]]) -> Statistics:
    """Return the statistics over all frames of utterances, (T, M) each.

    Raises:
        BadInput: There are no frames.
    """
    count, sums_2M = 0, None
    for each_TM in features:
        values_TM = each_TM.astype(np.float64)
        found_2M = np.stack([values_TM.sum(axis=0), (values_TM**2).sum(axis=0)])
        sums_2M = found_2M if sums_2M is None else sums_2M + found_2M
        count += len(values_TM)
    if sums_2M is None or not count:
        raise BadInput("statistics of no frames: allowed: one frame or more")
    mean_M, square_M = sums_2M / count
    deviation_M = np.sqrt(np.maximum(square_M - mean_M**2, 0))
    return Statistics(mean_M.astype(np.float32), deviation_M.astype(np.float32))


def normalised(features_TM: NDArray[np.float32], given: Statistics | None = None) -> NDArray[np.float32]:
    """Apply cepstral mean and variance normalization: each channel of (T, M) gets mean 0 and deviation 1.

    Args:
        features_TM: Features of an utterance.
        given: Statistics of a whole corpus; None for those of the utterance. A constant channel becomes 0.
    """
    if not len(features_TM):
        return features_TM
    by = given or statistics([features_TM])
    return ((features_TM - by.mean_M) / np.maximum(by.deviation_M, 1e-5)).astype(np.float32)


class Features:
    """The memory-mapped features of a corpus."""

    def __init__(self, folder: Path, channels: int) -> None:
        self._starts_U = np.load(folder / "starts.npy", allow_pickle=False)
        self._frames_FM = np.memmap(folder / "frames.float32", dtype=_FLOATS, mode="r").reshape(-1, channels)

    def __getitem__(self, utterance: Utterance) -> NDArray[np.float32]:
        """Return the (T, M) features of an utterance."""
        return self._frames_FM[self._starts_U[utterance.number] : self._starts_U[utterance.number + 1]]


def of_corpus(speech: Speech, bank: Filterbank | None = None, progress: Progress = lambda _: None) -> Features:
    """Return the features of every utterance before normalization, computed once and then mapped from the cache.

    The key of the cache is the checksum of the corpus and the signature of the filterbank, so that every choice of
    languages and units shares the features.

    Raises:
        BadInput: The cache cannot be written.
    """
    bank = bank or Filterbank()
    key = hashlib.sha256(json.dumps([_FORMAT, speech.sha256, bank.signature]).encode()).hexdigest()[:24]
    folder = cache_folder.filled(
        cache_folder.path() / "features" / key, lambda scratch: _write(speech, bank, scratch, progress)
    )
    return Features(folder, bank.channels)


def _write(speech: Speech, bank: Filterbank, folder: Path, progress: Progress) -> None:
    starts = [0]
    with (folder / "frames.float32").open("wb") as file:
        for utterance in speech.everything:
            if utterance.number % 500 == 0:
                progress(f"{speech.name}: features of {utterance.number:,} utterances of {len(speech.everything):,}")
            features_TM = bank(utterance.samples_S)
            features_TM.astype(_FLOATS).tofile(file)
            starts.append(starts[-1] + len(features_TM))
    np.save(folder / "starts.npy", np.array(starts, np.int64))
