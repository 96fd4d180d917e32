"""Adaptive softmax as PyTorch's own `AdaptiveLogSoftmaxWithLoss` computes it, a peer of `adaptive_softmax`.

It is the same function as `adaptive_softmax` with the same cutoffs. PyTorch's implementation is therefore checked
against the same definition and timed next to ours.
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
    """Return the structure of `adaptive_softmax`, with at least one tail because PyTorch requires one."""
    arrays = adaptive_softmax.structure(counts_V, options, seed)
    vocab = len(counts_V)
    return arrays if len(arrays["cutoffs"]) > 1 else {**arrays, "cutoffs": np.array([(vocab + 1) // 2, vocab])}


DEFINITION = dataclasses.replace(
    adaptive_softmax.DEFINITION,
    name="adaptive_log_softmax",
    paper="PyTorch, torch.nn.AdaptiveLogSoftmaxWithLoss, after Grave et al., arXiv 1609.04309, 2017",
    structure=structure,
    draws=lambda spec: 1,
)


class AdaptiveLogSoftmax(adaptive_softmax.AdaptiveSoftmax):
    """Adaptive softmax whose search and sampling use the whole distribution."""

    # PyTorch's module offers neither search nor sampling by parts, so both use the whole distribution.
    _beam = OracleLayer._beam
    _draw = OracleLayer._draw


LAYER = AdaptiveLogSoftmax
