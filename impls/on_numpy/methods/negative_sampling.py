"""Negative sampling (Mikolov et al. 2013): the target against S sampled words, without corrections.

With s_w = h.W_w + b_w, for the target t,

    loss = -log sigma(s_t) - sum over the samples w of log sigma(-s_w)

This is `nce` without its corrections, and it no longer estimates a distribution. At the optimum, s_w is log P(w | h)
minus the logarithm of the expected number of occurrences of w among the samples. `target_log_probs` and all evaluation
report the full softmax of these scores, which differs from the distribution of the text.

The forward pass costs 2 D (1 + S) FLOPs per token. A batch reads at most N + S rows of W, forward and backward,
whatever V is.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy import sampled
from vocabench.impls.on_numpy.methods import full_softmax
from vocabench.impls.on_numpy.methods.nce import NoiseContrastiveEstimation

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="negative_sampling",
    paper="Mikolov et al., Distributed representations of words and phrases and their compositionality, 2013",
    options=sampled.options(remove_hits=True),
    structure=lambda counts_V, options, seed: sampled.structure(counts_V, options, corrected=False),
    train_only_loss=True,
    needs_counts=True,
    extra={"sampled_ids": sampled.SAMPLED_IDS},
    least_work=sampled.least_work,
    variants=({"remove_hits": False, "bias": False},),
)

LAYER = NoiseContrastiveEstimation
