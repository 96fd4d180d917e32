"""The least work of a layer: what the formulas of all methods count in.

A method's formula says how many multiply-adds its forward pass takes for given targets, and how many numbers of its
parameters these reach. All else follows. Exponentials, sums and what an implementation adds, such as logits written to
memory, padding or the zeros of a dense gradient, do not count: they are not the method's.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.spec import LayerSpec, LeastWork

_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}


def least(spec: LayerSpec, tokens: int, *, multiply_adds: float, parameters: float) -> LeastWork:
    """Of forward and backward.

    Args:
        tokens: N.
        multiply_adds: Of the forward pass, two FLOPs each. The backward pass takes twice as many: a product has a
            gradient by either of its factors.
        parameters: Numbers that are read, and have a gradient that is written, once each, as every hidden vector is.
    """
    numbers = 2 * (parameters + tokens * spec.dim)
    return LeastWork(flops=6.0 * multiply_adds, bytes=float(numbers * _BYTES[spec.storage]))


def all_parameters(spec: LayerSpec) -> int:
    return sum(math.prod(shape) for shape in spec.parameter_shapes().values())


def groups_reached(group_M: NDArray[np.int64], member_N: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
    """Of each group that one of the members (N,) is in: how many of these are, and how many there are in all. Groups of
    one are left out: there is nothing to choose in them."""
    groups, tokens_G = np.unique(group_M[member_N], return_counts=True)
    sizes_G = np.bincount(group_M)[groups]
    return tokens_G[sizes_G > 1], sizes_G[sizes_G > 1]


def through_projection(
    tokens: int | NDArray[np.int64], width: int, inner: int, members: int | NDArray[np.int64]
) -> int:
    """Multiply-adds of hidden @ projection.T @ weight.T, (tokens, width) by (width, inner) by (inner, members), in the
    cheaper order; of several such products their sum."""
    hidden_first = tokens * inner * (width + members)
    weights_first = members * width * (inner + tokens)
    return int(np.minimum(hidden_first, weights_first).sum())
