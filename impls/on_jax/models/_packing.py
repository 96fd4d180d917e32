"""The places of a padded batch that hold a target, for the output layer to score those and little padding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pack(targets_BT: NDArray, padding: int, sizes: int = 8) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """What the output layer scores, so that it scores little padding: places among the B * T, and the targets there.

    Their number N is that of the targets, rounded up to a multiple of B * T / `sizes`: of eight sizes at most an eighth
    is scored for nothing, and a shape of a batch is compiled for no more than eight N. The rest is place 0 and target
    `padding`.
    """
    targets_P = targets_BT.ravel()
    (places,) = np.nonzero(targets_P != padding)
    rest = (0, -len(places) % -(-len(targets_P) // sizes))
    targets_N = np.pad(targets_P[places], rest, constant_values=padding)
    return np.pad(places, rest).astype(np.int32), targets_N.astype(np.int32)
