"""Full softmax as PyTorch's own `linear_cross_entropy` computes it, in chunks of the batch.

It is a peer of `fused_softmax` and the same function as `full_softmax`. PyTorch's implementation is therefore checked
against the same definition and timed next to ours.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import full_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="linear_cross_entropy",
    paper="PyTorch 2.13, torch.nn.functional.linear_cross_entropy with LinearCrossEntropyOptions()",
)

LAYER = full_softmax.FullSoftmax
