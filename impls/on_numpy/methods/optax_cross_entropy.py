"""Full softmax whose loss is optax's, which most training programs in JAX call.

It is the same function as `full_softmax`. Optax's loss is therefore checked against the same definition and timed next
to ours.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import full_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="optax_cross_entropy",
    paper="DeepMind, The DeepMind JAX ecosystem, 2020: optax.softmax_cross_entropy_with_integer_labels",
)

LAYER = full_softmax.FullSoftmax
