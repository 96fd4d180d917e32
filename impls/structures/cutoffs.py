"""Cutoffs of adaptive softmax: a head of frequent words, followed by tails of increasingly rare words.

Grave et al. (2017, section 4) model the time of scoring k words for B tokens as g(k, B) = max(c + l k0 B0, c + l k B).
A call has a fixed cost c, small products are no faster than one of k0 words and B0 tokens, and beyond that the time
grows with the product. The model here is the same, with two more terms that matter for narrow tails. The unit of cost
is one more word for one token at full width D, forward and backward. For k words of width w D and B tokens,

    g(k, B, w) = CALL + k (w max(B, FEW) + LOGIT B) + w D B

where the last term is the projection of the hidden vectors to w D, which only tails have. FEW corresponds to k0 B0: the
vector of a word and its gradient move through memory even for very few tokens. LOGIT is the softmax itself, whose
passes over a logit do not get cheaper with the width. With head h, tails t and their shares p of the tokens, one step
costs

    g(h + tails, B, 1) + sum over the tails of g(t_i, p_i B, div_value^-(i + 1))

The minimum is found by dynamic programming over the cuts, since the best tails after a cut do not depend on the cuts
before it. The time alone would favour a head of about a hundred words, so the head must cover a given share of the
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput

# Rounded from timings of PyTorch's linear and cross_entropy, forward and backward, float32 on two CPU cores, D = 512.
# A word costs 27 ns per token with 2,560 tokens and 2,000 to 8,000 words, and still 10 ns at width 8 with 512 tokens.
CALL = 20_000.0
FEW = 32.0
LOGIT = 0.4

HEAD_SHARE = 0.7  # about the share of the paper's head on text8, which has 2,000 of 44,000 words

# Batch and width assumed for the choice, as in the suites. The cutoffs are chosen before the width is known.
TOKENS = 2560
WIDTH = 512

MOST_TAILS = 4  # the paper finds little gain beyond five clusters, that is, a head and four tails
_MOST_CUTS = 400  # most candidate positions of a cut; smaller vocabularies consider all positions


def choose(counts_V: NDArray[np.int64], div_value: float) -> list[int]:
    """Choose the cheapest cutoffs: the size of the head, then the end of each tail but the last; [] for no tail.

    Args:
        counts_V: Word counts in descending order.
        div_value: Factor by which the width shrinks from one tail to the next.
    """
    vocab = len(counts_V)
    cuts = _places(vocab)
    seen = np.concatenate([[0], np.cumsum(counts_V)])[cuts] / counts_V.sum()
    inside = slice(0, len(cuts) - 1)  # where a tail may begin

    best, chosen = head_cost(vocab, 0), []
    for tails in range(1, min(MOST_TAILS, vocab - 1) + 1):
        # From the last tail backward: the cost of all words after a cut, and the start of the next tail.
        cost_G = np.full(len(cuts), np.inf)
        cost_G[-1] = 0.0
        follows: list[NDArray[np.int64]] = []
        for tail in reversed(range(tails)):
            size_GG, share_GG = cuts[None, :] - cuts[:, None], seen[None, :] - seen[:, None]
            total_GG = tail_cost(size_GG, share_GG, div_value ** -(tail + 1)) + cost_G[None, :]
            total_GG[size_GG <= 0] = np.inf
            follows.append(total_GG.argmin(axis=1))
            cost_G = total_GG.min(axis=1)
        total_G = head_cost(cuts[inside], tails) + cost_G[inside]
        total_G[seen[inside] < HEAD_SHARE] = np.inf
        if total_G.min() < best:
            best, at = float(total_G.min()), int(total_G.argmin())
            chosen = [int(cuts[at])]
            for follow_G in reversed(follows[1:]):
                at = int(follow_G[at])
                chosen.append(int(cuts[at]))
    return chosen


def _places(vocab: int) -> NDArray[np.int64]:
    """Return candidate cuts (G,), ascending, evenly spaced in the logarithm of the rank. The last one is the end."""
    if vocab <= _MOST_CUTS:
        return np.arange(1, vocab + 1)
    return np.unique(np.geomspace(1, vocab, _MOST_CUTS).round().astype(np.int64))


def head_cost(words: NDArray[np.int64] | int, tails: int) -> NDArray:
    """Return the cost of the words of the head and of its entries for the tails."""
    return CALL + (np.asarray(words) + tails) * (1 + LOGIT) * TOKENS


def tail_cost(words: NDArray[np.int64], share: NDArray[np.floating], width: float) -> NDArray:
    """Return the cost of tails, given their share of the tokens and their width as a share of the full width."""
    tokens = share * TOKENS
    return CALL + words * (width * np.maximum(tokens, FEW) + LOGIT * tokens) + width * WIDTH * tokens


def check(cutoffs: Sequence[int], vocab: int) -> list[int]:
    """Return `cutoffs` as a list after checking that they leave a word for the last tail."""
    if cutoffs and cutoffs[-1] >= vocab:
        raise BadInput(f"option cutoffs={list(cutoffs)}: allowed: below {vocab}, the vocabulary")
    return list(cutoffs)


@dataclass(frozen=True)
class Bands:
    """Head and tails in the order used by the frameworks' layers.

    Words are sorted by id within a band, so that ties and cumulative sums follow the order of ids.

    Attributes:
        words: Word ids of the head, then of each tail, ascending.
        by_count: For each band, the rank by descending count of the word at each position.
        band: Band (V,) of each word: 0 for the head, i + 1 for tail i.
        place: Position (V,) of each word in its band.
    """

    words: list[NDArray[np.int64]]
    by_count: list[NDArray[np.int64]]
    band: NDArray[np.int64]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, order_V: NDArray[np.int64], ends: NDArray[np.int64]) -> Bands:
        """Build bands from the words by descending count and the ends of the head and of each tail."""
        parts = np.split(order_V, ends[:-1])
        by_count = [np.argsort(part) for part in parts]
        words = [part[ranks] for part, ranks in zip(parts, by_count, strict=True)]
        band_V, place_V = np.empty_like(order_V), np.empty_like(order_V)
        for number, part in enumerate(words):
            band_V[part], place_V[part] = number, np.arange(len(part))
        return cls(words, by_count, band_V, place_V)

    @property
    def head(self) -> int:
        return len(self.words[0])

    @property
    def tails(self) -> int:
        return len(self.words) - 1

    def rows(self, name: str) -> NDArray[np.int64] | None:
        """Return the canonical row of each row of a parameter in a layer, or None if they are the same."""
        if name == "head_weight":
            return np.concatenate([self.by_count[0], self.head + np.arange(self.tails)])
        if name.endswith("_weight"):
            return self.by_count[1 + int(name.removeprefix("tail").removesuffix("_weight"))]
        return None
