"""The languages of Liu et al. 2022 (arXiv 2204.03855), their groups, and the paper's down-sampling of languages."""

from __future__ import annotations

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


def probabilities(counts: Mapping[str, int], alpha: float = ALPHA) -> dict[str, float]:
    """Return the probability of drawing each language: the multinomial distribution of the paper,

        p_l = n_l^alpha / sum over k of n_k^alpha

    Args:
        counts: Number of utterances n_l of each language, at least 1.
        alpha: The exponent. 1 keeps the shares of the languages, and 0 makes them equal; the paper uses 0.5.

    Raises:
        BadInput: There is no language, a language has no utterances, or alpha is negative.
    """
    if not counts or min(counts.values()) < 1:
        raise BadInput(f"utterances by language {dict(counts)}: allowed: one language or more, each with 1 or more")
    if not 0 <= alpha < float("inf"):
        raise BadInput(f"alpha of {alpha}: allowed: from 0")
    weights = {language: float(count) ** alpha for language, count in counts.items()}
    total = sum(weights.values())
    return {language: weight / total for language, weight in weights.items()}


def sample(languages: Sequence[str], size: int, rng: np.random.Generator, alpha: float = ALPHA) -> NDArray[np.int64]:
    """Draw the indices of `size` utterances, (size,), in random order, whose languages follow `probabilities`.

    Within a language, no utterance is drawn again before all others have been drawn.

    Args:
        languages: The language of each utterance.
        size: Number of utterances to draw.
        rng: The generator. The result does not depend on the framework.
        alpha: As in `probabilities`.

    Raises:
        BadInput: As in `probabilities`, or `size` is negative.
    """
    if size < 0:
        raise BadInput(f"sample of {size} utterances: allowed: from 0")
    places: dict[str, list[int]] = {}
    for place, language in enumerate(languages):
        places.setdefault(language, []).append(place)
    shares = probabilities({language: len(each) for language, each in places.items()}, alpha)
    wanted = rng.multinomial(size, list(shares.values()))
    drawn = [_in_turns(np.array(each), count, rng) for each, count in zip(places.values(), wanted, strict=True)]
    return rng.permutation(np.concatenate(drawn))


def _in_turns(places_P: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    turns = [rng.permutation(places_P) for _ in range(-(-count // len(places_P)))]
    return np.concatenate([*turns, places_P[:0]])[:count]
