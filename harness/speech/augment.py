"""SpecAugment (Park et al. 2019, arXiv 1904.08779): masks over frequencies and over time for training.

Shape letters: B utterances, T frames of the longest, M mel channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput


@dataclass(frozen=True)
class SpecAugment:
    """Masks as in section 2 of the paper, without its time warping; the widths of Liu et al. 2022.

    A frequency mask is f channels wide, f uniform in 0 .. F, from f_0 uniform in 0 .. M - f; a time mask t frames, t
    uniform in 0 .. T, from t_0 uniform in 0 .. (frames of the utterance) - t.

    Attributes:
        frequency_masks, time_masks: Numbers of masks.
        frequency_width, time_width: Largest widths F in channels and T in frames.
        time_share: Largest share of an utterance that a time mask may cover (p in the paper).
    """

    frequency_masks: int = 2
    frequency_width: int = 10
    time_masks: int = 2
    time_width: int = 50
    time_share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("frequency_masks", "frequency_width", "time_masks", "time_width"):
            if getattr(self, name) < 0:
                raise BadInput(f"{name} of {getattr(self, name)}: allowed: from 0")
        if not 0 <= self.time_share <= 1:
            raise BadInput(f"time_share of {self.time_share}: allowed: from 0 to 1")

    def masked_BTM(self, frames_B: Sequence[int], channels: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Draw the masked elements, (B, T, M), utterance by utterance. They are the same for every framework.

        Args:
            frames_B: Number of frames of each utterance. Padding does not change the masks.
            channels: Number of channels M.
            rng: The generator.
        """
        masked_BTM = np.zeros((len(frames_B), max(frames_B, default=0), channels), np.bool_)
        for masked_TM, frames in zip(masked_BTM, frames_B, strict=True):
            for _ in range(self.frequency_masks):
                masked_TM[:frames, _span(min(self.frequency_width, channels), channels, rng)] = True
            for _ in range(self.time_masks):
                masked_TM[_span(min(self.time_width, int(self.time_share * frames)), frames, rng)] = True
        return masked_BTM


def _span(widest: int, whole: int, rng: np.random.Generator) -> slice:
    width = int(rng.integers(widest, endpoint=True))
    start = int(rng.integers(whole - width, endpoint=True))
    return slice(start, start + width)
