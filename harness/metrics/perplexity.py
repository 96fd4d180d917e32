"""Perplexity of log-probabilities that a language model gave to the tokens of a text.

    perplexity = exp(-(sum of the natural log-probabilities) / (number of tokens))

The interval is a bootstrap over sentences, since the tokens of a sentence are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.measure.stats import Interval
from vocabench.harness.metrics import bootstrap
from vocabench.harness.metrics.bootstrap import RESAMPLES, Difference
from vocabench.impls.errors import BadInput


@dataclass(frozen=True)
class SentenceScores:
    """Negative log-probabilities of S sentences.

    Attributes:
        nats_S: Sum over the tokens of each sentence, in nats.
        tokens_S: Number of tokens of each sentence, at least 1.
    """

    nats_S: NDArray[np.float64]
    tokens_S: NDArray[np.float64]

    @classmethod
    def of(cls, log_probs: Sequence[Sequence[float]]) -> SentenceScores:
        """Sum the natural log-probabilities of the tokens of each sentence."""
        nats = [-float(np.sum(np.asarray(sentence, np.float64))) for sentence in log_probs]
        return cls(np.array(nats), np.array([len(sentence) for sentence in log_probs], np.float64))


def nats_per_token(scores: SentenceScores, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Return the mean negative log-probability of a token with its 95 % interval over resamples of the sentences."""
    return bootstrap.intervals(scores.nats_S[:, None], resamples, seed, sizes_S=scores.tokens_S)[0]


def compare(first: SentenceScores, second: SentenceScores, resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """Return the difference in nats per token between two models on the same sentences.

    Raises:
        BadInput: The numbers of sentences or of their tokens differ.
    """
    if not np.array_equal(first.tokens_S, second.tokens_S):
        sizes = [f"{len(each.tokens_S):,} sentences of {each.tokens_S.sum():,.0f} tokens" for each in (first, second)]
        raise BadInput(f"models with {' and '.join(sizes)}: allowed: the same sentences, of the same tokens")
    values_SQ = (first.nats_S[:, None], second.nats_S[:, None])
    return bootstrap.differences(*values_SQ, resamples, seed, sizes_S=first.tokens_S)[0]
