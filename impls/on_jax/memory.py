"""Peak memory of compiled functions as XLA has planned it: JAX's own counter is the process's, with what compiling and
tuning took, and cannot be reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_planned: list[int] | None = None  # bytes of each function that is called, where somebody asks


def called(function: Any, *arguments: Any, **named: Any) -> Any:
    """What a function that `jax.jit` has made returns."""
    if _planned is not None:
        plan = function.lower(*arguments, **named).compile().memory_analysis()
        _planned.append(plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes)
    return function(*arguments, **named)


def planned_bytes(run: Callable[[], object]) -> int | None:
    """Most memory of a function that `run` has `called`, results included, above that of its arguments; None where it
    has called none."""
    global _planned
    _planned = found = []
    try:
        run()
    finally:
        _planned = None
    return max(found, default=None)
