"""Full softmax whose (N, V) logits never exist whole: blocks of them, forward and backward.

    log P(w | h) = h.W_w + b_w - log sum_v exp(h.W_v + b_v)

The very function of `full_softmax`; the frameworks' layers differ in what they keep. The log-sum-exp is gathered block
by block, and the backward pass computes each block of logits once more: 8 D V FLOPs a token forward and backward where
full softmax has 6 D V, against (N, V) logits that are neither kept nor written to memory.
"""

from __future__ import annotations

import dataclasses

from impls.on_numpy import full_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="fused_softmax",
    paper="Wijmans et al., Cut your losses in large-vocabulary language models, 2024",
)

LAYER = full_softmax.FullSoftmax
