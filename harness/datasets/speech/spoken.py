"""Names spoken by espeak-ng: which ones, by whom, and in which split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vocabench.harness.datasets.shared import installed
from vocabench.harness.datasets.shared.local_files import Progress
from vocabench.harness.datasets.shared.source import SPLITS, Recorded
from vocabench.harness.datasets.speech import cldr_names, espeak, recordings, sound_files
from vocabench.harness.datasets.speech.sound_files import Unusable
from vocabench.harness.datasets.text import pydoc
from vocabench.harness.speech import languages as groups
from vocabench.impls import cache_folder, cpus

_FORMAT = 1  # raised when the same packages would give other utterances
_PACKAGES = {"babel": "babel", "espeakng_loader": "espeakng-loader"}
_MADE_FROM = ("babel", "espeakng_loader", "numpy", "scipy")

# Variants of espeak-ng's voices that sound like people: no whisper, no robot, no croak.
_VARIANTS = (
    "Alex", "Alicia", "Andrea", "Andy", "Annie", "Denis", "Diogo", "Gene", "Henrique", "Hugo", "Jacky", "Lee",
    "Marco", "Mario", "Michael", "adam", "anika", "antonio", "belinda", "benjamin", "f1", "f2", "f3", "f4",
    "f5", "linda", "m1", "m2", "m3", "m4", "m7", "steph",
)  # fmt: skip
_HELD_OUT_SPEAKERS = 4  # for validation, and as many for testing
_PITCHES, _RATES = (35, 65), (135, 195)  # espeak-ng's scale of 0 to 99, and words a minute


@dataclass(frozen=True)
class Speaker:
    """A voice of espeak-ng, the same in every language: a variant of it, a pitch and a rate."""

    variant: str
    pitch: int
    rate: int


@dataclass(frozen=True)
class Spoken:
    """Names in several languages as a corpus of speech.

    No text of a language and no speaker is in two splits. How many names of each language are for training follows the
    paper's down-sampling, `groups.probabilities`, of the names that there are.

    Attributes:
        name: Of the dataset.
        languages: Codes.
        sizes: Split to utterances: of "train" for each language on average, of the others for each language.
        licence: Of the texts.
    """

    name: str
    languages: Sequence[str]
    sizes: Mapping[str, int]
    licence: str

    def recorded(self, progress: Progress) -> Recorded:
        installed.require(f"dataset {self.name!r}", _PACKAGES)
        folder = cache_folder.filled(self._place(), lambda scratch: self._build(scratch, progress))
        return Recorded(self.name, folder, self.licence, self._versions())

    def is_here(self) -> bool:
        return cache_folder.is_whole(self._place())

    def _versions(self) -> dict[str, str]:
        return pydoc.installed_versions(_MADE_FROM)

    def _place(self) -> Path:
        made_from = {**self._versions(), "languages": " ".join(self.languages), "sizes": str(dict(self.sizes))}
        return pydoc.built_folder(self.name, _FORMAT, made_from, room="speech")

    def _build(self, folder: Path, progress: Progress) -> None:
        cast = speakers()
        plans = {language: list(_plan(texts, cast)) for language, texts in self._texts().items()}
        with recordings.Writer(folder) as writer, ThreadPoolExecutor(cpus.usable()) as pool:
            jobs = {
                language: pool.submit(espeak.speak, language, [_said(*each) for each in plan], folder)
                for language, plan in plans.items()
            }
            for language, plan in plans.items():
                progress(f"{self.name}: speaking {language}")
                for (split, text, speaker), (phones, samples_S) in zip(plan, jobs[language].result(), strict=True):
                    id = f"{language}/{split}/{text}"
                    # espeak-ng says in brackets that it took a word for another language's.
                    if "(" in phones:
                        writer.skip(id, Unusable("a word of another language"))
                        continue
                    samples_S = sound_files.resampled(samples_S, espeak.SAMPLE_RATE)
                    writer.add(
                        samples_S,
                        id=id,
                        split=split,
                        language=language,
                        speaker=speaker.variant,
                        text=text,
                        phones=phones,
                    )

    def _texts(self) -> dict[str, dict[str, list[str]]]:
        """Language to split to names."""
        found = {language: cldr_names.names(language) for language in self.languages}
        tested = sum(self.sizes[split] for split in SPLITS[1:])
        left = {language: len(names) - tested for language, names in found.items()}
        total = self.sizes["train"] * len(self.languages)
        texts = {}
        for language, share in groups.probabilities(left).items():
            names = iter(found[language])
            sizes = {**self.sizes, "train": min(round(total * share), left[language])}
            # Held-out names first, so that more for training leaves them as they are.
            texts[language] = {split: [next(names) for _ in range(sizes[split])] for split in reversed(SPLITS)}
        return texts


def speakers() -> dict[str, list[Speaker]]:
    """Split to its speakers: the same each time."""
    rng = np.random.default_rng(0)
    cast = [
        Speaker(str(variant), int(rng.integers(*_PITCHES)), int(rng.integers(*_RATES)))
        for variant in rng.permutation(_VARIANTS)
    ]
    ends = {"train": len(cast) - 2 * _HELD_OUT_SPEAKERS, "valid": len(cast) - _HELD_OUT_SPEAKERS, "test": len(cast)}
    firsts = (0, *ends.values())
    return {split: cast[first:end] for (split, end), first in zip(ends.items(), firsts, strict=False)}


def _plan(
    texts: Mapping[str, Sequence[str]], cast: Mapping[str, Sequence[Speaker]]
) -> Iterator[tuple[str, str, Speaker]]:
    """(split, text, speaker), the speakers of a split in turns."""
    for split in SPLITS:
        for number, text in enumerate(texts[split]):
            yield split, text, cast[split][number % len(cast[split])]


def _said(_: str, text: str, speaker: Speaker) -> dict[str, str | int]:
    return {"text": text, **asdict(speaker)}
