"""Names spoken by espeak-ng: the choice of names, voices and splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vocabench.harness.datasets.shared import packages
from vocabench.harness.datasets.shared.dataset import SPLITS, Progress, SpeechFiles
from vocabench.harness.datasets.speech import cldr_names, espeak, recordings, sound_files
from vocabench.harness.datasets.speech.sound_files import Unusable
from vocabench.harness.speech import languages as groups
from vocabench.impls import cache_folder, cpus

_VERSION = 1  # to be raised when the same packages would give other utterances
_PACKAGES = {"babel": "babel", "espeakng_loader": "espeakng-loader"}
_BUILT_FROM = ("babel", "espeakng_loader", "numpy", "scipy")

# Variants of espeak-ng's voices that sound human: no whisper, robot or croak.
VARIANTS = (
    "Alex", "Alicia", "Andrea", "Andy", "Annie", "Denis", "Diogo", "Gene", "Henrique", "Hugo", "Jacky", "Lee",
    "Marco", "Mario", "Michael", "adam", "anika", "antonio", "belinda", "benjamin", "f1", "f2", "f3", "f4",
    "f5", "linda", "m1", "m2", "m3", "m4", "m7", "steph",
)  # fmt: skip
_HELD_OUT_SPEAKERS = 4  # for validation, and as many for testing
_PITCHES, _RATES = (35, 65), (135, 195)  # on espeak-ng's scale of 0 to 99, and in words a minute


@dataclass(frozen=True)
class Speaker:
    """A voice of espeak-ng, the same in every language: a variant, a pitch and a rate."""

    variant: str
    pitch: int
    rate: int


@dataclass(frozen=True)
class SpokenNames:
    """Names in several languages as a speech corpus.

    No text of a language and no speaker is in two splits. The number of training names of a language follows the
    paper's down-sampling, `groups.probabilities`, of the names that exist.

    Attributes:
        name: Name of the dataset.
        languages: Codes of the languages.
        sizes: Utterances by split: the mean over languages for "train", and the number for each language otherwise.
        licence: Licence of the texts.
    """

    name: str
    languages: Sequence[str]
    sizes: Mapping[str, int]
    licence: str

    def find(self, progress: Progress) -> SpeechFiles:
        """Return the utterances; build them first if they are not here."""
        packages.require(f"dataset {self.name!r}", _PACKAGES)
        folder = cache_folder.filled(self._folder(), lambda scratch: self._build(scratch, progress))
        return SpeechFiles(self.name, folder, self.licence, self._versions())

    def is_here(self) -> bool:
        """Return whether the corpus has been built from the installed versions."""
        return cache_folder.is_whole(self._folder())

    def _versions(self) -> dict[str, str]:
        return packages.installed_versions(_BUILT_FROM)

    def _folder(self) -> Path:
        built_from = {**self._versions(), "languages": " ".join(self.languages), "sizes": str(dict(self.sizes))}
        return packages.built_folder(self.name, _VERSION, built_from, subfolder="speech")

    def _build(self, folder: Path, progress: Progress) -> None:
        cast = speakers()
        plans = {language: list(_plan(texts, cast)) for language, texts in self._texts().items()}
        with recordings.Writer(folder) as writer, ThreadPoolExecutor(cpus.usable()) as pool:
            jobs = {
                language: pool.submit(
                    espeak.speak, language, [{"text": text, **asdict(speaker)} for _, text, speaker in plan], folder
                )
                for language, plan in plans.items()
            }
            for language, plan in plans.items():
                progress(f"{self.name}: speaking {language}")
                for (split, text, speaker), (phones, samples_S) in zip(plan, jobs[language].result(), strict=True):
                    id = f"{language}/{split}/{text}"
                    # espeak-ng marks a word that it pronounces in another language with brackets.
                    if "(" in phones:
                        writer.skip(id, Unusable("a word of another language"))
                        continue
                    writer.add(
                        sound_files.resampled(samples_S, espeak.SAMPLE_RATE),
                        id=id,
                        split=split,
                        language=language,
                        speaker=speaker.variant,
                        text=text,
                        phones=phones,
                    )

    def _texts(self) -> dict[str, dict[str, list[str]]]:
        """Return names by language and split."""
        names_of = {language: cldr_names.names(language) for language in self.languages}
        held_out = sum(self.sizes[split] for split in SPLITS[1:])
        available = {language: len(names) - held_out for language, names in names_of.items()}
        total = self.sizes["train"] * len(self.languages)
        texts = {}
        for language, share in groups.probabilities(available).items():
            names = iter(names_of[language])
            sizes = {**self.sizes, "train": min(round(total * share), available[language])}
            # Held-out names come first, so that they do not depend on the number of training names.
            texts[language] = {split: [next(names) for _ in range(sizes[split])] for split in reversed(SPLITS)}
        return texts


def speakers() -> dict[str, list[Speaker]]:
    """Return the speakers of each split, the same on each call."""
    rng = np.random.default_rng(0)
    cast = [
        Speaker(str(variant), int(rng.integers(*_PITCHES)), int(rng.integers(*_RATES)))
        for variant in rng.permutation(VARIANTS)
    ]
    ends = {"train": len(cast) - 2 * _HELD_OUT_SPEAKERS, "valid": len(cast) - _HELD_OUT_SPEAKERS, "test": len(cast)}
    firsts = (0, *ends.values())
    return {split: cast[first:end] for (split, end), first in zip(ends.items(), firsts, strict=False)}


def _plan(
    texts: Mapping[str, Sequence[str]], cast: Mapping[str, Sequence[Speaker]]
) -> Iterator[tuple[str, str, Speaker]]:
    """Yield (split, text, speaker), cycling through the speakers of each split."""
    for split in SPLITS:
        for number, text in enumerate(texts[split]):
            yield split, text, cast[split][number % len(cast[split])]
