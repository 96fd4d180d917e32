"""Speech with its units: utterances in splits, the vocabulary of the training split, and what was skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import registry
from vocabench.harness.datasets.shared.local_files import Progress
from vocabench.harness.datasets.shared.source import SPLITS, Recorded
from vocabench.harness.datasets.speech import layouts, recordings
from vocabench.harness.datasets.speech.recordings import Utterance
from vocabench.harness.datasets.text.tokenization import EOS, UNK
from vocabench.harness.speech import languages as groups
from vocabench.harness.speech.phones import PhoneRule
from vocabench.harness.speech.text import UNKNOWN, TextRule
from vocabench.impls.errors import BadInput, unknown

UNITS = ("characters", "phones")
OUTSIDE = ("skip", "unknown")

_TEXT, _PHONES = TextRule(), PhoneRule()


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What a model of the speech can say.

    Attributes:
        kind: One of `UNITS`.
        units: Id to unit, by falling count, then alphabetically; <unk> and <eos> among them, and the languages, as
            "<ba>", where they come first in each sequence.
        counts_V: (V,) int64: occurrences in the training split, <eos> once for each utterance.
        with_language: Whether each sequence begins with its language.
    """

    kind: str
    units: tuple[str, ...]
    counts_V: NDArray[np.int64]
    with_language: bool

    @property
    def end(self) -> int:
        """The id of <eos>."""
        return self._ids[EOS]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {unit: number for number, unit in enumerate(self.units)}

    def split(self, utterance: Utterance) -> list[str]:
        """The utterance's units, without language and end; none where it has no such transcript."""
        return _split(self.kind, utterance)

    def encode(self, utterance: Utterance) -> NDArray[np.int32]:
        """(L,) ids: the language where it is said, the units, <eos>; what is not in the vocabulary is <unk>."""
        first = [_language(utterance)] if self.with_language else []
        return np.array(
            [self._ids.get(unit, self._ids[UNK]) for unit in (*first, *self.split(utterance), EOS)], np.int32
        )

    def decode(self, ids_L: Sequence[int] | NDArray[np.int32]) -> str:
        """What ids spell, as the error rates read it: up to the first <eos>, without languages; <unk> as `UNKNOWN`."""
        found = [self.units[each] for each in ids_L]
        found = found[: found.index(EOS)] if EOS in found else found
        said = [UNKNOWN if unit == UNK else unit for unit in found if unit == UNK or not _is_special(unit)]
        return ("" if self.kind == "characters" else " ").join(said)


@dataclass(frozen=True)
class Speech:
    """Speech ready to be trained on.

    Attributes:
        name: Of the dataset, or of the user's file or folder.
        sha256: Of sound and transcripts of the whole corpus.
        licence: Of both.
        versions: What it was made from, where that can change.
        splits: Split to utterances, those of "train", "valid" and "test" that there are.
        vocabulary: Of the training split, or the one that was given.
        skipped: Reason to the ids of the utterances that were left out for it.
        everything: Every utterance of the corpus, by its number: what features are computed for.
    """

    name: str
    sha256: str
    licence: str
    versions: Mapping[str, str]
    splits: Mapping[str, Sequence[Utterance]]
    vocabulary: Vocabulary
    skipped: Mapping[str, Sequence[str]]
    everything: Sequence[Utterance]

    @property
    def counts_V(self) -> NDArray[np.int64]:
        """(V,) of the vocabulary's units."""
        return self.vocabulary.counts_V

    def transcript(self, utterance: Utterance) -> str:
        """What was said, as the error rates read it."""
        return ("" if self.vocabulary.kind == "characters" else " ").join(self.vocabulary.split(utterance))


def _silent(_: str) -> None:
    pass


