"""Full softmax as torch.compile makes it of PyTorch's linear layer and cross-entropy: what a user gets with one line.

The very function of `full_softmax`, so that what is compiled is held against the same definition, and timed next to
`fused_softmax`.
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
