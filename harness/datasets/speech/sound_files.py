"""Sound files as 16-bit mono samples at one rate, or the reason why a file cannot be used."""

from __future__ import annotations

from math import gcd
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.shared import packages

SAMPLE_RATE = 16_000
SECONDS = (0.1, 30.0)  # of a usable utterance; the memory of the encoder grows with the square

_RATES = (4_000, 192_000)
_FULL_SCALE = 32_768
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # in the header of a WAV file that was written to a pipe


class Unusable(Exception):
    """Sound that cannot be used; the message is one of a few reasons, by which reports count."""


def read(path: Path) -> NDArray[np.int16]:
    """Return the samples of a file, (S,), at `SAMPLE_RATE`; two channels are averaged.

    All formats of libsndfile are supported: WAV, FLAC, Ogg Vorbis, MP3 and others.

    Raises:
        Unusable: The file is missing, empty, truncated or corrupt, has more than 2 channels or a rate outside 4 to 192
            kHz, or is shorter or longer than `SECONDS`.
        BadInput: soundfile is not installed.
    """
    packages.require("reading sound files", {"soundfile": "soundfile"})
    import soundfile

    if not path.is_file():
        raise Unusable("missing")
    try:
        if not path.stat().st_size:
            raise Unusable("empty")
        if _is_truncated_wav(path):
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
    # soundfile raises TypeError for ".raw" files, which have no header.
    except (soundfile.SoundFileError, OSError, TypeError):
        raise Unusable("corrupt") from None
    if not np.isfinite(values_SC).all():
        raise Unusable("corrupt")
    samples_S = resampled(values_SC.mean(axis=1) * _FULL_SCALE, rate)
    if len(samples_S) < SECONDS[0] * SAMPLE_RATE:
        raise Unusable("too short")
    return samples_S


def resampled(values_S: NDArray, rate: int) -> NDArray[np.int16]:
    """Return samples on the 16-bit scale at `SAMPLE_RATE`, given samples on that scale at `rate`."""
    if rate != SAMPLE_RATE:
        from scipy.signal import resample_poly  # slow to import

        common = gcd(rate, SAMPLE_RATE)
        values_S = resample_poly(values_S.astype(np.float64), SAMPLE_RATE // common, rate // common)
    return np.clip(np.rint(values_S), -_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)


def _is_truncated_wav(path: Path) -> bool:
    """Return whether a WAV file ends before its samples do, which libsndfile accepts."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(12)
        if header[:4] != b"RIFF" or header[8:] != b"WAVE":
            return False
        while len(chunk := file.read(8)) == 8:
            length = int.from_bytes(chunk[4:], "little")
            if chunk[:4] == b"data":
                return length not in _UNKNOWN_SIZES and file.tell() + length > size
            file.seek(length + length % 2, 1)
    return False
