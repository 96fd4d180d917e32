"""ROUGE scores of summaries, as measurements of a row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vocabench.harness.datasets.text.tokenization import UNK
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Setting
from vocabench.impls.options import Choice

# Gigaword's, DUC-2004's, and both as the script of Rush et al. 2015 scores them.
SCORINGS = ("f1", "recall75", "rush2015")

SETTINGS: dict[str, Setting] = {
    "scoring": Choice(
        "f1", SCORINGS, "F1 of whole summaries, recall of 75 bytes, or both as in Rush et al. 2015, with stemming"
    ),
    "stemming": Choice(False, (False, True), "whether ROUGE compares the stems of words; rush2015 always does"),
    "rouge_tokens": Choice("ascii", ("ascii", "unicode"), "words of a-z and 0-9, as in ROUGE-1.5.5, or of any script"),
}

_NUMBER = re.compile("#+(?:[.,]#+)*")


def scores(
    summaries: Sequence[str], references: Sequence[Sequence[str]], settings: Mapping[str, Any]
) -> list[Measurement]:
    """Compute ROUGE-1, -2 and -L with the 95 % bootstrap interval of the mean, and the score of each sample.

    Args:
        summaries: One summary per sample. <unk> is removed, because the tokenizer would turn it into the word "unk",
            which may occur in a reference.
        references: One or more references for each summary.
        settings: Values of `SETTINGS`: "f1" is `rouge.GIGAWORD`, "recall75" is `rouge.DUC_2004`.
    """
    scoring = settings["scoring"]
    if scoring == "rush2015":
        settings = {**settings, "stemming": True}
        return [found for each in ("f1", "recall75") for found in _scores(summaries, references, each, settings)]
    return _scores(summaries, references, scoring, settings)


def _scores(
    summaries: Sequence[str], references: Sequence[Sequence[str]], scoring: str, settings: Mapping[str, Any]
) -> list[Measurement]:
    from vocabench.harness.metrics import rouge  # imports NLTK, which takes a second

    rule, quantity = {"f1": (rouge.GIGAWORD, "f1"), "recall75": (rouge.DUC_2004, "recall")}[scoring]
    rule = dataclasses.replace(rule, stemming=settings["stemming"], tokens=settings["rouge_tokens"])
    values_SMQ = rule.per_sample(list(map(known, summaries)), references)
    means = rouge.aggregate(values_SMQ)
    place = rouge.QUANTITIES.index(quantity)
    return [
        Measurement(
            f"{measure}_{scoring}",
            means[measure][quantity].value,
            values_SMQ[:, number, place].tolist(),
            low=means[measure][quantity].low,
            high=means[measure][quantity].high,
            detail={"signature": rule.signature},
        )
        for number, measure in enumerate(rouge.MEASURES)
    ]


def with_numbers(summary: str, source: str) -> str:
    """Replace each number that is written with # by the first number of the source of the same form, if there is one.

    In Rush et al.'s data all digits are #, so this takes numbers from a source that has its digits.
    """
    forms: dict[str, str] = {}
    for word in source.split():
        forms.setdefault(re.sub("[0-9]", "#", word), word)
    return " ".join(forms.get(word, word) if _NUMBER.search(word) else word for word in summary.split())


def known(summary: str) -> str:
    """Return the words of a summary without <unk>."""
    return " ".join(word for word in summary.split() if word != UNK)
