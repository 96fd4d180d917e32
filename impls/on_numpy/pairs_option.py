"""The option `pairs`, which layers take that read which words follow each other in the training text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.options import Table, read_table
from vocabench.impls.structures import bigrams


def pairs(asks: str) -> Table:
    """The option itself, where the option `asks` asks for it by the value `bigram`."""
    return Table(f"for {asks}={bigrams.NAME}: rows of a word, the word after it, and how often that was seen")


def read_pairs(options: Mapping[str, object], asks: str, vocab: int) -> NDArray[np.int64] | None:
    """(P, 3) its rows; None where they are not asked for.

    Raises:
        BadInput: They are asked for and missing, or given unasked, or cannot be.
    """
    pairs_P3 = read_table("pairs", options["pairs"])
    if (options[asks] == bigrams.NAME) != (pairs_P3 is not None):
        has = "missing" if pairs_P3 is None else "given"
        raise BadInput(f"option pairs is {has} with {asks}={options[asks]!r}: allowed: pairs with 'bigram' alone")
    return None if pairs_P3 is None else bigrams.check_pairs(pairs_P3, vocab)
