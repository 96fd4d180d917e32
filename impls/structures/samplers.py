"""Samplers of words with given probabilities, for losses that score a few sampled words instead of all.

An alias table (Walker 1977; Vose 1991) has one word and one alias in each of V columns. A draw takes a random column
and chooses between its two words, whatever the probabilities are. The table is built by prefix sums (Hübschle-Schneider
and Sanders 2022, arXiv 1903.00227), with O(V) additions and one merge of two sorted lists, all vectorized.

The losses weight a word by the expected number of its occurrences among S sampled words:

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
    """Return the probability (V,) of drawing each word, which is above 0. A count of zero is treated as one.

    log_uniform        log((rank + 2) / (rank + 1)) / log(V + 1), with ranks by descending count, ties by lower id
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
    """Alias table in which column v yields word v with probability `own_V[v]`, else word `alias_V[v]`."""

    own_V: NDArray[np.float64]
    alias_V: NDArray[np.int64]

    @classmethod
    def of(cls, probability_V: NDArray[np.float64]) -> AliasTable:
        """Build a table from probabilities or other weights, which are non-negative and not all zero."""
        vocab = len(probability_V)
        scaled_V = probability_V / probability_V.max()  # prevents overflow if the sum is tiny
        share_V = scaled_V * (vocab / scaled_V.sum())  # in units of columns
        own_V, alias_V = share_V.copy(), np.arange(vocab)
        full = min(1.0, share_V.max())  # below 1 only by rounding, if all words are equal
        light_L, heavy_H = np.flatnonzero(share_V < full), np.flatnonzero(share_V >= full)
        # Cumulative sums of what light words lack and of what heavy words have in excess. A heavy word fills light ones
        # until less than a column of it is left, which the next heavy word fills.
        lack_L, give_H = np.cumsum(1 - share_V[light_L]), np.cumsum(share_V[heavy_H] - 1)
        before_L = np.concatenate([[0.0], lack_L[:-1]])[: len(light_L)]
        filler_L = np.searchsorted(give_H, before_L, side="right")
        # The two totals are equal up to rounding, which must not lead beyond the last heavy word.
        alias_V[light_L] = heavy_H[np.minimum(filler_L, len(heavy_H) - 1)]
        last_H = np.searchsorted(before_L, give_H, side="left") - 1  # last light word it fills, or -1
        filled = np.flatnonzero(last_H[:-1] >= 0)
        left_H = 1 + give_H[filled] - lack_L[last_H[filled]]
        own_V[heavy_H] = 1.0
        own_V[heavy_H[filled]] = np.clip(left_H, 0, 1)
        alias_V[heavy_H[filled]] = heavy_H[filled + 1]
        return cls(own_V, alias_V)

    def probabilities(self) -> NDArray[np.float64]:
        """Return the probability (V,) of each word under the table."""
        vocab = len(self.own_V)
        return (self.own_V + np.bincount(self.alias_V, weights=1 - self.own_V, minlength=vocab)) / vocab

    def draw(self, rng: np.random.Generator, samples: int) -> NDArray[np.int64]:
        """Draw words (S,) independently."""
        column_S = rng.integers(len(self.own_V), size=samples)
        return np.where(rng.random(samples) < self.own_V[column_S], column_S, self.alias_V[column_S])


