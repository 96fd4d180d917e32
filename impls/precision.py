"""A layer or network computes in the precision of its spec, whatever else its process computes in.

Some frameworks have one switch for a whole process, such as that for TF32 products. It is set for each call, so that
layers of different precisions can be called by turns, and is then what it was before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from inspect import isfunction
from typing import Any


class Precise:
    """Base of layers and networks: each public method runs inside `precision`."""

    def precision(self) -> AbstractContextManager[object]:
        """Nothing, where a framework's calls say their precision themselves."""
        return nullcontext()

    def __init_subclass__(cls, **keyword: Any) -> None:
        super().__init_subclass__(**keyword)
        for name, value in list(vars(cls).items()):
            if isfunction(value) and not name.startswith("_") and name != "precision":
                setattr(cls, name, _inside(value))


def _inside(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Precise, *arguments: Any, **named: Any) -> Any:
        with self.precision():
            return method(self, *arguments, **named)

    return call
