"""The codes of languages that transcribed speech may have: ISO 639, with the further parts of BCP 47."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ALLOWED = (
    "a code of ISO 639 such as tr or tur, perhaps with a script, a region or variants such as tr-TR, and und for an "
    "unknown language"
)

_CODES = Path(__file__).with_name("iso_639.txt")
# Of three letters, qaa to qtz are for private use.
_FORM = re.compile(
    r"(?P<language>[a-z]{2,3})"
    r"(?:[-_][a-z]{4})?"  # script
    r"(?:[-_](?:[a-z]{2}|[0-9]{3}))?"  # region
    r"(?:[-_](?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*",  # variants
    re.ASCII,
)
_PRIVATE = re.compile("q[a-t][a-z]", re.ASCII)


def is_known(code: str) -> bool:
    """Return whether a code is that of a language. Upper and lower case are the same, and so are hyphens and "_"."""
    match = _FORM.fullmatch(code.lower())
    if match is None:
        return False
    language = match["language"]
    return language in _known() or _PRIVATE.fullmatch(language) is not None


@cache
def _known() -> frozenset[str]:
    lines = _CODES.read_text(encoding="ascii").splitlines()
    return frozenset(code for line in lines if not line.startswith("#") for code in line.split())
