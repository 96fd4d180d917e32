"""Sound files as 16-bit samples of one channel at one rate, or the reason why one cannot be used."""

from __future__ import annotations

from math import gcd
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.shared import installed

SAMPLE_RATE = 16_000
SECONDS = (0.1, 30.0)  # of an utterance that is used: the encoder's memory grows with its square

_RATES = (4_000, 192_000)
_FULL_SCALE = 32_768
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # in the header of a WAV file that was written to a pipe


class Unusable(Exception):
    """Sound that cannot be used; its message is the reason, one of a few, that reports count by."""


def read(path: Path) -> NDArray[np.int16]:
    """The samples, (S,), at `SAMPLE_RATE`; two channels are averaged.

    Any format that libsndfile reads: WAV, FLAC, Ogg Vorbis, MP3 and others.

    Raises:
        Unusable: The file is missing, empty, truncated or corrupt; it has more than 2 channels, a rate outside 4 to
            192 kHz, or lasts less or longer than `SECONDS`.
        BadInput: soundfile is not installed.
    """
    installed.require("reading sound files", {"soundfile": "soundfile"})
    import soundfile

    if not path.is_file():
        raise Unusable("missing")
    try:
        if not path.stat().st_size:
            raise Unusable("empty")
        if _is_cut_wav(path):
            raise Unusable("truncated")
        with soundfile.SoundFile(path) as file:
            if file.channels > 2:
                raise Unusable("more than 2 channels")
            if not _RATES[0] <= file.samplerate <= _RATES[1]:
                raise Unusable("sample rate")
            if file.frames > SECONDS[1] * file.samplerate:
                raise Unusable("too long")
            values_SC = file.read(dtype="float64", always_2d=True)
            if not file.frames:
                raise Unusable("empty")
            if len(values_SC) < file.frames:
                raise Unusable("truncated")
            rate = file.samplerate
    # A TypeError is soundfile's for a file of bare samples, which it knows by the name ".raw".
    except (soundfile.SoundFileError, OSError, TypeError):
        raise Unusable("corrupt") from None
    if not np.isfinite(values_SC).all():
        raise Unusable("corrupt")
    samples_S = resampled(values_SC.mean(axis=1) * _FULL_SCALE, rate)
    if len(samples_S) < SECONDS[0] * SAMPLE_RATE:
        raise Unusable("too short")
    return samples_S


def resampled(values_S: NDArray, rate: int) -> NDArray[np.int16]:
    """Samples in the range of 16 bits, from `rate` to `SAMPLE_RATE`."""
    if rate != SAMPLE_RATE:
        from scipy.signal import resample_poly  # takes long to import

        common = gcd(rate, SAMPLE_RATE)
        values_S = resample_poly(values_S.astype(np.float64), SAMPLE_RATE // common, rate // common)
    return np.clip(np.rint(values_S), -_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)


def _is_cut_wav(path: Path) -> bool:
    """Whether a WAV file ends before its samples do, which libsndfile lets pass."""
    size = path.stat().st_size
    with path.open("rb") as file:
        opening = file.read(12)
        if opening[:4] != b"RIFF" or opening[8:] != b"WAVE":
            return False
        while len(header := file.read(8)) == 8:
            said = int.from_bytes(header[4:], "little")
            if header[:4] == b"data":
                return said not in _UNKNOWN_SIZES and file.tell() + said > size
            file.seek(said + said % 2, 1)
    return False
