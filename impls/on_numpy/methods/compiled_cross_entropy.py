"""Full softmax as torch.compile generates it from PyTorch's linear layer and cross-entropy: the one-line solution.

It is the same function as `full_softmax`. The compiled code is therefore checked against the same definition and timed
next to `fused_softmax`.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import full_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="compiled_cross_entropy",
    paper="Ansel et al., PyTorch 2: faster machine learning through dynamic Python bytecode transformation, 2024",
)

LAYER = full_softmax.FullSoftmax
