"""Whether the direction of a word's vector tells how frequent the word is.

Equally many words above and below a count are separated by logistic regression on their normalised vectors. It is
trained on one half of the words and scored on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from scipy.stats import rankdata

from vocabench.impls.errors import BadInput

_FEWEST = 4  # words on a side, two for each half
_PENALTY = 1e-4  # of the squared weights, so that separable words have a finite optimum


@dataclass(frozen=True)
class Probe:
    """How well frequency can be read off the direction of vectors.

    Attributes:
        area: Area below the ROC curve: the probability that a frequent word scores above a rare one; 0.5 is chance.
        accuracy: Share of words on the right side.
        trained, tested: Number of words in each half.
    """

    area: float
    accuracy: float
    trained: int
    tested: int


def frequency(vectors_VD: NDArray[np.floating], counts_V: NDArray[np.integer], threshold: float, seed: int) -> Probe:
    """Train and score the probe. Words with a vector of zero are left out, because it has no direction.

    Args:
        vectors_VD: Word vectors.
        counts_V: Occurrences of each word.
        threshold: Words that occur at least this often are frequent, the others are rare.
        seed: Seed of the choice of words and of the halves.

    Raises:
        BadInput: The shapes differ, a vector is not finite, or there are fewer than four frequent or rare words.
    """
    if vectors_VD.ndim != 2 or counts_V.shape != vectors_VD.shape[:1]:
        raise BadInput(
            f"vectors of shape {vectors_VD.shape} with counts of shape {counts_V.shape}: allowed: (V, D) with (V,)"
        )
    if not np.isfinite(vectors_VD).all():
        raise BadInput("vectors contain NaN or infinity: allowed: finite numbers")
    vectors_VD = vectors_VD.astype(np.float64)
    length_V = np.linalg.norm(vectors_VD, axis=1)
    sides = [np.flatnonzero((length_V > 0) & side_V) for side_V in (counts_V < threshold, counts_V >= threshold)]
    for name, words_W in zip(("below", "from"), sides, strict=True):
        if len(words_W) < _FEWEST:
            raise BadInput(
                f"threshold={threshold:g}: {len(words_W)} words with a count {name} it: allowed: a threshold with at "
                f"least {_FEWEST} words on either side"
            )
    rng = np.random.default_rng([seed, 13])
    size = min(map(len, sides))
    chosen = [rng.permutation(words_W)[:size] for words_W in sides]
    train_N, train_is_frequent_N = _labelled([words_W[: size // 2] for words_W in chosen])
    test_N, test_is_frequent_N = _labelled([words_W[size // 2 :] for words_W in chosen])
    unit_VD = vectors_VD / np.where(length_V > 0, length_V, 1.0)[:, None]
    weight_D, bias = _fit(unit_VD[train_N], train_is_frequent_N)
    score_N = unit_VD[test_N] @ weight_D + bias
    return Probe(
        area=roc_area(score_N, test_is_frequent_N),
        accuracy=float(((score_N > 0) == test_is_frequent_N).mean()),
        trained=len(train_N),
        tested=len(test_N),
    )


def roc_area(score_N: NDArray[np.floating], is_positive_N: NDArray[np.bool_]) -> float:
    """Return the probability that a positive scores above a negative; ties count one half."""
    positives = int(is_positive_N.sum())
    negatives = len(is_positive_N) - positives
    ranks = float(rankdata(score_N)[is_positive_N].sum())  # tied scores share their mean rank
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)


def _labelled(sides: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Join the rare and the frequent words, and return which of them are frequent."""
    rare_W, frequent_W = sides
    return np.concatenate(sides), np.repeat([False, True], [len(rare_W), len(frequent_W)])


def _fit(unit_ND: NDArray[np.float64], is_positive_N: NDArray[np.bool_]) -> tuple[NDArray[np.float64], float]:
    """Return the weights and the bias of logistic regression with a small L2 penalty on the weights."""
    sign_N = np.where(is_positive_N, 1.0, -1.0)

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weight_D, bias = flat[:-1], flat[-1]
        margin_N = sign_N * (unit_ND @ weight_D + bias)
        slope_N = -sign_N * expit(-margin_N) / len(sign_N)
        value = -log_expit(margin_N).mean() + 0.5 * _PENALTY * weight_D @ weight_D
        return float(value), np.append(unit_ND.T @ slope_N + _PENALTY * weight_D, slope_N.sum())

    best = minimize(loss, np.zeros(unit_ND.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return best.x[:-1], float(best.x[-1])
