"""Full softmax whose loss is Keras' own, as in a model that ends with a dense layer.

It is the same function as `full_softmax`. Keras' loss is therefore checked against the same definition and timed next
to ours.
"""

from __future__ import annotations

import dataclasses

from vocabench.impls.on_numpy.methods import full_softmax

DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="keras_cross_entropy",
    paper="Chollet et al., Keras, 2015: keras.losses.sparse_categorical_crossentropy",
)

LAYER = full_softmax.FullSoftmax
