"""Full softmax as Cut Cross-Entropy's authors compute it on a GPU: a peer of `fused_softmax`.

The function of `full_softmax`, so that their kernels are held against the same definition, and timed next to ours.
Their backward pass leaves out a block of logits where every derivative is below 2^-12, which bfloat16 would hardly add
up; with `impl="cce_exact"` it leaves out none.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import full_softmax
from vocabench.impls.options import Choice

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="cut_cross_entropy",
    paper="Wijmans et al., Cut your losses in large-vocabulary language models, arXiv 2411.09009, 2024",
    options={
        "impl": Choice(
            "cce",
            ("cce", "cce_kahan", "cce_kahan_full_c", "cce_exact"),
            "as in the paper; its sums more precise; the weights' gradient whole, too; that of the hidden vectors, too",
        )
    },
)

LAYER = full_softmax.FullSoftmax
