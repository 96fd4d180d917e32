"""The one form that speech is kept in, wherever it came from: all samples in one file, a line of JSON an utterance.

audio.int16         the utterances' samples, one after another
utterances.jsonl    id, split, language, speaker, text, phones, samples
skipped.json        reason to the ids of what could not be used
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.shared import local_files
from vocabench.harness.datasets.speech.sound_files import SAMPLE_RATE, Unusable

_SAMPLES = np.dtype("<i2")
_AUDIO, _UTTERANCES, _SKIPPED = "audio.int16", "utterances.jsonl", "skipped.json"


@dataclass(frozen=True, eq=False)
class Utterance:
    """
    Attributes:
        number: Its place in the corpus, from 0, whatever its split.
        id: What its corpus calls it.
        language: A code, such as "ba".
        speaker: Empty where it is not known.
        text: As its corpus writes it; empty where there are phones alone.
        phones: With spaces between; None where there are none.
        samples_S: (S,) int16 at 16 kHz, mapped and read-only.
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
    """Fills a folder, utterance by utterance; what is skipped is counted by reason."""

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

    def add(self, samples_S: NDArray[np.int16], **facts: str | None) -> None:
        """An utterance's samples, and what `Utterance` says of it."""
        samples_S.astype(_SAMPLES).tofile(self._audio)
        self._utterances.write(json.dumps({**facts, "samples": len(samples_S)}, ensure_ascii=False) + "\n")

    def skip(self, id: str, reason: Unusable) -> None:
        self._skipped.setdefault(str(reason), []).append(id)


def read(folder: Path) -> list[Utterance]:
    """Every utterance of the folder; samples are read from disk when they are used."""
    lines = (folder / _UTTERANCES).read_text(encoding="utf-8").split("\n")[:-1]
    records = [json.loads(line) for line in lines]
    ends_U = np.cumsum([0, *(record.pop("samples") for record in records)])
    # No file of zero bytes can be mapped.
    samples_S = np.memmap(folder / _AUDIO, dtype=_SAMPLES, mode="r") if ends_U[-1] else np.zeros(0, _SAMPLES)
    return [
        Utterance(number=number, samples_S=samples_S[ends_U[number] : ends_U[number + 1]], **record)
        for number, record in enumerate(records)
    ]


def skipped(folder: Path) -> Mapping[str, list[str]]:
    return json.loads((folder / _SKIPPED).read_text(encoding="utf-8"))


def sha256(folder: Path) -> str:
    """Of sound and transcripts."""
    return local_files.sha256_of({name: folder / name for name in (_AUDIO, _UTTERANCES)})
