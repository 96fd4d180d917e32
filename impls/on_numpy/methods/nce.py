"""Noise-contrastive estimation (Gutmann and Hyvärinen 2010; Mnih and Teh 2012): real words against sampled words.

The layer learns to classify whether a word comes from the text or from a sampler. Let s_w = h.W_w + b_w, let log Z be
the option `normaliser`, and let E[w] be the expected number of occurrences of w among S sampled words. For target t,

    x_w = s_w - log Z - log E[w],    loss = -log sigma(x_t) - sum over the samples w of log sigma(-x_w)

If e^(s_w) / Z is the probability of w in the text, then sigma(x_w) is the probability that w came from the text. At
the optimum this holds, so the scores normalize themselves to Z, which is 1, V, or a learned parameter. The biases start
at the words' log frequencies plus log Z, so that the scores are normalized from the beginning.

The forward pass costs 2 D (1 + S) FLOPs per token. A batch reads at most N + S rows of W, forward and backward,
whatever V is. Evaluation uses full softmax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.on_numpy import sampled
from vocabench.impls.on_numpy.methods import full_softmax
from vocabench.impls.on_numpy.oracle import log_sigmoid
from vocabench.impls.options import Choice
from vocabench.impls.spec import Arrays, Extra, LayerSpec, Shapes

OPTIONS = sampled.options(remove_hits=False) | {
    "normaliser": Choice("fixed", ("fixed", "log_vocab", "learned"), "log Z: 0, log V, or learned, starting at log V"),
}


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    arrays = sampled.structure(counts_V, options)
    return arrays | {"correction": arrays["correction"] + _fixed_log_z(options, len(counts_V))}


def _fixed_log_z(options: Mapping[str, object], vocab: int) -> float:
    """Return the part of log Z that is not a parameter."""
    return float(np.log(vocab)) if options["normaliser"] == "log_vocab" else 0.0


def _correction(
    spec: LayerSpec, rng: np.random.Generator, before_N: NDArray[np.int64] | None, tokens: int | None
) -> NDArray[np.float64] | None:
    log_expected_V = sampled.CORRECTION.draw(spec, rng, before_N, tokens)
    return None if log_expected_V is None else log_expected_V + _fixed_log_z(spec.options, spec.vocab)


def shapes(spec: LayerSpec) -> Shapes:
    learned: Shapes = {"log_normaliser": (1,)} if spec.options["normaliser"] == "learned" else {}
    return full_softmax.shapes(spec) | learned


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    params = full_softmax.initial(spec, rng)
    # The loss never compares scores with each other. If they did not start normalized and at the words' frequencies,
    # each bias would first have to move on its own, which takes an epoch with Adagrad's shrinking steps.
    smooth_V = spec.counts + 1.0  # a word of count zero has a finite logarithm
    log_z = 0.0 if spec.options["normaliser"] == "fixed" else np.log(spec.vocab)
    params["bias"] = np.log(smooth_V / smooth_V.sum()) + log_z
    if spec.options["normaliser"] == "learned":
        params["log_normaliser"] = np.full(1, log_z)
    return params


DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="nce",
    paper="Mnih and Teh, A fast and simple algorithm for training neural probabilistic language models, 2012",
    options=OPTIONS,
    structure=structure,
    shapes=shapes,
    initial=initial,
    train_only_loss=True,
    needs_counts=True,
    extra={"sampled_ids": sampled.SAMPLED_IDS, "correction": Extra(_correction, for_each_word=True)},
    least_work=sampled.least_work,
    variants=({"normaliser": "log_vocab", "bias": False}, {"normaliser": "learned", "remove_hits": True}),
)


class NoiseContrastiveEstimation(sampled.SampledLayer):
    """Binary logistic loss on the target against each sampled word."""

    def _contrast(self, target_N: NDArray, sampled_NS: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        log_text_N, log_noise_NS = log_sigmoid(target_N), log_sigmoid(-sampled_NS)
        # The derivative of -log sigma(x) is sigma(x) - 1, and that of -log sigma(-x) is sigma(x).
        return -log_text_N - log_noise_NS.sum(axis=1), np.expm1(log_text_N), -np.expm1(log_noise_NS)


LAYER = NoiseContrastiveEstimation
