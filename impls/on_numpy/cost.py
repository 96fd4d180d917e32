"""Least work of a layer: the units in which the formulas of all methods count.

The formula of a method gives the multiply-adds of its forward pass for given targets, and the number of parameter
values that these targets involve. Everything else follows from both. Exponentials and sums do not count, nor does what
an implementation adds to the method, such as logits written to memory, padding, or the zeros of a dense gradient.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.spec import LayerSpec, LeastWork

_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}


def least(spec: LayerSpec, tokens: int, *, multiply_adds: float, parameters: float) -> LeastWork:
    """Return the least work of a forward and a backward pass.

    Args:
        tokens: Number of tokens N.
        multiply_adds: Multiply-adds of the forward pass, of two FLOPs each. The backward pass takes twice as many,
            because a product has a gradient with respect to each of its two factors.
        parameters: Number of parameter values involved. Each of them is read once, and its gradient is written once.
            The same holds for the values of the hidden vectors.
    """
    values = 2 * (parameters + tokens * spec.dim)
    return LeastWork(flops=6.0 * multiply_adds, bytes=float(values * _BYTES[spec.storage]))


def all_parameters(spec: LayerSpec) -> int:
    """Return the number of values in all parameters."""
    return sum(math.prod(shape) for shape in spec.parameter_shapes().values())


def groups_reached(group_M: NDArray[np.int64], member_N: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
    """Return for each group that the members reach how many of them are in it, and its size.

    Groups of one member are left out, since they leave nothing to choose.

    Args:
        group_M: Group of each existing member.
        member_N: Members that are reached, possibly several times.
    """
    groups, tokens_G = np.unique(group_M[member_N], return_counts=True)
    sizes_G = np.bincount(group_M)[groups]
    return tokens_G[sizes_G > 1], sizes_G[sizes_G > 1]


def through_projection(
    tokens: int | NDArray[np.int64], width: int, inner: int, members: int | NDArray[np.int64]
) -> int:
    """Return the multiply-adds of hidden @ projection.T @ weight.T in the cheaper order of the two products.

    The factors have the shapes (tokens, width), (width, inner) and (inner, members). Arrays of `tokens` and `members`
    describe several such products, whose multiply-adds are summed.
    """
    hidden_first = tokens * inner * (width + members)
    weights_first = members * width * (inner + tokens)
    return int(np.minimum(hidden_first, weights_first).sum())
