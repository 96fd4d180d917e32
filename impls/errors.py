"""The exceptions for input that a caller can correct."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Invalid input. The message is one line: what, where, what is allowed.

    Attributes:
        ag_pass_through: Tells TensorFlow's AutoGraph to raise the exception as it is. It would otherwise raise another
            one, whose message is a traceback.
    """

    ag_pass_through = True


class Unsupported(BadInput):
    """Valid input that this machine does not support: a package, a compiler or a device is missing or too old.

    Measurements of it are skipped and do not count as failed.
    """


class UnknownKeyword(TypeError):
    """A keyword that a call does not take. The message is one line, which AutoGraph keeps as that of `BadInput`."""

    ag_pass_through = True


def unknown(kind: str, name: object, allowed: Iterable[str]) -> BadInput:
    """Return a `BadInput` for a name that is not in `allowed`, with a suggestion of the nearest spelling."""
    names = list(allowed)
    by_lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[near[0]]!r}? " if near else ""
    return BadInput(f"unknown {kind} {name!r}: {hint}allowed: {', '.join(names) or '(none)'}")
