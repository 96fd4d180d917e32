"""The one exception for input that a caller can correct."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Input from outside that cannot be used; its message is one line: what, where, what is allowed."""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> BadInput:
    """A `BadInput` for a name that is not in `allowed`, with the nearest spelling that is."""
    names = list(allowed)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return BadInput(f"unknown {kind} {name!r}: {hint}allowed: {', '.join(names) or '(none)'}")
