"""Character and phone error rates of decoded transcripts, as a measurement of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.speech.recordings import Utterance
from vocabench.harness.datasets.speech.speech_corpora import Speech
from vocabench.harness.run.rows import Measurement
from vocabench.harness.speech.languages import GROUPS

QUANTITY = {"characters": "cer", "phones": "per"}


def score(speech: Speech, utterances: Sequence[Utterance], transcripts: Sequence[str]) -> Measurement:
    """Compute the pooled error rate of all utterances with its 95 % bootstrap interval, one sample per utterance.

    The detail contains the counts, the rates by language and by group of languages, and for all languages and each
    group also the plain mean of the rates of its languages, which is what "overall" is in tables 4 and 5 of the paper.

    Args:
        speech: The corpus of the utterances.
        utterances: One or more utterances.
        transcripts: The decoded transcript of each utterance.
    """
    from vocabench.harness.metrics import error_rate  # imports jiwer, which is slow

    references = [speech.transcript(each) for each in utterances]
    language_U = np.array([each.language for each in utterances])
    if speech.vocabulary.kind == "characters":
        rule = error_rate.CharacterErrorRate()
        counts_U4 = rule.per_utterance(references, transcripts, language_U.tolist())
    else:
        rule = error_rate.PhoneErrorRate()
        counts_U4 = rule.per_utterance(references, transcripts)

    def rates(part_U: NDArray[np.bool_]) -> dict[str, Any]:
        found = error_rate.aggregate(counts_U4[part_U])
        return {
            "value": found.value,
            "low": found.low,
            "high": found.high,
            "utterances": int(part_U.sum()),
            "length": int(counts_U4[part_U, 3].sum()),
        }

    overall = rates(np.ones(len(utterances), np.bool_))
    spoken = sorted(set(language_U.tolist()))
    by_language = {language: rates(language_U == language) for language in spoken}

    def mean(found: Sequence[str]) -> float:
        return float(np.mean([by_language[language]["value"] for language in found]))

    return Measurement(
        QUANTITY[speech.vocabulary.kind],
        overall["value"],
        (counts_U4[:, :3].sum(axis=1) / counts_U4[:, 3]).tolist(),
        low=overall["low"],
        high=overall["high"],
        detail={
            "signature": rule.signature,
            "counts": counts_U4.tolist(),
            "mean_over_languages": mean(spoken),
            "languages": by_language,
            "groups": {
                group: {"languages": found, "mean_over_languages": mean(found), **rates(np.isin(language_U, found))}
                for group, its in GROUPS.items()
                if (found := [language for language in its if language in spoken])
            },
        },
    )
