"""Where adaptive softmax cuts the vocabulary: a head of frequent words and tails of ever rarer ones.

Grave et al. (2017, section 4) model the time of scoring k words for B tokens as g(k, B) = max(c + l k0 B0, c + l k B):
a call costs c whatever it does, small products are no faster than one of k0 words and B0 tokens, and beyond that time
grows with the product. The same here, counted in what one more word costs for one token at full width D, forward and
backward, with two terms that matter once a tail's vectors are narrow. For k words of width w D and B tokens,

    g(k, B, w) = CALL + k (w max(B, FEW) + LOGIT B) + w D B  where the hidden vectors are projected to w D first

FEW stands for k0 B0: a word's vector and its gradient move through memory even where hardly a token meets them. LOGIT
is the softmax itself, whose passes over a logit do not shrink with the width. With head h, tails t and their shares p
of the tokens, one step costs

    g(h + tails, B, 1) + sum over the tails of g(t_i, p_i B, div_value^-(i + 1))

and dynamic programming over the cuts finds the least of it: where the tails after a cut begin does not depend on the
cuts before. Time alone would leave some hundred words at full width, so the head is held to a share of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput

# Rounded from timings of PyTorch's linear and cross_entropy, forward and backward, float32 on two CPU cores, D = 512:
# a word costs one token 27 ns at 2,560 tokens and 2,000 to 8,000 words; at width 8 and 512 tokens still 10 ns.
CALL = 20_000.0
FEW = 32.0
LOGIT = 0.4

HEAD_SHARE = 0.7  # about what the paper's own head on text8 covers, 2,000 of 44,000 words

# The batch and width that the choice is made for: those of the suites. A layer is cut before its width is known.
TOKENS = 2560
WIDTH = 512

MOST_TAILS = 4  # the paper finds hardly any gain beyond five clusters, which is a head and four tails
_MOST_CUTS = 400  # places where a cut may fall; all of them up to that many words


def choose(counts_V: NDArray[np.int64], div_value: float) -> list[int]:
    """The cheapest cutoffs, rising: the size of the head, then the end of each tail but the last; [] for no tail.

    Args:
        counts_V: In falling order.
        div_value: What the width is divided by from one tail to the next.
    """
    vocab = len(counts_V)
    cuts = _places(vocab)
    seen = np.concatenate([[0], np.cumsum(counts_V)])[cuts] / counts_V.sum()
    inside = slice(0, len(cuts) - 1)  # where a tail may begin

    best, chosen = head_cost(vocab, 0), []
    for tails in range(1, min(MOST_TAILS, vocab - 1) + 1):
        # From the last tail back: cost_G of all words from a cut on, and where the next tail begins.
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
    """(G,) rising: where a cut may fall, the last one being the end. Even steps in the logarithm of the rank."""
    if vocab <= _MOST_CUTS:
        return np.arange(1, vocab + 1)
    return np.unique(np.geomspace(1, vocab, _MOST_CUTS).round().astype(np.int64))


def head_cost(words: NDArray[np.int64] | int, tails: int) -> NDArray:
    """Of the head's words and its entries for the tails."""
    return CALL + (np.asarray(words) + tails) * (1 + LOGIT) * TOKENS


def tail_cost(words: NDArray[np.int64], share: NDArray[np.floating], width: float) -> NDArray:
    """Of tails of `words` words with that share of the tokens and that share of the full width."""
    tokens = share * TOKENS
    return CALL + words * (width * np.maximum(tokens, FEW) + LOGIT * tokens) + width * WIDTH * tokens


def check(cutoffs: Sequence[int], vocab: int) -> list[int]:
    """`cutoffs`, once each is found to leave a word for the last tail."""
    if cutoffs and cutoffs[-1] >= vocab:
        raise BadInput(f"option cutoffs={list(cutoffs)}: allowed: below {vocab}, the vocabulary")
    return list(cutoffs)


@dataclass(frozen=True)
class Bands:
    """Head and tails as the frameworks' layers hold them: words by id inside, so that ties of equal scores and
    cumulative sums run in the order of ids.

    Attributes:
        words: The ids of the head, then of each tail, each rising.
        by_count: For each, which of its words by falling count stands at each place by id.
        band: (V,) of each word: 0 the head, i + 1 tail i.
        place: (V,) of each word within its band.
    """

    words: list[NDArray[np.int64]]
    by_count: list[NDArray[np.int64]]
    band: NDArray[np.int64]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, order_V: NDArray[np.int64], ends: NDArray[np.int64]) -> Bands:
        """From the words by falling count, and where the head and each tail end."""
        parts = np.split(order_V, ends[:-1])
        by_count = [np.argsort(part) for part in parts]
        words = [part[by] for part, by in zip(parts, by_count, strict=True)]
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
        """Which canonical row stands at each row of a layer's parameter; None where they are the same."""
        if name == "head_weight":
            return np.concatenate([self.by_count[0], self.head + np.arange(self.tails)])
        if name.endswith("_weight"):
            return self.by_count[1 + int(name.removeprefix("tail").removesuffix("_weight"))]
        return None
