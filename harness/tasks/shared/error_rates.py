"""What recognizers heard, scored by character or phone error rate, as a row's measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.datasets.speech.recordings import Utterance
from vocabench.harness.datasets.speech.transcribed import Speech
from vocabench.harness.quantities import Measurement
from vocabench.harness.speech.languages import GROUPS

QUANTITY = {"characters": "cer", "phones": "per"}


def score(speech: Speech, utterances: Sequence[Utterance], transcripts: Sequence[str]) -> Measurement:
    """The error rate of all utterances together with its 95 % bootstrap interval, a sample an utterance; in the detail
    the counts that it is made of, and the rates by language and by group of languages.

    Args:
        speech: Where the utterances are from.
        utterances: One or more.
        transcripts: What was heard of each.
    """
    from vocabench.harness.metrics import error_rate  # it imports jiwer, which takes a while

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
    return Measurement(
        QUANTITY[speech.vocabulary.kind],
        overall["value"],
        (counts_U4[:, :3].sum(axis=1) / counts_U4[:, 3]).tolist(),
        low=overall["low"],
        high=overall["high"],
        detail={
            "signature": rule.signature,
            "counts": counts_U4.tolist(),
            "languages": {language: rates(language_U == language) for language in spoken},
            "groups": {
                group: {"languages": found, **rates(np.isin(language_U, found))}
                for group, its in GROUPS.items()
                if (found := [language for language in its if language in spoken])
            },
        },
    )
