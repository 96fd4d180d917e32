"""Speech corpora: utterances in splits, the vocabulary of the training split, and the utterances that are skipped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.datasets.shared.dataset import SPLITS, Progress, SpeechDataset, SpeechFiles, no_progress
from vocabench.harness.datasets.shared.duplicates import shares_in_training
from vocabench.harness.datasets.speech import layouts, recordings, vocabulary
from vocabench.harness.datasets.speech.recordings import Utterance
from vocabench.harness.datasets.speech.vocabulary import UNITS, Vocabulary
from vocabench.harness.speech import languages as groups
from vocabench.impls.errors import BadInput, unknown

OUTSIDE = ("skip", "unknown")


@dataclass(frozen=True)
class Speech:
    """A speech corpus, ready for training.

    Attributes:
        name: Name of the dataset, or of the user's file or folder.
        sha256: Checksum of the audio and the transcripts of the whole corpus.
        licence: Licence of both.
        versions: Versions of what the corpus was built from, where these can change.
        splits: Utterances by split, those of "train", "valid" and "test" that exist.
        vocabulary: Vocabulary of the training split, or the one that was passed to `load`.
        skipped: Ids of the utterances that were left out, by reason.
        everything: All utterances of the corpus by number; features are computed for all of them.
        shared_with_training: Share of the utterances of each other split whose sound is also one of the training split,
            sample by sample; empty if there is no training split.
        transcripts_in_training: Share of those whose transcript is also one of the same language in the training split.
    """

    name: str
    sha256: str
    licence: str
    versions: Mapping[str, str]
    splits: Mapping[str, Sequence[Utterance]]
    vocabulary: Vocabulary
    skipped: Mapping[str, Sequence[str]]
    everything: Sequence[Utterance]
    shared_with_training: Mapping[str, float] = field(default_factory=dict)
    transcripts_in_training: Mapping[str, float] = field(default_factory=dict)

    @property
    def counts_V(self) -> NDArray[np.int64]:
        """Counts of the vocabulary's units, (V,)."""
        return self.vocabulary.counts_V

    def transcript(self, utterance: Utterance) -> str:
        """Return the reference transcript of an utterance for error rates."""
        return self.vocabulary.separator.join(self.vocabulary.split(utterance))


def find(name: str, progress: Progress = no_progress, splits: str = "official") -> SpeechFiles:
    """Return the utterances of a dataset, or those at a path; build or decode them first if they are not here.

    Raises:
        BadInput: Among others, `splits` is not "official" for anything but Common Voice at a path.
    """
    if name not in registry.datasets() and layouts.is_path(name):
        return layouts.at_path(name, progress, splits)
    if splits != "official":
        raise BadInput(f"splits={splits!r} of dataset {name!r}: allowed: 'official', or the path of Common Voice")
    return registry.dataset_of_kind(name, SpeechDataset).find(progress)