@dataclass(frozen=True)
class Sampler:
    """Sampler of words with probabilities P(w), with replacement or, if `unique`, until all are distinct."""

    probability_V: NDArray[np.float64]  # above 0
    table: AliasTable
    unique: bool = False

    @classmethod
    def of(cls, probability_V: NDArray[np.float64], *, unique: bool = False) -> Sampler:
        return cls(probability_V, AliasTable.of(probability_V), unique)

    def draw(self, rng: np.random.Generator, samples: int) -> NDArray[np.int64]:
        """Draw word ids (S,)."""
        if not self.unique:
            return self.table.draw(rng, samples)
        check_distinct(samples, len(self.probability_V))
        drawn = self.table.draw(rng, 2 * samples)
        _, first = np.unique(drawn, return_index=True)
        words = drawn[np.sort(first)[:samples]]
        return np.concatenate([words, self._race(rng, words, samples - len(words))])

    def _race(self, rng: np.random.Generator, without: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
        """Draw the next distinct words after those of `without`.

        Exponential clocks with rates P(w) ring in the order in which words are first drawn.
        """
        if not samples:
            return without[:0]
        rings_V = rng.standard_exponential(len(self.probability_V)) / self.probability_V
        rings_V[without] = np.inf
        return np.argpartition(rings_V, samples - 1)[:samples]

    def tries(self, samples: int) -> float:
        """Return the number of draws after which S distinct words are expected; infinite for the whole vocabulary."""
        vocab = len(self.probability_V)
        check_distinct(samples, vocab)
        if samples == vocab:
            return math.inf
        missed_V = self._log_missed()
        # Newton's method never overshoots here: the function is increasing and concave, and starts too low.
        tries = float(samples)
        for _ in range(200):
            kept_V = np.exp(tries * missed_V)
            step = (kept_V.sum() - (vocab - samples)) / -(missed_V * kept_V).sum()
            tries += step
            if abs(step) < 1e-12 * tries:
                break
        return tries

    def log_expected_counts(self, ids: ArrayLike, samples: int, *, tries: float | None = None) -> NDArray[np.float64]:
        """Return the logarithm of the expected number of occurrences of each id among S sampled words.

        Args:
            ids: Word ids of any shape.
            samples: Number S of sampled words.
            tries: Number of draws that distinct words took; the expected number by default.
        """
        ids = np.asarray(ids)
        if not self.unique:
            return np.log(self.probability_V[ids]) + math.log(samples)
        tries = self.tries(samples) if tries is None else tries
        return np.log(-np.expm1(tries * self._log_missed()[ids]))

    def _log_missed(self) -> NDArray[np.float64]:
        """Return the logarithm (V,) of the probability of missing each word in one draw."""
        return np.log1p(-np.minimum(self.probability_V, _BELOW_ONE))


def check_distinct(samples: int, vocab: int) -> None:
    """Raise `BadInput` if more distinct words are requested than the vocabulary has."""
    if samples > vocab:
        raise BadInput(f"option samples={samples} with unique=True: allowed: at most {vocab}, the vocabulary")


@dataclass(frozen=True)
class BigramSampler:
    """Sampler of words, with replacement, by the preceding word, interpolated with the unigram:

        P(w | u) = share c(u, w) / c(u) + (1 - share) P(w)

    If u never precedes another word in the pairs, or is unknown (-1), only P(w) applies. If the N tokens of a batch
    share the samples, each sample is drawn by the preceding word of a random token:

        Q(w) = 1/N sum over the tokens n of P(w | u_n)

    The pairs of each word u are stored contiguously, with cumulative counts, so that a draw is a binary search.

    Shape letters: P pairs, U distinct preceding words, F pairs that begin with one of these.
    """

    unigram: Sampler
    share: float  # below 1
    begin_V1: NDArray[np.int64]  # (V + 1,) first pair of each word u, and the number of pairs
    word_P: NDArray[np.int64]
    below_P1: NDArray[np.int64]  # (P + 1,) cumulative counts: of the pairs before each pair, and the total

    @classmethod
    def of(cls, pairs_P3: NDArray[np.int64], unigram: Sampler, *, share: float = 0.5) -> BigramSampler:
        """Build a sampler from rows of preceding word, word and count, in any order."""
        before_P, word_P, count_P = pairs_P3[np.argsort(pairs_P3[:, 0], kind="stable")].T
        begin_V1 = np.searchsorted(before_P, np.arange(len(unigram.probability_V) + 1))
        below_P1 = np.concatenate([[0], np.cumsum(count_P)])
        return cls(unigram, share, begin_V1, np.ascontiguousarray(word_P), below_P1)

    def draw(self, rng: np.random.Generator, samples: int, before_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw words (S,), each by a random one of the preceding words."""
        return self.draw_after(rng, before_N[rng.integers(len(before_N), size=samples)])

    def draw_after(self, rng: np.random.Generator, before_S: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw a word (S,) by each of the preceding words."""
        begin_S, end_S = self._pairs_of(before_S)
        by_bigram_S = (rng.random(len(before_S)) < self.share) & (end_S > begin_S)
        low_S, high_S = self.below_P1[begin_S], self.below_P1[end_S]
        place_S = rng.integers(low_S, np.maximum(high_S, low_S + 1))
        pair_S = np.searchsorted(self.below_P1, place_S, side="right") - 1
        return np.where(by_bigram_S, self.word_P[pair_S * by_bigram_S], self.unigram.draw(rng, len(before_S)))

    def probabilities(self, before_N: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return Q (V,), which is above 0."""
        before_U, tokens_U = np.unique(before_N, return_counts=True)
        begin_U, end_U = self._pairs_of(before_U)
        count_U = self.below_P1[end_U] - self.below_P1[begin_U]
        share_U = self.share / len(before_N) * tokens_U * (count_U > 0)
        # Slices are twice as fast as an index array of the pairs.
        spans = [slice(*span) for span in zip(begin_U.tolist(), end_U.tolist(), strict=True)]
        count_F = np.concatenate([self.below_P1[1:][span] for span in spans])
        count_F -= np.concatenate([self.below_P1[span] for span in spans])
        by_bigram_F = np.repeat(share_U / np.maximum(count_U, 1), end_U - begin_U) * count_F
        word_F = np.concatenate([self.word_P[span] for span in spans])
        by_bigram_V = np.bincount(word_F, weights=by_bigram_F, minlength=len(self.unigram.probability_V))
        return by_bigram_V + (1 - share_U.sum()) * self.unigram.probability_V

    def log_expected_counts(self, samples: int, before_N: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the logarithm (V,) of the expected number of occurrences of each word among S samples."""
        return np.log(self.probabilities(before_N)) + math.log(samples)

    def _pairs_of(self, before_U: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first pair of each word and the one after its last, which are equal for words without pairs."""
        begin_U = self.begin_V1[before_U]  # index -1 is the number of pairs
        return begin_U, self.begin_V1[np.where(before_U < 0, before_U, before_U + 1)]
