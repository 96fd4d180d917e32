"""Full softmax as Liger Kernel's fused linear layer and cross-entropy computes it on a GPU.

It is a peer of `fused_softmax` and the same function as `full_softmax`. Liger's kernel is therefore checked against the
same definition and timed next to ours.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import full_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="liger_cross_entropy",
    paper="Hsu et al., Liger Kernel: efficient Triton kernels for LLM training, arXiv 2410.10989, 2024",
)

LAYER = full_softmax.FullSoftmax
