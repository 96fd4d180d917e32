"""Sampled softmax (Bengio and Senécal 2003; Jean et al. 2015): cross-entropy over the target and S sampled words.

Let s_w = h.W_w + b_w, and let E[w] be the expected number of occurrences of w among the samples. For the target t,

    x_w = s_w - log E[w],    loss = log(e^(x_t) + sum over the samples w of e^(x_w)) - x_t

The sum of e^(s_w) / E[w] over the samples estimates the normalizer of full softmax by importance sampling. As the
number of samples grows, the gradient approaches that of full softmax.

The forward pass costs 2 D (1 + S) FLOPs per token. A batch reads at most N + S rows of W, forward and backward,
whatever V is. Evaluation uses full softmax.
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
    needs_counts=True,
    extra={"sampled_ids": sampled.SAMPLED_IDS, "correction": sampled.CORRECTION},
    least_work=sampled.least_work,
    variants=({"remove_hits": False, "bias": False},),
)


class SampledSoftmax(sampled.SampledLayer):
    """Cross-entropy over the target and the sampled words."""

    def _contrast(self, target_N: NDArray, sampled_NS: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        log_share_NC = log_softmax(np.concatenate([target_N[:, None], sampled_NS], axis=1))
        share_NC = np.exp(log_share_NC)  # d loss / d x = share - one_hot
        return -log_share_NC[:, 0], share_NC[:, 0] - 1, share_NC[:, 1:]


LAYER = SampledSoftmax
