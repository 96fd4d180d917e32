"""Sampled softmax: a cross-entropy over the target and S sampled words (Bengio and Senécal 2003; Jean et al. 2015).

With s_w = h.W_w + b_w and E[w] the number of times that w is expected among the samples, for the target t

    x_w = s_w - log E[w],    loss = log(e^(x_t) + sum over the samples w of e^(x_w)) - x_t

e^(s_w) / E[w], summed over the samples, is an estimate of full softmax's normaliser by importance sampling. As the
number of samples grows, the gradient becomes that of full softmax.

2 D (1 + S) FLOPs a token forward, and 2 D (N + S) numbers of the N + S rows that a batch reads, whatever V; evaluated
it is full softmax.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.on_numpy import sampled
from vocabench.impls.on_numpy.methods import full_softmax
from vocabench.impls.on_numpy.oracle import log_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="sampled_softmax",
    paper="Jean, Cho, Memisevic, Bengio, On using very large target vocabulary for neural machine translation, 2015",
    options=sampled.options(remove_hits=True),
    structure=lambda counts_V, options, seed: sampled.structure(counts_V, options),
    train_only_loss=True,
    extra={"sampled_ids": sampled.SAMPLED_IDS, "correction": sampled.CORRECTION},
    least_work=sampled.least_work,
    variants=({"remove_hits": False},),
)


class SampledSoftmax(sampled.SampledLayer):
    def _contrast(self, target_N: NDArray, sampled_NS: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        log_share_NC = log_softmax(np.concatenate([target_N[:, None], sampled_NS], axis=1))
        share_NC = np.exp(log_share_NC)  # d loss / d x = share - one-hot
        return -log_share_NC[:, 0], share_NC[:, 0] - 1, share_NC[:, 1:]


LAYER = SampledSoftmax
