"""What a layer over a text gets besides the options of its cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_words(options: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A method that reads the spelling of words gets the corpus's, unless the cell has some. They are no option of the
    cell: its text is part of it already."""
    spelled = {"words": words} if "words" in options and options["words"] is None else {}
    return {**options, **spelled}
