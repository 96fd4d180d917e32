"""The one exception for input that a caller can correct."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Input from outside that cannot be used; its message is one line: what, where, what is allowed."""


class Unsupported(BadInput):
    """What is right elsewhere and cannot run on this machine: a package, a compiler or a device is missing, or what is
    installed lacks it. Measurements of it are skipped, not failed."""


def unknown(kind: str, name: object, allowed: Iterable[str]) -> BadInput:
    """A `BadInput` for a name that is not in `allowed`, with the nearest spelling that is."""
    names = list(allowed)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return BadInput(f"unknown {kind} {name!r}: {hint}allowed: {', '.join(names) or '(none)'}")