def load(
    name: str,
    *,
    units: str = "characters",
    languages: Sequence[str] = (),
    held_out: Sequence[str] = (),
    with_language: bool = False,
    min_count: int = 1,
    vocabulary: Vocabulary | None = None,
    outside: str | None = None,
    splits: str = "official",
    progress: Progress = no_progress,
) -> Speech:
    """Select, validate and map speech.

    Args:
        name: Name of a dataset, or a path; see `layouts.at_path`.
        units: "characters" of the normalized text (`TextRule`), or "phones" (`PhoneRule`).
        languages: Codes, or groups such as "Turkic"; empty for all.
        held_out: Languages or groups for testing only. If there are any, the test split contains no others.
        with_language: Whether each sequence starts with its language.
        min_count: Units that occur less often in the training split become <unk>.
        vocabulary: Vocabulary of another corpus, which overrides `units`, `with_language` and `min_count`.
        outside: Treatment of an utterance with a unit outside the vocabulary: "skip", or "unknown" to keep it with
            <unk> for the unit. Rare units of the training split always become <unk>. None skips, unless languages are
            held out: most of their utterances have a unit that does not occur in training.
        splits: As in `layouts.at_path`.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: The dataset, file, unit or language does not exist; a list of utterances is malformed; nothing is
            left to train on and no vocabulary was passed; the cache cannot be written; a package is not installed.
    """
    if units not in UNITS:
        raise unknown("units", units, UNITS)
    outside = outside or ("unknown" if held_out else "skip")
    if outside not in OUTSIDE:
        raise unknown("rule for outside", outside, OUTSIDE)
    if min_count < 1:
        raise BadInput(f"min_count={min_count} for speech {name!r}: allowed: from 1")
    files = find(name, progress, splits)
    everything = recordings.read(files.folder)
    selected = _select(name, everything, groups.expand(languages), groups.expand(held_out))
    skipped = {reason: list(ids) for reason, ids in recordings.skipped(files.folder).items()}
    vocabulary, usable = _usable(
        name, selected, skipped, vocabulary, outside, kind=units, with_language=with_language, min_count=min_count
    )
    by_split = {split: [utterance for utterance in usable if utterance.split == split] for split in SPLITS}
    by_split = {split: utterances for split, utterances in by_split.items() if utterances}
    return Speech(
        name=files.name,
        sha256=recordings.sha256(files.folder),
        licence=files.licence,
        versions=files.versions,
        splits=by_split,
        vocabulary=vocabulary,
        skipped=skipped,
        everything=everything,
        shared_with_training=_shares(by_split, _sound),
        transcripts_in_training=_shares(by_split, lambda utterance: _transcript(vocabulary, utterance)),
    )


def _shares(splits: Mapping[str, Sequence[Utterance]], text_of: Callable[[Utterance], str]) -> dict[str, float]:
    if "train" not in splits:
        return {}
    return shares_in_training({split: map(text_of, utterances) for split, utterances in splits.items()})


def _sound(utterance: Utterance) -> str:
    return hashlib.sha256(utterance.samples_S.data).hexdigest()


def _transcript(vocabulary: Vocabulary, utterance: Utterance) -> str:
    return "\n".join((utterance.language, *vocabulary.split(utterance)))


def _select(
    name: str, everything: list[Utterance], languages: Sequence[str], held_out: Sequence[str]
) -> list[Utterance]:
    """Return the utterances of these languages; those of held-out languages only if they are for testing."""
    available = sorted({utterance.language for utterance in everything})
    for language in (*languages, *held_out):
        if language not in available:
            raise unknown(f"language of speech {name!r}", language, (*available, *groups.GROUPS))
    allowed = set(languages or available) | set(held_out)
    return [
        utterance
        for utterance in everything
        if utterance.language in allowed
        and (not held_out or (utterance.language in held_out) == (utterance.split == "test"))
    ]


def _usable(
    name: str,
    utterances: Sequence[Utterance],
    skipped: dict[str, list[str]],
    given: Vocabulary | None,
    outside: str,
    *,
    kind: str,
    with_language: bool,
    min_count: int,
) -> tuple[Vocabulary, list[Utterance]]:
    """Return the vocabulary and the utterances that it can encode; record the others in `skipped`."""
    kind = given.kind if given else kind
    units_of = {utterance: vocabulary.split(kind, utterance) for utterance in utterances}
    if without_units := [utterance.id for utterance, units in units_of.items() if not units]:
        skipped.setdefault("no transcript", []).extend(without_units)
    train = [utterance for utterance, units in units_of.items() if units and utterance.split == "train"]
    if given is None and not train:
        reasons = ", ".join(f"{reason} {len(ids):,}" for reason, ids in skipped.items()) or "none"
        raise BadInput(
            f"speech {name!r}, {kind}: nothing to train on (skipped: {reasons}): allowed: a training split, or the "
            "vocabulary of another corpus"
        )
    # Rare units count as known, because training encodes them as <unk>.
    known = set(given.units) if given else {unit for utterance in train for unit in units_of[utterance]}
    strange = [utterance.id for utterance, units in units_of.items() if not known.issuperset(units)]
    if strange and outside == "skip":
        skipped["outside the vocabulary"] = strange
    usable = [
        utterance
        for utterance, units in units_of.items()
        if units and (outside == "unknown" or known.issuperset(units))
    ]
    return given or vocabulary.build(kind, train, with_language, min_count), usable
