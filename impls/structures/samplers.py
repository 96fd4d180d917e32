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

from vocabench.impls.errors import BadInput, unknown

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

    and P(w) alone after a word u that was never seen before another, or is not known: -1. The samples of a batch are
    shared by its N tokens, so each is drawn after the word before one of these, picked at random:

        Q(w) = 1/N sum over the tokens n of P(w | u_n)

    The pairs of each word u stand together, with the sums of all counts before, in which a draw is a binary search.
    Shape letters: P pairs, U different words before, F pairs that begin with one of these.
    """

    unigram: Sampler
    share: float  # below 1
    begin_V1: NDArray[np.int64]  # (V + 1,) the first pair of each word u, and the number of pairs
    word_P: NDArray[np.int64]
    below_P1: NDArray[np.int64]  # (P + 1,) the counts of all pairs before, and of all

    @classmethod
    def of(cls, pairs_P3: NDArray[np.int64], unigram: Sampler, *, share: float = 0.5) -> BigramSampler:
        """From rows of word before, word and count, in any order."""
        before_P, word_P, count_P = pairs_P3[np.argsort(pairs_P3[:, 0], kind="stable")].T
        begin_V1 = np.searchsorted(before_P, np.arange(len(unigram.probability_V) + 1))
        below_P1 = np.concatenate([[0], np.cumsum(count_P)])
        return cls(unigram, share, begin_V1, np.ascontiguousarray(word_P), below_P1)

    def draw(self, rng: np.random.Generator, samples: int, before_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """(S,) words, each after one of `before_N`."""
        before_S = before_N[rng.integers(len(before_N), size=samples)]
        begin_S, end_S = self._pairs_of(before_S)
        by_bigram_S = (rng.random(samples) < self.share) & (end_S > begin_S)
        low_S, high_S = self.below_P1[begin_S], self.below_P1[end_S]
        place_S = rng.integers(low_S, np.maximum(high_S, low_S + 1))
        pair_S = np.searchsorted(self.below_P1, place_S, side="right") - 1
        return np.where(by_bigram_S, self.word_P[pair_S * by_bigram_S], self.unigram.draw(rng, samples))

    def probabilities(self, before_N: NDArray[np.int64]) -> NDArray[np.float64]:
        """(V,) Q, all above 0."""
        before_U, tokens_U = np.unique(before_N, return_counts=True)
        begin_U, end_U = self._pairs_of(before_U)
        count_U = self.below_P1[end_U] - self.below_P1[begin_U]
        share_U = self.share / len(before_N) * tokens_U * (count_U > 0)
        # Slices, which are twice as fast as an index of each pair.
        spans = [slice(*span) for span in zip(begin_U.tolist(), end_U.tolist(), strict=True)]
        count_F = np.concatenate([self.below_P1[1:][span] for span in spans])
        count_F -= np.concatenate([self.below_P1[span] for span in spans])
        by_bigram_F = np.repeat(share_U / np.maximum(count_U, 1), end_U - begin_U) * count_F
        word_F = np.concatenate([self.word_P[span] for span in spans])
        by_bigram_V = np.bincount(word_F, weights=by_bigram_F, minlength=len(self.unigram.probability_V))
        return by_bigram_V + (1 - share_U.sum()) * self.unigram.probability_V

    def log_expected_counts(self, samples: int, before_N: NDArray[np.int64]) -> NDArray[np.float64]:
        """(V,) how often each word is expected among S words after those of `before_N`, as a logarithm."""
        return np.log(self.probabilities(before_N)) + math.log(samples)

    def _pairs_of(self, before_U: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each word the first of its pairs, and the one after its last; the same where it has none."""
        begin_U = self.begin_V1[before_U]  # of -1 their number, as if it stood after the last word
        return begin_U, self.begin_V1[np.where(before_U < 0, before_U, before_U + 1)]
