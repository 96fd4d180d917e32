"""Full softmax that overwrites the logits with their exponentials: one (N, V) array serves loss and gradient.

    log P(w | h) = h.W_w + b_w - log sum_v exp(h.W_v + b_v)

It is the same function as `full_softmax`; the frameworks' layers differ in what they keep in memory. A framework's own
cross-entropy allocates two or three arrays of the size of the logits on the way to the gradient, because
d loss / d logits is the softmax minus one at the target. Splitting the gradient makes these arrays unnecessary. For a
token with logits l, target w and weight g, let e = exp(l - max l) and s the sum of e. Then

    d loss / d h = g / s (e W) - g W_w         d loss / d W = e^T (g / s h) - g h at row w

Both products read the exponentials as they are, and the remaining terms are small. Forward and backward take 6 D V
FLOPs per token, as for full softmax.

In half precision, e would be rounded before the one is subtracted. There the layers compute what `full_softmax` does.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import full_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="inplace_softmax",
    paper="Full softmax with its gradient taken apart; the exponentials lie where the logits did",
)

LAYER = full_softmax.FullSoftmax
