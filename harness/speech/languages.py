"""The languages of Liu et al. 2022 (arXiv 2204.03855), their groups, and the paper's down-sampling of languages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput

GROUPS: dict[str, tuple[str, ...]] = {
    "Romance": ("ca", "es", "fr", "it", "pt"),
    "Slavic": ("be", "cs", "pl", "ru", "uk"),
    "Turkic": ("ba", "ky", "tr", "tt", "uz"),
}
LANGUAGES = tuple(language for group in GROUPS.values() for language in group)
ALPHA = 0.5


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Replace the names of groups by their languages, and return each language once, in the order given."""
    return tuple(dict.fromkeys(language for name in names for language in GROUPS.get(name, (name,))))


def probabilities(counts: Mapping[str, float], alpha: float = ALPHA) -> dict[str, float]:
    """Return the probability of drawing each language: the multinomial distribution of the paper,

        p_l = n_l^alpha / sum over k of n_k^alpha

    Args:
        counts: Size n_l of each language, such as its number of utterances or its seconds of audio; above 0.
        alpha: The exponent. 1 keeps the shares of the languages, and 0 makes them equal; the paper uses 0.5.

    Raises:
        BadInput: There is no language, a language has no utterances, or alpha is negative.
    """
    if not counts or min(counts.values()) <= 0:
        raise BadInput(f"sizes by language {dict(counts)}: allowed: one language or more, each of a size above 0")
    if not 0 <= alpha < float("inf"):
        raise BadInput(f"alpha of {alpha}: allowed: from 0")
    weights = {language: float(count) ** alpha for language, count in counts.items()}
    total = sum(weights.values())
    return {language: weight / total for language, weight in weights.items()}


def ratios(sizes: Mapping[str, float], keep: float, alpha: float = ALPHA) -> dict[str, float]:
    """Return the share of its utterances that each language keeps: the down-sampling ratio of the paper,

        lambda_l = p_l^(alpha - 1) / sum over k of p_k^alpha x lambda,   p_l = size_l / sum of all sizes

    Without limits, the sizes that are kept add up to lambda times their sum, and are proportional to p_l^alpha. No
    language keeps more than it has, so that a ratio above 1 becomes 1.

    Args:
        sizes: Size of each language, such as seconds of audio.
        keep: The share lambda of the whole corpus; 0.082 in section 3.1 of the paper.
        alpha: The exponent, as in `probabilities`.

    Raises:
        BadInput: As in `probabilities`, or `keep` is not above 0.
    """
    if not 0 < keep < float("inf"):
        raise BadInput(f"keep={keep}: allowed: above 0")
    total, shares = sum(sizes.values()), probabilities(sizes, alpha)
    return {language: min(1.0, keep * shares[language] * total / size) for language, size in sizes.items()}


def down_sample(
    ids: Sequence[str], languages: Sequence[str], sizes: Sequence[float], kept: Mapping[str, float]
) -> NDArray[np.int64]:
    """Return the indices of the utterances that are kept, ascending, each at most once.

    Utterances are ordered by a hash of their ids, and a language keeps the first of them, up to its share of the sizes.
    The choice therefore does not depend on a seed or on which other languages are selected: every model of a corpus is
    trained on the same utterances.

    Args:
        ids: Id of each utterance.
        languages: Language of each utterance.
        sizes: Size of each utterance, such as its seconds.
        kept: Share that each language keeps, from 0 to 1, as `ratios` returns.
    """
    places: dict[str, list[int]] = {}
    for place, language in enumerate(languages):
        places.setdefault(language, []).append(place)
    chosen = []
    for language, of_language in places.items():
        of_language.sort(key=lambda place: hashlib.sha256(ids[place].encode()).digest())
        before = np.cumsum([0.0, *(sizes[place] for place in of_language)])
        middle = (before[:-1] + before[1:]) / 2  # an utterance is kept if most of it is within the share
        chosen.append(np.array(of_language)[middle <= kept[language] * before[-1]])
    return np.sort(np.concatenate([*chosen, np.array([], np.int64)])).astype(np.int64)
