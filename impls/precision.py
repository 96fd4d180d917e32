"""Layers and networks compute in the precision of their spec, independently of the rest of the process.

Some frameworks have one switch for the whole process, such as the one for TF32 products. It is set for each call and
restored afterwards, so that layers of different precisions can be called alternately.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from inspect import isfunction
from typing import Any


class Precise:
    """Base class of layers and networks, whose public methods run inside `precision`."""

    def precision(self) -> AbstractContextManager[object]:
        """Return a context without effect, for frameworks whose calls state their precision."""
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
