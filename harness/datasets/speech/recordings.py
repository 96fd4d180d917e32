"""Speech as it is stored, whatever its origin: all samples in one file, and a line of JSON for each utterance.

audio.int16         concatenated samples of the utterances
utterances.jsonl    id, split, language, speaker, text, phones, samples
skipped.json        ids of unusable utterances by reason
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.shared import checksums
from vocabench.harness.datasets.speech.sound_files import SAMPLE_RATE, Unusable

_SAMPLES = np.dtype("<i2")
_AUDIO, _UTTERANCES, _SKIPPED = "audio.int16", "utterances.jsonl", "skipped.json"


@dataclass(frozen=True, eq=False)
class Utterance:
    """An utterance with its transcripts.

    Attributes:
        number: Position in the corpus over all splits, from 0.
        id: Name in its corpus.
        language: Code, such as "ba".
        speaker: Name of the speaker; empty if not known.
        text: Text as in the corpus; empty if there are only phones.
        phones: Phones separated by spaces; None if there are none.
        samples_S: (S,) int16 at 16 kHz, memory-mapped and read-only.
    """

    number: int
    id: str
    split: str
    language: str
    speaker: str
    text: str
    phones: str | None
    samples_S: NDArray[np.int16]

    @property
    def seconds(self) -> float:
        return len(self.samples_S) / SAMPLE_RATE


class Writer:
    """Writes a folder utterance by utterance, and records what is skipped by reason."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._skipped: dict[str, list[str]] = {}

    def __enter__(self) -> Writer:
        self._audio = (self._folder / _AUDIO).open("wb")
        self._utterances = (self._folder / _UTTERANCES).open("w", encoding="utf-8", newline="\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._audio.close()
        self._utterances.close()
        skipped = json.dumps(self._skipped, ensure_ascii=False, sort_keys=True)
        (self._folder / _SKIPPED).write_text(skipped, encoding="utf-8")

    def add(self, samples_S: NDArray[np.int16], **fields: str | None) -> None:
        """Append an utterance with its samples and the other fields of `Utterance`."""
        samples_S.astype(_SAMPLES).tofile(self._audio)
        self._utterances.write(json.dumps({**fields, "samples": len(samples_S)}, ensure_ascii=False) + "\n")

    def skip(self, id: str, reason: Unusable) -> None:
        """Record an utterance that cannot be used."""
        self._skipped.setdefault(str(reason), []).append(id)


def read(folder: Path) -> list[Utterance]:
    """Return all utterances of a folder; samples are read from disk on access."""
    lines = (folder / _UTTERANCES).read_text(encoding="utf-8").split("\n")[:-1]
    records = [json.loads(line) for line in lines]
    ends_U = np.cumsum([0, *(record.pop("samples") for record in records)])
    # An empty file cannot be mapped.
    samples_S = np.memmap(folder / _AUDIO, dtype=_SAMPLES, mode="r") if ends_U[-1] else np.zeros(0, _SAMPLES)
    return [
        Utterance(number=number, samples_S=samples_S[ends_U[number] : ends_U[number + 1]], **record)
        for number, record in enumerate(records)
    ]


def skipped(folder: Path) -> Mapping[str, list[str]]:
    """Return the ids of skipped utterances by reason."""
    return json.loads((folder / _SKIPPED).read_text(encoding="utf-8"))


def sha256(folder: Path) -> str:
    """Return the checksum of audio and transcripts."""
    return checksums.sha256_of_files({name: folder / name for name in (_AUDIO, _UTTERANCES)})
