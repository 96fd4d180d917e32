"""Full softmax whose (N, V) logits never exist whole: blocks of them, of tokens or of words.

    log P(w | h) = h.W_w + b_w - log sum_v exp(h.W_v + b_v)

The very function of `full_softmax`; the frameworks' layers differ in what they keep. Where the loss is a mean or a sum,
the logits of some tokens at a time give these tokens' losses and gradients both: 6 D V FLOPs a token forward and
backward, as full softmax has. Blocks of words serve any use of the losses: the log-sum-exp is gathered block by block,
and the backward pass computes each block of logits once more, 8 D V FLOPs. (N, V) logits are neither kept nor written
to memory.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import full_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="fused_softmax",
    paper="Wijmans et al., Cut your losses in large-vocabulary language models, 2024",
)

LAYER = full_softmax.FullSoftmax
