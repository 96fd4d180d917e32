"""Full softmax whose loss keeps, for its gradient, the exponentials of the logits in their place: one (N, V) array.

    log P(w | h) = h.W_w + b_w - log sum_v exp(h.W_v + b_v)

The very function of `full_softmax`; the frameworks' layers differ in what they keep. A framework's own cross-entropy
makes two or three arrays of the logits' size on the way to the gradient, for d loss / d logits is a softmax less one at
the target. Taken apart, none of them is needed: with e = exp(l - max l) and s its sum, of a token with weight g

    d loss / d h = g / s (e W) - g W_w         d loss / d W = e^T (g / s h) - g h at row w

so that both products read the exponentials as they are, and the rest is small: 6 D V FLOPs a token, as ever.

In half precision e would be rounded before the one is taken off: there the layers compute what `full_softmax` does.
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
