"""Base of the losses over sampled words: parameters of full softmax, trained on the target and S sampled words.

The S words are drawn once for all tokens of a batch, or for each token with the option `sharing="token"` of
`negative_sampling`. With s_w = h.W_w + b_w, the loss compares

    x_w = s_w - correction[w]

The correction (V,) depends on the method. It is zero, or the logarithm of the expected number of occurrences of w among
S drawn words. S is the option `samples` there, even if a caller passes another number of ids.

The correction is computed once for all samplers but "bigram". The draws of "bigram" depend on the words before the
targets of a batch. If these words are given, each batch has its own correction; otherwise the sampler draws from the
unigram only.

A sampled word that equals the target of a token is an accidental hit. With `remove_hits`, the token ignores it.

Log-probabilities, top-k and sampling are those of full softmax. Only the training loss differs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.methods import full_softmax
from vocabench.impls.on_numpy.oracle import OracleLayer
from vocabench.impls.on_numpy.pairs_option import pairs, read_pairs
from vocabench.impls.options import Choice, Number, Option
from vocabench.impls.spec import BIAS, Arrays, Extra, LayerSpec, LeastWork
from vocabench.impls.structures import bigrams, samplers
from vocabench.impls.structures.samplers import AliasTable, BigramSampler, Sampler


def options(*, remove_hits: bool) -> dict[str, Option]:
    return {
        "bias": BIAS,
        "samples": Number(64, 1, 2**31, "number S of sampled words, which all tokens of a batch share"),
        "sampler": Choice("log_uniform", (*samplers.NAMES, bigrams.NAME), "distribution from which words are drawn"),
        "share": Number(0.5, 0.0, 0.999, "weight of the bigram for sampler=bigram; the rest goes to the unigram"),
        "pairs": pairs("sampler"),
        "unique": Choice(False, (False, True), "draw until all S words are distinct"),
        "remove_hits": Choice(remove_hits, (False, True), "ignore a sampled word that is the token's target"),
    }


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], *, corrected: bool = True) -> Arrays:
    """Return the arrays of the sampler, and the correction that is subtracted from the scores."""
    vocab, samples = len(counts_V), int(options["samples"])  # type: ignore[call-overload]
    unique, by_bigram = bool(options["unique"]), options["sampler"] == bigrams.NAME
    pairs_P3 = read_pairs(options, "sampler", vocab)
    if unique and by_bigram:
        raise BadInput("option unique=True with sampler='bigram': allowed: False, which draws with replacement")
    if unique:
        samplers.check_distinct(samples, vocab)
    name = "unigram" if by_bigram else str(options["sampler"])
    sampler = Sampler.of(samplers.probabilities(name, counts_V), unique=unique)
    correction_V = sampler.log_expected_counts(np.arange(vocab), samples) if corrected else np.zeros(vocab)
    arrays = {
        "probability": sampler.probability_V,
        "alias_own": sampler.table.own_V,
        "alias": sampler.table.alias_V,
        "correction": correction_V,
    }
    if pairs_P3 is None:
        return arrays
    bigram = BigramSampler.of(pairs_P3, sampler)
    return arrays | {"pair_begin": bigram.begin_V1, "pair_word": bigram.word_P, "pair_below": bigram.below_P1}


def _samples(spec: LayerSpec) -> int:
    return int(spec.options["samples"])  # type: ignore[call-overload]


def _sampler(spec: LayerSpec) -> Sampler:
    arrays = spec.structure
    table = AliasTable(arrays["alias_own"], arrays["alias"])
    return Sampler(arrays["probability"], table, bool(spec.options["unique"]))


def _bigram_sampler(spec: LayerSpec) -> BigramSampler:
    pairs = (spec.structure[f"pair_{name}"] for name in ("begin", "word", "below"))
    return BigramSampler(_sampler(spec), float(spec.options["share"]), *pairs)  # type: ignore[arg-type]


def _for_each_token(options: Mapping[str, object]) -> bool:
    """Return whether each token has sampled words of its own. Only some methods have the option."""
    return options.get("sharing", "batch") == "token"


def _draw_ids(
    spec: LayerSpec, rng: np.random.Generator, before_N: NDArray[np.int64] | None, tokens: int | None
) -> NDArray[np.int64]:
    """Draw the words (S,) with which all targets of a batch are compared, or the words (N, S) for each target."""
    samples = _samples(spec)
    after_N = before_N if spec.options["sampler"] == bigrams.NAME else None
    if not _for_each_token(spec.options):
        if after_N is None:
            return _sampler(spec).draw(rng, samples)
        return _bigram_sampler(spec).draw(rng, samples, after_N)
    if tokens is None:
        raise BadInput("tokens is missing with option sharing='token': allowed: the number of targets")
    if after_N is None:
        drawn = _sampler(spec).draw(rng, tokens * samples)
    else:
        drawn = _bigram_sampler(spec).draw_after(rng, np.repeat(after_N, samples))
    return drawn.reshape(tokens, samples)


def _correction(
    spec: LayerSpec, rng: np.random.Generator, before_N: NDArray[np.int64] | None, tokens: int | None
) -> NDArray[np.float64] | None:
    """Return the correction (V,) of a batch that depends on the preceding words, or None if there is none."""
    if before_N is None or spec.options["sampler"] != bigrams.NAME:
        return None
    return _bigram_sampler(spec).log_expected_counts(_samples(spec), before_N)


def described(spec: LayerSpec) -> str:
    """Return how many words are sampled, for the description of a form."""
    return f"{_samples(spec)} sampled words" + (" for each token" if _for_each_token(spec.options) else "")


SAMPLED_IDS = Extra(_draw_ids, for_each_token=_for_each_token)
CORRECTION = Extra(_correction, for_each_word=True)


def least_work(
    spec: LayerSpec, targets_N: NDArray[np.int64], sampled_ids: NDArray[np.int64], correction: NDArray | None = None
) -> LeastWork:
    """Count the targets and the distinct sampled words; a word that was drawn twice is scored once."""
    tokens = len(targets_N)
    rows = len(np.union1d(targets_N, sampled_ids))
    sorted_XS = np.sort(np.atleast_2d(sampled_ids), axis=1)  # a row for each token, or one that all share
    distinct_X = 1 + np.count_nonzero(np.diff(sorted_XS, axis=1), axis=1)
    multiply_adds = (tokens + int(np.broadcast_to(distinct_X, tokens).sum())) * spec.dim
    per_word = spec.dim + spec.has_bias
    besides = cost.all_parameters(spec) - spec.vocab * per_word  # such as a normaliser
    return cost.least(spec, tokens, multiply_adds=multiply_adds, parameters=rows * per_word + besides)


def _product(subscripts: str, left: NDArray, right: NDArray) -> NDArray:
    """Return a sum of products, as a product of two matrices where it is one."""
    return np.einsum(subscripts, left, right, optimize=True)


class SampledLayer(full_softmax.FullSoftmax):
    """Layer with a loss over sampled words, which the module of a method defines in `_contrast`."""

    @abstractmethod
    def _contrast(self, target_N: NDArray, sampled_NS: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        """Return the losses (N,) and their derivatives with respect to `target_N` and `sampled_NS`.

        Args:
            target_N: x of the targets.
            sampled_NS: x of the sampled words, -inf for ignored ones.
        """

    _loss_and_grads = OracleLayer._loss_and_grads  # token weights, which are all that a sampled loss adds

    def _plain_loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        hidden_ND, ids = hidden_ND.astype(np.float64), extra["sampled_ids"]
        words = "ns" if ids.ndim == 2 else "s"  # the axes of the ids: each token has its own words, or all share them
        weight_VD, bias_V = self.params["weight"], self._bias()
        correction_V = extra.get("correction", self.spec.structure["correction"])
        target_N = np.einsum("nd,nd->n", hidden_ND, weight_VD[targets_N]) + (bias_V - correction_V)[targets_N]
        sampled_NS = _product(f"nd,{words}d->ns", hidden_ND, weight_VD[ids]) + (bias_V - correction_V)[ids]
        if self.spec.options["remove_hits"]:
            sampled_NS[targets_N[:, None] == ids] = -np.inf
        shift = self._shift()
        losses_N, dtarget_N, dsampled_NS = self._contrast(target_N - shift, sampled_NS - shift)

        dtarget_N, dsampled_NS = dtarget_N / len(targets_N), dsampled_NS / len(targets_N)
        dhidden_ND = dtarget_N[:, None] * weight_VD[targets_N]
        dhidden_ND += _product(f"ns,{words}d->nd", dsampled_NS, weight_VD[ids])
        grads = {name: np.zeros_like(value) for name, value in self.params.items()}
        np.add.at(grads["weight"], targets_N, dtarget_N[:, None] * hidden_ND)
        np.add.at(grads["weight"], ids, _product(f"ns,nd->{words}d", dsampled_NS, hidden_ND))
        if "bias" in grads:
            np.add.at(grads["bias"], targets_N, dtarget_N)
            np.add.at(grads["bias"], ids, np.einsum(f"ns->{words}", dsampled_NS))
        if "log_normaliser" in grads:
            grads["log_normaliser"] -= dtarget_N.sum() + dsampled_NS.sum()
        return float(losses_N.mean()), dhidden_ND, grads

    def _shift(self) -> NDArray | float:
        """Return what is subtracted from all scores in addition to the correction."""
        return self.params.get("log_normaliser", 0.0)
