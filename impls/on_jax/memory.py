"""Peak memory of compiled functions as planned by XLA.

JAX's own counter belongs to the process: it includes the memory for compiling and autotuning, and cannot be reset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_planned: list[int] | None = None  # bytes of each call while `planned_bytes` runs


def called(function: Any, *arguments: Any, **named: Any) -> Any:
    """Call a function made by `jax.jit`, and record its memory while `planned_bytes` runs."""
    if _planned is not None:
        plan = function.lower(*arguments, **named).compile().memory_analysis()
        _planned.append(plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes)
    return function(*arguments, **named)


def planned_bytes(run: Callable[[], object]) -> int | None:
    """Return the peak memory of the functions that `run` calls with `called`; None if there are none.

    The memory includes results, but not arguments.
    """
    global _planned
    _planned = plans = []
    try:
        run()
    finally:
        _planned = None
    return max(plans, default=None)
