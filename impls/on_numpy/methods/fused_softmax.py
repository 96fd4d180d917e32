"""Full softmax computed in blocks of tokens or of words, so that the (N, V) logits never exist as a whole.

    log P(w | h) = h.W_w + b_w - log sum_v exp(h.W_v + b_v)

It is the same function as `full_softmax`; the frameworks' layers differ in what they keep in memory.

- Blocks of tokens: if the loss is a mean or a sum, the logits of a block of tokens yield both the losses and the
  gradients of these tokens. Forward and backward take 6 D V FLOPs per token, as for full softmax.
- Blocks of words: this works for any use of the losses. The log-sum-exp is accumulated block by block, and the backward
  pass recomputes each block of logits. Forward and backward take 8 D V FLOPs per token.

In both cases, the (N, V) logits are neither kept nor written to memory.
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
