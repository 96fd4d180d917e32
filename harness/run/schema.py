"""Schemas for data from files, composed of small functions and checked before the data is used.

A schema takes a value and returns what is wrong with it, starting with the path to the wrong element, or "":

    >>> record({"name": text, "sizes": nonempty(whole(1))})({"name": "mine", "sizes": [3, 0]})
    '.sizes[1]=0: allowed: a whole number from 1'
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import msgspec

Schema = Callable[[Any], str]

_MAX_DEPTH = 24  # levels of lists and objects: far more than a row has, far fewer than Python's recursion limit
_DECODED_DEPTH = 8  # of these, in the decoder that checks most rows
LARGEST = 1e150  # floats below it count as finite: sums and squares of a few of them must be finite too
_FLOAT, _TEXT, _FLOAT_OR_NONE = {float}, {str}, {float, type(None)}
_LARGEST_INTEGER = 2**63  # the limit of a NumPy array


def text(value: Any) -> str:
    return "" if isinstance(value, str) and _is_encodable(value) else _wrong(value, "text")


def number(value: Any) -> str:
    """Accept a finite number."""
    if type(value) is float and -LARGEST < value < LARGEST:  # by far the most frequent case
        return ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_finite = is_number and abs(value) < (LARGEST if isinstance(value, float) else _LARGEST_INTEGER)
    return "" if is_finite else _wrong(value, "a finite number")


def plain_numbers(value: Any) -> str:
    """Accept a list of finite numbers, or null where one is missing, in a value that `plain` has accepted."""
    return "" if type(value) is list and set(map(type, value)) <= _FLOAT_OR_NONE else _NUMBERS(value)


def above_zero(value: Any) -> str:
    return "" if not number(value) and value > 0 else _wrong(value, "a number above 0")


def boolean(value: Any) -> str:
    return "" if isinstance(value, bool) else _wrong(value, "true or false")


def whole(low: int, high: int = _LARGEST_INTEGER - 1) -> Schema:
    """Accept an integer from `low` to `high`."""
    allowed = f"a whole number from {low:,}" + (f" to {high:,}" if high < _LARGEST_INTEGER - 1 else "")

    def schema(value: Any) -> str:
        is_allowed = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return "" if is_allowed else _wrong(value, allowed)

    return schema


def one_of(*values: str) -> Schema:
    return lambda value: "" if isinstance(value, str) and value in values else _wrong(value, ", ".join(values))


def optional(schema: Schema) -> Schema:
    """Accept what `schema` accepts, or null."""
    return lambda value: "" if value is None else schema(value)


def any_of(*schemas: Schema) -> Schema:
    """Accept what one of the schemas accepts; otherwise report the error of the last one."""
    return lambda value: min((schema(value) for schema in reversed(schemas)), key=bool)


def all_of(first: Schema, second: Schema) -> Schema:
    return lambda value: first(value) or second(value)


def list_of(schema: Schema) -> Schema:
    """Accept a list, possibly empty, whose items fit `schema`."""

    def check(value: Any) -> str:
        if not isinstance(value, list):
            return _wrong(value, "a list")
        if schema is text and set(map(type, value)) == _TEXT and all(map(str.isascii, value)):
            return ""
        for index, item in enumerate(value):
            if error := schema(item):
                return f"[{index}]{error}"
        return ""

    return check


def nonempty(schema: Schema) -> Schema:
    """Accept a list of one or more items that fit `schema`."""
    return lambda value: list_of(schema)(value) if value else _wrong(value, "a list of one or more")


def tuple_of(*schemas: Schema) -> Schema:
    """Accept a list with one item for each schema."""

    def check(value: Any) -> str:
        if not isinstance(value, list) or len(value) != len(schemas):
            return _wrong(value, f"a list of {len(schemas)}")
        pairs = zip(schemas, value, strict=True)
        errors = ((index, schema(item)) for index, (schema, item) in enumerate(pairs))
        return next((f"[{index}]{error}" for index, error in errors if error), "")

    return check


def map_of(schema: Schema) -> Schema:
    """Accept an object with any names whose values fit `schema`."""

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return _wrong(value, "an object")
        for name, item in value.items():
            if error := schema(item):
                return f".{name[:60]}{error}"
        return ""

    return check


def record(required: Mapping[str, Schema], optional_fields: Mapping[str, Schema] | None = None) -> Schema:
    """Accept an object with all the `required` names, any of the `optional_fields`, and unknown names."""
    schemas = {**required, **(optional_fields or {})}
    names = frozenset(required)

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return _wrong(value, "an object")
        if not names <= value.keys():
            missing = next(name for name in required if name not in value)
            return f": no {missing}: allowed: an object with {', '.join(required)}"
        # Both may be long, so the shorter one is searched.
        if len(schemas) < len(value):
            for name, schema in schemas.items():
                if name in value and (error := schema(value[name])):
                    return f".{name}{error}"
            return ""
        for name, item in value.items():
            if name in schemas and (error := schemas[name](item)):
                return f".{name}{error}"
        return ""

    return check


def plain(value: Any, max_depth: int = _MAX_DEPTH) -> str:
    """Accept JSON that any program can read: finite numbers, encodable text, limited nesting."""
    if max_depth == _MAX_DEPTH and isinstance(value, dict | list) and _is_surely_plain(value):
        return ""
    if isinstance(value, dict | list):
        if not max_depth:
            return f": nested too deep: allowed: {_MAX_DEPTH} levels"
        names = value if isinstance(value, dict) else ()
        if error := next((error for name in names if (error := text(name))), ""):
            return error
        return (map_of if isinstance(value, dict) else list_of)(lambda item: plain(item, max_depth - 1))(value)
    if value is None or isinstance(value, bool):
        return ""
    return text(value) if isinstance(value, str) else number(value)


def plain_decoder() -> msgspec.json.Decoder[Any]:
    """Return a decoder that refuses JSON that `plain` refuses, and JSON of more than a few levels.

    The types of a level hold those of the level below twice, so that there cannot be many.
    """
    whole = Annotated[int, msgspec.Meta(ge=1 - _LARGEST_INTEGER, le=_LARGEST_INTEGER - 1)]
    real = Annotated[float, msgspec.Meta(gt=-LARGEST, lt=LARGEST)]
    scalar = kept = None | bool | str | whole | real
    for _ in range(_DECODED_DEPTH):
        kept = scalar | dict[str, kept] | list[kept]
    return msgspec.json.Decoder(kept)


def _is_surely_plain(value: Any) -> bool:
    """Whether `plain` accepts the value, without recursion. False for a few values that it accepts."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        deeper: list[Any] = []
        for container in level:
            items = container
            if type(container) is dict:
                if not "".join(container).isascii():
                    return False
                items = container.values()
            kinds = set(map(type, items))
            if kinds == _FLOAT:
                if not _are_finite_floats(items):
                    return False
            elif kinds == _TEXT:
                if not _is_encodable("".join(items)):
                    return False
            else:
                for item in items:
                    kind = type(item)
                    if kind is dict or kind is list:
                        deeper.append(item)
                    elif kind is str:
                        if not _is_encodable(item):
                            return False
                    elif kind is float:
                        if not -LARGEST < item < LARGEST:
                            return False
                    elif kind is int:
                        if not -_LARGEST_INTEGER < item < _LARGEST_INTEGER:
                            return False
                    elif item is not None and kind is not bool:
                        return False
        if not deeper:
            return True
        level = deeper
    return False


def _are_finite_floats(values: Collection[Any]) -> bool:
    """Whether all values are floats that `number` accepts. Most of a row is such lists, so this must be fast.

    The sum of the absolute values is at least as large as each of them, and NaN if one of them is.
    """
    return set(map(type, values)) == _FLOAT and sum(map(abs, values)) < LARGEST


def _is_encodable(value: str) -> bool:
    """Whether UTF-8 can encode the text: JSON allows lone surrogates, UTF-8 does not."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _wrong(value: Any, allowed: str) -> str:
    return f"={_short(value)}: allowed: {allowed}"


def _short(value: Any) -> str:
    """Return a short description for a message: lists and objects by their size, other values cut to 60 characters."""
    if isinstance(value, dict | list):
        return f"({'an object' if isinstance(value, dict) else 'a list'} of {len(value)})"
    if isinstance(value, int) and abs(value) >= _LARGEST_INTEGER:
        return "(a number beyond 64 bits)"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


_NUMBERS = list_of(optional(number))
