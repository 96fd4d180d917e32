"""The exceptions for input that a caller can correct."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Invalid input. The message is one line: what, where, what is allowed."""


class Unsupported(BadInput):
    """Valid input that this machine does not support: a package, a compiler or a device is missing or too old.

    Measurements of it are skipped and do not count as failed.
    """


def unknown(kind: str, name: object, allowed: Iterable[str]) -> BadInput:
    """Return a `BadInput` for a name that is not in `allowed`, with a suggestion of the nearest spelling."""
    names = list(allowed)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return BadInput(f"unknown {kind} {name!r}: {hint}allowed: {', '.join(names) or '(none)'}")
