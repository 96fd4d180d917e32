"""Noise-contrastive estimation: is a word the text's or the sampler's? (Gutmann and Hyvärinen 2010; Mnih and Teh 2012)

With s_w = h.W_w + b_w, log Z the `normaliser` and E[w] the number of times that w is expected among S sampled words,
for the target t

    x_w = s_w - log Z - log E[w],    loss = -log sigma(x_t) - sum over the samples w of log sigma(-x_w)

sigma(x_w) is the probability that w came from the text, if e^(s_w) / Z is its probability there: at the optimum it is,
so that the scores normalise themselves to Z: 1 where it is fixed, V, or a number that is learned. They start there:
biases at the words' log frequencies and log Z.

2 D (1 + S) FLOPs a token forward, and 2 D (N + S) numbers of the N + S rows that a batch reads, whatever V; evaluated
it is full softmax.
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
    "normaliser": Choice("fixed", ("fixed", "log_vocab", "learned"), "log Z: 0, log V, or learned, from log V on"),
}


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    found = sampled.structure(counts_V, options)
    return found | {"correction": found["correction"] + _fixed_log_z(options, len(counts_V))}


def _fixed_log_z(options: Mapping[str, object], vocab: int) -> float:
    """What of log Z is no parameter."""
    return float(np.log(vocab)) if options["normaliser"] == "log_vocab" else 0.0


def _correction(
    spec: LayerSpec, rng: np.random.Generator, before_N: NDArray[np.int64] | None
) -> NDArray[np.float64] | None:
    log_expected_V = sampled.CORRECTION.draw(spec, rng, before_N)
    return None if log_expected_V is None else log_expected_V + _fixed_log_z(spec.options, spec.vocab)


def shapes(spec: LayerSpec) -> Shapes:
    learned: Shapes = {"log_normaliser": (1,)} if spec.options["normaliser"] == "learned" else {}
    return full_softmax.shapes(spec) | learned


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    params = full_softmax.initial(spec, rng)
    # Scores are compared one by one, never with each other: those that start neither normalised nor at the words'
    # frequencies would have every bias to move by itself first, which Adagrad's shrinking steps take an epoch for.
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
    extra={"sampled_ids": sampled.SAMPLED_IDS, "correction": Extra(_correction, for_each_word=True)},
    least_work=sampled.least_work,
    variants=({"normaliser": "log_vocab"}, {"normaliser": "learned", "remove_hits": True}),
)


class NoiseContrastiveEstimation(sampled.SampledLayer):
    def _contrast(self, target_N: NDArray, sampled_NS: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        log_text_N, log_noise_NS = log_sigmoid(target_N), log_sigmoid(-sampled_NS)
        # d/dx of -log sigma(x) is sigma(x) - 1, of -log sigma(-x) it is sigma(x).
        return -log_text_N - log_noise_NS.sum(axis=1), np.expm1(log_text_N), -np.expm1(log_noise_NS)


LAYER = NoiseContrastiveEstimation
