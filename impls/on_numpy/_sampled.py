"""What the losses over sampled words share: full softmax's parameters, trained on the target and S sampled words.

The S words are drawn once for all tokens of a batch. With s_w = h.W_w + b_w, what is compared is

    x_w = s_w - correction[w]

where the correction, (V,) and made once, is what the method takes off each word's score: the logarithm of how often w
is expected among S drawn words, or nothing. S there is the option `samples`, however many ids a caller gives. A sampled
word that is the token's target is an accidental hit; with `remove_hits` that token leaves it out.

Everything but the training loss is full softmax's: log-probabilities, top-k, sampling.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from impls.on_numpy import _work, full_softmax
from impls.options import Choice, Number, Option
from impls.spec import Arrays, LayerSpec, LeastWork
from impls.structures import samplers
from impls.structures.samplers import AliasTable, Sampler


def options(*, remove_hits: bool) -> dict[str, Option]:
    return {
        "samples": Number(64, 1, 2**31, "sampled words S, the same for all tokens of a batch"),
        "sampler": Choice("log_uniform", samplers.NAMES, "what words are drawn by"),
        "unique": Choice(False, (False, True), "draw until all S words are distinct"),
        "remove_hits": Choice(remove_hits, (False, True), "leave out a sampled word that is the token's target"),
    }


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], *, corrected: bool = True) -> Arrays:
    """The sampler's arrays, and what is taken off each word's score."""
    vocab, samples = len(counts_V), int(options["samples"])  # type: ignore[call-overload]
    unique = bool(options["unique"])
    if unique:
        samplers.check_distinct(samples, vocab)
    sampler = Sampler.of(samplers.probabilities(str(options["sampler"]), counts_V), unique=unique)
    correction_V = sampler.log_expected_counts(np.arange(vocab), samples) if corrected else np.zeros(vocab)
    return {
        "probability": sampler.probability_V,
        "alias_own": sampler.table.own_V,
        "alias": sampler.table.alias_V,
        "correction": correction_V,
    }


def draw_ids(spec: LayerSpec, rng: np.random.Generator) -> NDArray[np.int64]:
    """(S,) the words that a batch is held against."""
    arrays = spec.structure
    table = AliasTable(arrays["alias_own"], arrays["alias"])
    sampler = Sampler(arrays["probability"], table, bool(spec.options["unique"]))
    return sampler.draw(rng, int(spec.options["samples"]))  # type: ignore[call-overload]


def least_work(spec: LayerSpec, targets_N: NDArray[np.int64], sampled_ids: NDArray[np.int64]) -> LeastWork:
    """A word that was drawn twice is scored once."""
    sampled_S, tokens = np.unique(sampled_ids), len(targets_N)
    rows = len(np.union1d(targets_N, sampled_S))
    multiply_adds = tokens * (1 + len(sampled_S)) * spec.dim
    besides = _work.all_parameters(spec) - spec.vocab * (spec.dim + 1)  # such as a normaliser
    return _work.least(spec, tokens, multiply_adds=multiply_adds, parameters=rows * (spec.dim + 1) + besides)


class SampledLayer(full_softmax.FullSoftmax):
    """A method's file gives its formula, `_contrast`."""

    @abstractmethod
    def _contrast(self, target_N: NDArray, sampled_NS: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        """(N,) losses of the tokens from x of their targets and of the sampled words, which is -inf where one is left
        out, and the derivatives by both."""

    def _loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        hidden_ND, sampled_S = hidden_ND.astype(np.float64), extra["sampled_ids"]
        weight_VD, bias_V, correction_V = self.params["weight"], self.params["bias"], self.spec.structure["correction"]
        target_N = np.einsum("nd,nd->n", hidden_ND, weight_VD[targets_N]) + (bias_V - correction_V)[targets_N]
        sampled_NS = hidden_ND @ weight_VD[sampled_S].T + (bias_V - correction_V)[sampled_S]
        if self.spec.options["remove_hits"]:
            sampled_NS[targets_N[:, None] == sampled_S] = -np.inf
        shift = self._shift()
        losses_N, dtarget_N, dsampled_NS = self._contrast(target_N - shift, sampled_NS - shift)

        dtarget_N, dsampled_NS = dtarget_N / len(targets_N), dsampled_NS / len(targets_N)
        dhidden_ND = dtarget_N[:, None] * weight_VD[targets_N] + dsampled_NS @ weight_VD[sampled_S]
        grads = {name: np.zeros_like(value) for name, value in self.params.items()}
        np.add.at(grads["weight"], targets_N, dtarget_N[:, None] * hidden_ND)
        np.add.at(grads["weight"], sampled_S, dsampled_NS.T @ hidden_ND)
        np.add.at(grads["bias"], targets_N, dtarget_N)
        np.add.at(grads["bias"], sampled_S, dsampled_NS.sum(axis=0))
        if "log_normaliser" in grads:
            grads["log_normaliser"] -= dtarget_N.sum() + dsampled_NS.sum()
        return float(losses_N.mean()), dhidden_ND, grads

    def _shift(self) -> NDArray | float:
        """What is taken off every score besides the correction."""
        return self.params.get("log_normaliser", 0.0)
