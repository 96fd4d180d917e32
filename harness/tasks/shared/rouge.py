"""ROUGE scores of summaries, as measurements of a row."""

from __future__ import annotations

from collections.abc import Sequence

from vocabench.harness.datasets.text.tokenization import UNK
from vocabench.harness.run.rows import Measurement

SCORINGS = ("f1", "recall75")  # Gigaword's and DUC-2004's


def scores(summaries: Sequence[str], references: Sequence[Sequence[str]], scoring: str) -> list[Measurement]:
    """Compute ROUGE-1, -2 and -L with the 95 % bootstrap interval of the mean, and the score of each sample.

    Args:
        summaries: One summary per sample. <unk> is removed, because the tokenizer would turn it into the word "unk",
            which may occur in a reference.
        references: One or more references for each summary.
        scoring: One of `SCORINGS`: "f1" is `rouge.GIGAWORD`, "recall75" is `rouge.DUC_2004`.
    """
    from vocabench.harness.metrics import rouge  # imports NLTK, which takes a second

    rule, quantity = {"f1": (rouge.GIGAWORD, "f1"), "recall75": (rouge.DUC_2004, "recall")}[scoring]
    values_SMQ = rule.per_sample(list(map(_known, summaries)), references)
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


def _known(summary: str) -> str:
    return " ".join(word for word in summary.split() if word != UNK)
