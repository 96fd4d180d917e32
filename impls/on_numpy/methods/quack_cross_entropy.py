"""Full softmax as QuACK computes a linear layer and its cross-entropy on a recent NVIDIA GPU.

It is a peer of `fused_softmax` and the same function as `full_softmax`. QuACK's kernels are therefore checked against
the same definition and timed next to ours.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import full_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="quack_cross_entropy",
    paper="Dao-AILab, QuACK: a quirky assortment of CuTe kernels, 2025",
)

LAYER = full_softmax.FullSoftmax
