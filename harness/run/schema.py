"""The schema of data from outside, put together from small parts and held against the data before anyone reads them.

A schema takes a value and returns what is wrong with it, with the way to the place, or nothing:

    >>> record({"name": text, "sizes": some(whole(1))})({"name": "mine", "sizes": [3, 0]})
    '.sizes[1]=0: allowed: a whole number from 1'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Schema = Callable[[Any], str]

_DEEPEST = 24  # levels of lists and objects: far more than we write, far fewer than Python can follow
LARGEST = 1e150  # below it, numbers count as finite
_LARGEST = 2**63  # of whole numbers: what an array can hold


def text(value: Any) -> str:
    return "" if isinstance(value, str) and _is_encodable(value) else _no(value, "text")


def number(value: Any) -> str:
    """A finite one; sums and squares of a few must be finite too."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    good = good and abs(value) < (LARGEST if isinstance(value, float) else _LARGEST)
    return "" if good else _no(value, "a finite number")


def above_zero(value: Any) -> str:
    return "" if not number(value) and value > 0 else _no(value, "a number above 0")


def boolean(value: Any) -> str:
    return "" if isinstance(value, bool) else _no(value, "true or false")


def whole(low: int, high: int = _LARGEST - 1) -> Schema:
    """A whole number from `low` to `high`."""
    wanted = f"a whole number from {low:,}" + (f" to {high:,}" if high < _LARGEST - 1 else "")

    def schema(value: Any) -> str:
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return "" if good else _no(value, wanted)

    return schema


def one_of(*values: str) -> Schema:
    return lambda value: "" if isinstance(value, str) and value in values else _no(value, ", ".join(values))


def maybe(schema: Schema) -> Schema:
    """That, or null."""
    return lambda value: "" if value is None else schema(value)


def either(*schemas: Schema) -> Schema:
    """What fits one of them; else what is wrong by the last."""
    return lambda value: min((schema(value) for schema in reversed(schemas)), key=bool)


def both(first: Schema, second: Schema) -> Schema:
    return lambda value: first(value) or second(value)


def each(schema: Schema) -> Schema:
    """A list of such, which may be empty."""

    def check(value: Any) -> str:
        if not isinstance(value, list):
            return _no(value, "a list")
        return next((f"[{place}]{wrong}" for place, item in enumerate(value) if (wrong := schema(item))), "")

    return check


def some(schema: Schema) -> Schema:
    """A list of one such or more."""
    return lambda value: each(schema)(value) if value else _no(value, "a list of one or more")


def exactly(*schemas: Schema) -> Schema:
    """A list with one item for each schema."""

    def check(value: Any) -> str:
        if not isinstance(value, list) or len(value) != len(schemas):
            return _no(value, f"a list of {len(schemas)}")
        wrongs = ((place, schema(item)) for place, (schema, item) in enumerate(zip(schemas, value, strict=True)))
        return next((f"[{place}]{wrong}" for place, wrong in wrongs if wrong), "")

    return check


def named(schema: Schema) -> Schema:
    """An object that has such under any names."""

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return _no(value, "an object")
        return next((f".{name[:60]}{wrong}" for name, item in value.items() if (wrong := schema(item))), "")

    return check


def record(needed: Mapping[str, Schema], known: Mapping[str, Schema] | None = None) -> Schema:
    """An object with all the names `needed`, those of `known` that it likes, and any others."""
    schemas = {**needed, **(known or {})}

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return _no(value, "an object")
        if missing := [name for name in needed if name not in value]:
            return f": no {missing[0]}: allowed: an object with {', '.join(needed)}"
        wrongs = ((name, schema(value[name])) for name, schema in schemas.items() if name in value)
        return next((f".{name}{wrong}" for name, wrong in wrongs if wrong), "")

    return check


def plain(value: Any, deepest: int = _DEEPEST) -> str:
    """What JSON can hold and every reader can follow: finite numbers, text that can be written, not nested too deep."""
    if isinstance(value, dict | list):
        if not deepest:
            return f": nested too deep: allowed: {_DEEPEST} levels"
        names = value if isinstance(value, dict) else ()
        if wrong := next((wrong for name in names if (wrong := text(name))), ""):
            return wrong
        return (named if isinstance(value, dict) else each)(lambda item: plain(item, deepest - 1))(value)
    if value is None or isinstance(value, bool):
        return ""
    return text(value) if isinstance(value, str) else number(value)


def _is_encodable(value: str) -> bool:
    """JSON may spell half a character, which nothing can write."""
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


def _no(value: Any, allowed: str) -> str:
    return f"={_short(value)}: allowed: {allowed}"


def _short(value: Any) -> str:
    """For a message: a list or object by its size, all else as it is written, cut where it is long."""
    if isinstance(value, dict | list):
        return f"({'an object' if isinstance(value, dict) else 'a list'} of {len(value)})"
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return "(a number beyond 64 bits)"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
