"""What differs where PyTorch traces a layer, for `torch.compile` or `torch.export`.

A trace has no values on the host: sizes and branches must not depend on them, and nothing that it computes may be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, TypeVar, overload

import torch

Value = TypeVar("Value")

is_tracing = torch.compiler.is_compiling


class cached(Generic[Value]):
    """`functools.cached_property`, whose value is computed anew in a trace."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> cached[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object, owner: type) -> cached[Value] | Value:
        if instance is None:
            return self
        if is_tracing():
            return self._compute(instance)
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


def outside_inference_mode(compute: Callable[..., Value]) -> Callable[..., Value]:
    """Leave inference mode, except in a trace, to compute tensors that are kept and that training reads too."""
    compute_eagerly = torch.inference_mode(False)(compute)

    @wraps(compute)
    def computed(*arguments: Any, **keyword: Any) -> Value:
        return (compute if is_tracing() else compute_eagerly)(*arguments, **keyword)

    return computed
