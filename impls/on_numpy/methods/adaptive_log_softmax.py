"""Adaptive softmax as PyTorch's own `AdaptiveLogSoftmaxWithLoss` computes it: a peer of `adaptive_softmax`.

The very function of `adaptive_softmax` with the same cutoffs, so that PyTorch's implementation is held against the same
definition, and timed next to ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.on_numpy.methods import adaptive_softmax
from vocabench.impls.on_numpy.oracle import OracleLayer
from vocabench.impls.spec import Arrays


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    """That of `adaptive_softmax`, with one tail at least, as PyTorch's has to have."""
    found = adaptive_softmax.structure(counts_V, options, seed)
    vocab = len(counts_V)
    return found if len(found["cutoffs"]) > 1 else {**found, "cutoffs": np.array([(vocab + 1) // 2, vocab])}


DEFINITION = dataclasses.replace(
    adaptive_softmax.DEFINITION,
    name="adaptive_log_softmax",
    paper="PyTorch, torch.nn.AdaptiveLogSoftmaxWithLoss, after Grave et al., arXiv 1609.04309, 2017",
    structure=structure,
    draws=lambda spec: 1,
)


class AdaptiveLogSoftmax(adaptive_softmax.AdaptiveSoftmax):
    # PyTorch's has neither: the whole distribution is made.
    _beam = OracleLayer._beam
    _sample = OracleLayer._sample


LAYER = AdaptiveLogSoftmax
