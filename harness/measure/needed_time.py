"""The time that a step of full softmax needs at least, so that cells which would take hours are skipped at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.measure.roofline import Ceilings
from vocabench.impls.errors import Unsupported
from vocabench.impls.spec import LayerSpec


def check_quick(plain: LayerSpec, targets_N: NDArray[np.int64], rates: Ceilings, longest: float) -> None:
    """Refuse a cell whose baseline is too slow on this machine.

    Args:
        plain: Full softmax of the size of the cell.
        targets_N: Targets of the batch.
        rates: What the framework reaches on this machine, in the precision of the cell.
        longest: The most seconds that a forward and backward pass may need at these rates.

    Raises:
        Unsupported: It needs more.
    """
    formula = plain.definition.least_work
    assert formula is not None, f"{plain.method} has a formula of its work"
    seconds = rates.seconds(formula(plain, targets_N))
    if seconds > longest:
        raise Unsupported(
            f"a step of {plain.method} with vocab={plain.vocab}, dim={plain.dim} in {plain.dtype} needs at least "
            f"{seconds:.3g} s at the {max(rates.flops_per_second) / 1e9:.3g} GFLOP/s of this machine: allowed: "
            f"{longest:g} s, set by longest_step"
        )


# Rates of the same products differ by up to a fifth between two moments.
_FASTER = 1.25


def check_precision(precision: str, rates: Ceilings, float32: Ceilings) -> None:
    """Refuse a precision in which products are no faster than in float32, so that it has no use on this machine.

    Args:
        precision: The name of the precision.
        rates: What the framework reaches on this machine, in this precision.
        float32: The same in float32.

    Raises:
        Unsupported: Its products are no faster.
    """
    own, other = (max(each.flops_per_second) / 1e9 for each in (rates, float32))
    if own < _FASTER * other:
        raise Unsupported(
            f"{precision} is no faster than float32 on this machine: its products run at {own:.3g} GFLOP/s, those in "
            f"float32 at {other:.3g}: allowed: slow_precision=measure"
        )
