"""The places of a padded batch that hold a target, so that the output layer scores little padding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.spec import Arrays, LayerSpec


def pack(targets_BT: NDArray, padding: int, sizes: int = 8) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the places (N,) among B * T that the output layer scores, and the targets (N,) there.

    N is the number of targets, rounded up to a multiple of B * T / `sizes`. With eight sizes at most an eighth of the
    places is scored in vain, and each shape of a batch is compiled for at most eight N. Unused entries are place 0 and
    target `padding`.
    """
    targets_P = targets_BT.ravel()
    (places,) = np.nonzero(targets_P != padding)
    rest = (0, -len(places) % -(-len(targets_P) // sizes))
    targets_N = np.pad(targets_P[places], rest, constant_values=padding)
    return np.pad(places, rest).astype(np.int32), targets_N.astype(np.int32)


def packed_extra(spec: LayerSpec, extra: Arrays, places: int) -> Arrays:
    """Return random inputs of a loss for as many places as `pack` returns; unused entries have word 0.

    Args:
        spec: The output layer.
        extra: The inputs, with a row for each target where each token has its own.
        places: The number N of places.
    """
    inputs = spec.definition.extra
    return {
        name: np.pad(value, ((0, places - len(value)), (0, 0))) if inputs[name].for_each_token(spec.options) else value
        for name, value in extra.items()
    }
