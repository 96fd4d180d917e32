"""Negative sampling: a target told from S sampled words by their scores alone (Mikolov et al. 2013).

With s_w = h.W_w + b_w, for the target t

    loss = -log sigma(s_t) - sum over the samples w of log sigma(-s_w)

That is `nce` without its corrections, and no longer an estimate of a distribution: at the optimum s_w is log P(w | h)
less the logarithm of how often w is expected among the samples. What `target_log_probs` and all evaluation report is
the full softmax of these scores, which is not what the loss makes probable.

2 D (1 + S) FLOPs a token forward, and 2 D (N + S) numbers of the N + S rows that a batch reads, whatever V.
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
    extra={"sampled_ids": sampled.SAMPLED_IDS},
    least_work=sampled.least_work,
    variants=({"remove_hits": False},),
)

LAYER = NoiseContrastiveEstimation
