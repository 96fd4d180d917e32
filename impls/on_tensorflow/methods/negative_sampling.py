"""Negative sampling in TensorFlow. See `impls/on_numpy/methods/negative_sampling.py` for the definition."""

from __future__ import annotations

from vocabench.impls.on_tensorflow.methods.nce import NoiseContrastiveEstimation


class NegativeSampling(NoiseContrastiveEstimation):
    """-log sigma(s_t) - sum over the sampled words of log sigma(-s_w), without a correction."""


LAYER = NegativeSampling
