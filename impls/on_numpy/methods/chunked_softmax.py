"""Full softmax over chunks of tokens, whose logits are computed again in the backward pass.

    log P(w | h) = h.W_w + b_w - log sum_v exp(h.W_v + b_v)

It is the same function as `full_softmax`, by what every framework offers: the loss of some tokens at a time, within the
framework's own activation checkpointing (Chen et al. 2016). The logits of one chunk exist at a time. Forward and
backward take 8 D V FLOPs per token, two of them for the recomputation, and each chunk adds to the gradient with respect
to all words.

It is what many training programs do by hand, and a peer of `fused_softmax`, which computes without recomputation or
without repeated sums.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import full_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="chunked_softmax",
    paper="Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016: checkpoints over chunks of tokens",
)

LAYER = full_softmax.FullSoftmax