def find(name: str, progress: Progress = _silent) -> Recorded:
    """The utterances of a dataset, or those at a path, see `layouts.own`; built or decoded where they must be."""
    if name not in registry.datasets() and layouts.is_path(name):
        return layouts.own(name, progress)
    return registry.dataset_of_kind(name, "speech").recorded(progress)


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
    progress: Progress = _silent,
) -> Speech:
    """Choose, check and map speech.

    Args:
        name: A dataset, or a path.
        units: "characters" of the text in its one form (`TextRule`), or "phones" (`PhoneRule`).
        languages: Codes, or groups such as "Turkic"; none for all.
        held_out: Languages, or groups, that are tested on and nothing else: with any, the test split is theirs alone.
        with_language: Whether each sequence begins with its language.
        min_count: A unit that occurs less often in the training split is <unk>.
        vocabulary: One made before, of another corpus; then `units`, `with_language` and `min_count` are its own.
        outside: What becomes of an utterance with a unit that is not in the vocabulary: "skip", or "unknown", which
            keeps it, its unit being <unk>. Rare units of the training split are always <unk>. None skips, unless
            languages are held out: theirs are units that nobody trained on, and most utterances have one.
        progress: Called with a line of text now and then.

    Raises:
        BadInput: No such dataset, file, unit or language; a malformed list of utterances; nothing left to train on
            without a vocabulary; a cache that cannot be written; a package that is not installed.
    """
    if units not in UNITS:
        raise unknown("units", units, UNITS)
    outside = outside or ("unknown" if held_out else "skip")
    if outside not in OUTSIDE:
        raise unknown("rule for outside", outside, OUTSIDE)
    if min_count < 1:
        raise BadInput(f"min_count={min_count} for speech {name!r}: allowed: from 1")
    kind = vocabulary.kind if vocabulary else units
    recorded = find(name, progress)
    everything = recordings.read(recorded.folder)
    skipped = {reason: list(ids) for reason, ids in recordings.skipped(recorded.folder).items()}
    chosen = _chosen(name, everything, groups.expand(languages), groups.expand(held_out))
    found = {utterance: _split(kind, utterance) for utterance in chosen}
    if lacking := [utterance.id for utterance, its in found.items() if not its]:
        skipped.setdefault("no transcript", []).extend(lacking)
    train = [utterance for utterance, its in found.items() if its and utterance.split == "train"]
    if vocabulary is None and not train:
        reasons = ", ".join(f"{reason} {len(ids):,}" for reason, ids in skipped.items()) or "none"
        raise BadInput(
            f"speech {name!r}, {kind}: nothing to train on (skipped: {reasons}): allowed: a training split, or the "
            "vocabulary of another corpus"
        )
    # Rare units are known too, if only as <unk>.
    known = set(vocabulary.units) if vocabulary else {unit for utterance in train for unit in found[utterance]}
    strange = [utterance.id for utterance, its in found.items() if not known.issuperset(its)]
    if strange and outside == "skip":
        skipped["outside the vocabulary"] = strange
    usable = [utterance for utterance, its in found.items() if its and (outside == "unknown" or known.issuperset(its))]
    splits = {split: [each for each in usable if each.split == split] for split in SPLITS}
    return Speech(
        name=recorded.name,
        sha256=recordings.sha256(recorded.folder),
        licence=recorded.licence,
        versions=recorded.versions,
        splits={split: each for split, each in splits.items() if each},
        vocabulary=vocabulary or _vocabulary(kind, train, with_language, min_count),
        skipped=skipped,
        everything=everything,
    )


def _chosen(
    name: str, everything: list[Utterance], languages: Sequence[str], held_out: Sequence[str]
) -> list[Utterance]:
    """The utterances of these languages, held-out ones for testing only, and for testing nothing else."""
    there = sorted({each.language for each in everything})
    for language in (*languages, *held_out):
        if language not in there:
            raise unknown(f"language of speech {name!r}", language, (*there, *groups.GROUPS))
    wanted = set(languages or there) | set(held_out)
    return [
        each
        for each in everything
        if each.language in wanted and (not held_out or (each.language in held_out) == (each.split == "test"))
    ]


def _split(kind: str, utterance: Utterance) -> list[str]:
    if kind == "characters":
        return list(_TEXT(utterance.text, utterance.language))
    return _PHONES(utterance.phones or "")


def _vocabulary(kind: str, train: Sequence[Utterance], with_language: bool, min_count: int) -> Vocabulary:
    found = Counter(unit for each in train for unit in _split(kind, each))
    counts = {unit: count for unit, count in found.items() if count >= min_count}
    counts |= {UNK: found.total() - sum(counts.values()), EOS: len(train)}
    if with_language:
        counts |= Counter(map(_language, train))
    ranked = sorted(counts, key=lambda unit: (-counts[unit], unit))
    return Vocabulary(kind, tuple(ranked), np.array([counts[unit] for unit in ranked], np.int64), with_language)


def _language(utterance: Utterance) -> str:
    return f"<{utterance.language}>"


def _is_special(unit: str) -> bool:
    """<eos>, <unk> or a language: neither a character nor a phone is written with brackets."""
    return len(unit) > 1 and unit.startswith("<") and unit.endswith(">")
