"""Full softmax as the authors of Cut Cross-Entropy compute it on a GPU, a peer of `fused_softmax`.

It is the same function as `full_softmax`. The authors' kernels are therefore checked against the same definition and
timed next to ours.

Their backward pass skips a block of logits if all of its derivatives are below 2^-12, which would hardly change sums in
bfloat16. With `impl="cce_exact"` it skips no block.
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
        **full_softmax.DEFINITION.options,
        "impl": Choice(
            "cce",
            ("cce", "cce_kahan", "cce_kahan_full_c", "cce_exact"),
            "as in the paper; with compensated sums; and full weight gradients; and full hidden gradients",
        ),
    },
)

LAYER = full_softmax.FullSoftmax
