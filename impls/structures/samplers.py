"""Words drawn in proportion to fixed probabilities, for the losses that score a few sampled words in place of all.

An alias table (Walker 1977; Vose 1991) gives each of V columns one word and one alias, so that a draw is a column and a
choice between the two, whatever the probabilities. The table is built by prefix sums (Hübschle-Schneider and Sanders
2022, arXiv 1903.00227), O(V) additions and one merge of two sorted lists, all of it vectorised.

The losses weigh a word by how often it is expected among S sampled words:

    S P(w)                 drawn with replacement
    1 - (1 - P(w))^tries   drawn until S are distinct
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from impls.errors import BadInput, unknown

NAMES = ("log_uniform", "unigram", "powered_unigram")

_BELOW_ONE = 1 - 2.0**-53  # the largest float64 below 1


def probabilities(name: str, counts_V: NDArray[np.int64]) -> NDArray[np.float64]:
    """(V,) how likely each word is drawn, all above 0: a word of count zero counts as one.

    log_uniform        log((rank + 2) / (rank + 1)) / log(V + 1), words ranked by falling count, ties by lower id
    unigram            in proportion to the counts
    powered_unigram    in proportion to the counts to the power of 0.75 (Mikolov et al. 2013)
    """
    if name not in NAMES:
        raise unknown("sampler", name, NAMES)
    if name == "log_uniform":
        rank_V = np.empty(len(counts_V))
        rank_V[np.argsort(-counts_V, kind="stable")] = np.arange(len(counts_V))
        return np.log1p(1 / (rank_V + 1)) / np.log1p(len(counts_V))
    weight_V = np.maximum(counts_V, 1).astype(np.float64) ** (0.75 if name == "powered_unigram" else 1.0)
    return weight_V / weight_V.sum()


@dataclass(frozen=True)
class AliasTable:
    """Column v of V is word v with the probability `own_V[v]`, else word `alias_V[v]`."""

    own_V: NDArray[np.float64]
    alias_V: NDArray[np.int64]

    @classmethod
    def of(cls, probability_V: NDArray[np.float64]) -> AliasTable:
        """From probabilities or any weights, not negative and not all zero."""
        vocab = len(probability_V)
        scaled_V = probability_V / probability_V.max()  # or a sum near the smallest number would divide to infinity
        share_V = scaled_V * (vocab / scaled_V.sum())  # in columns
        own_V, alias_V = share_V.copy(), np.arange(vocab)
        full = min(1.0, share_V.max())  # below 1 only by rounding, where all words are alike
        light_L, heavy_H = np.flatnonzero(share_V < full), np.flatnonzero(share_V >= full)
        # What the lights lack and what the heavies have to give, each summed in order. A heavy word fills lights until
        # less than a column is left of it, and the next heavy word fills that.
        lack_L, give_H = np.cumsum(1 - share_V[light_L]), np.cumsum(share_V[heavy_H] - 1)
        before_L = np.concatenate([[0.0], lack_L[:-1]])[: len(light_L)]
        filler_L = np.searchsorted(give_H, before_L, side="right")
        # The two sums are equal but for rounding, which must not lead beyond the last heavy word.
        alias_V[light_L] = heavy_H[np.minimum(filler_L, len(heavy_H) - 1)]
        last_H = np.searchsorted(before_L, give_H, side="left") - 1  # the last light it fills; -1 where it has none to
        filled = np.flatnonzero(last_H[:-1] >= 0)
        left_H = 1 + give_H[filled] - lack_L[last_H[filled]]
        own_V[heavy_H] = 1.0
        own_V[heavy_H[filled]] = np.clip(left_H, 0, 1)
        alias_V[heavy_H[filled]] = heavy_H[filled + 1]
        return cls(own_V, alias_V)

    def probabilities(self) -> NDArray[np.float64]:
        """(V,) how likely the table makes each word."""
        vocab = len(self.own_V)
        return (self.own_V + np.bincount(self.alias_V, weights=1 - self.own_V, minlength=vocab)) / vocab

    def draw(self, rng: np.random.Generator, samples: int) -> NDArray[np.int64]:
        """(S,) words, each drawn anew."""
        column_S = rng.integers(len(self.own_V), size=samples)
        return np.where(rng.random(samples) < self.own_V[column_S], column_S, self.alias_V[column_S])


@dataclass(frozen=True)
class Sampler:
    """Draws words with the probabilities P(w), with replacement or, where `unique`, until all are distinct."""

    probability_V: NDArray[np.float64]  # above 0
    table: AliasTable
    unique: bool = False

    @classmethod
    def of(cls, probability_V: NDArray[np.float64], *, unique: bool = False) -> Sampler:
        return cls(probability_V, AliasTable.of(probability_V), unique)

    def draw(self, rng: np.random.Generator, samples: int) -> NDArray[np.int64]:
        """(S,) word ids."""
        if not self.unique:
            return self.table.draw(rng, samples)
        check_distinct(samples, len(self.probability_V))
        drawn = self.table.draw(rng, 2 * samples)
        _, first = np.unique(drawn, return_index=True)
        words = drawn[np.sort(first)[:samples]]
        return np.concatenate([words, self._race(rng, words, samples - len(words))])

    def _race(self, rng: np.random.Generator, without: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
        """The next distinct words after those of `without`: the order in which exponential clocks with the rates P(w)
        ring is that in which words are drawn for the first time."""
        if not samples:
            return without[:0]
        rings_V = rng.standard_exponential(len(self.probability_V)) / self.probability_V
        rings_V[without] = np.inf
        return np.argpartition(rings_V, samples - 1)[:samples]

    def tries(self, samples: int) -> float:
        """After how many draws S distinct words are expected; infinite where S is the whole vocabulary."""
        vocab = len(self.probability_V)
        check_distinct(samples, vocab)
        if samples == vocab:
            return math.inf
        missed_V = self._log_missed()
        # Newton's method on a rising function that bends down, from where it is too low: it never overshoots.
        tries = float(samples)
        for _ in range(200):
            kept_V = np.exp(tries * missed_V)
            step = (kept_V.sum() - (vocab - samples)) / -(missed_V * kept_V).sum()
            tries += step
            if abs(step) < 1e-12 * tries:
                break
        return tries

    def log_expected_counts(self, ids: ArrayLike, samples: int, *, tries: float | None = None) -> NDArray[np.float64]:
        """How often each of `ids` is expected among S sampled words, as a logarithm.

        Args:
            ids: Word ids of any shape.
            samples: S.
            tries: Of distinct words, how many draws they took; where left out, how many are expected.
        """
        ids = np.asarray(ids)
        if not self.unique:
            return np.log(self.probability_V[ids]) + math.log(samples)
        tries = self.tries(samples) if tries is None else tries
        return np.log(-np.expm1(tries * self._log_missed()[ids]))

    def _log_missed(self) -> NDArray[np.float64]:
        """(V,) the logarithm of not being drawn once."""
        return np.log1p(-np.minimum(self.probability_V, _BELOW_ONE))


def check_distinct(samples: int, vocab: int) -> None:
    if samples > vocab:
        raise BadInput(f"option samples={samples} with unique=True: allowed: at most {vocab}, the vocabulary")


@dataclass(frozen=True)
class BigramSampler:
    """Draws words by the word before, interpolated with the unigram, with replacement:

        P(w | u) = share c(u, w) / c(u) + (1 - share) P(w)

    and P(w) alone after a word u that was never seen before another. Pairs are kept in order of u V + w with the sums
    of their counts, in which a draw is a binary search.
    """

    unigram: Sampler
    share: float
    pair_P: NDArray[np.int64]
    before_P: NDArray[np.int64]  # (pairs + 1,) the counts of all pairs before, and of all

    @classmethod
    def of(cls, ids_T: NDArray[np.integer], counts_V: NDArray[np.int64], *, share: float = 0.5) -> BigramSampler:
        """From a text of word ids, and the words' counts."""
        pair_P, count_P = np.unique(ids_T[:-1].astype(np.int64) * len(counts_V) + ids_T[1:], return_counts=True)
        before_P = np.concatenate([[0], np.cumsum(count_P)])
        return cls(Sampler.of(probabilities("unigram", counts_V)), share, pair_P, before_P)

    def draw(self, rng: np.random.Generator, samples: int, before_N: NDArray[np.integer]) -> NDArray[np.int64]:
        """(N, S) words, those of each row after the word that stands before it."""
        low_N1, high_N1 = (each[:, None] for each in self._range(before_N))
        shape = (len(before_N), samples)
        by_unigram = self.unigram.draw(rng, len(before_N) * samples).reshape(shape)
        by_bigram = (rng.random(shape) < self.share) & (high_N1 > low_N1)
        place = np.where(by_bigram, rng.integers(low_N1, np.maximum(high_N1, low_N1 + 1), size=shape), 0)
        pair = self.pair_P[np.searchsorted(self.before_P[1:], place, side="right") * by_bigram]
        return np.where(by_bigram, pair % len(self.unigram.probability_V), by_unigram)

    def log_expected_counts(
        self, ids_NS: NDArray[np.integer], samples: int, before_N: NDArray[np.integer]
    ) -> NDArray[np.float64]:
        """(N, S) how often each of `ids_NS` is expected among S words after the word before its row, as a logarithm."""
        low_N1, high_N1 = (each[:, None] for each in self._range(before_N))
        pair = before_N.astype(np.int64)[:, None] * len(self.unigram.probability_V) + ids_NS
        count = self._until(pair + 1) - self._until(pair)
        share = np.where(high_N1 > low_N1, self.share, 0.0)
        mixed = share * count / np.maximum(high_N1 - low_N1, 1) + (1 - share) * self.unigram.probability_V[ids_NS]
        return np.log(mixed) + math.log(samples)

    def _range(self, before_N: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The summed counts of all pairs before, and up to the last of, those that begin with each word."""
        begin_N = before_N.astype(np.int64) * len(self.unigram.probability_V)
        return self._until(begin_N), self._until(begin_N + len(self.unigram.probability_V))

    def _until(self, pair: NDArray[np.int64]) -> NDArray[np.int64]:
        """The summed counts of all pairs below."""
        return self.before_P[np.searchsorted(self.pair_P, pair)]
