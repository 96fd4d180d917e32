"""The option `pairs` of layers that use which words follow each other in the training text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.options import Table, read_table
from vocabench.impls.structures import bigrams


def pairs(asks: str) -> Table:
    """Return the option. It is required if the option named `asks` has the value `bigram`."""
    return Table(f"for {asks}={bigrams.NAME}: rows of a word, the word after it, and the count of the pair")


def read_pairs(options: Mapping[str, object], asks: str, vocab: int) -> NDArray[np.int64] | None:
    """Return the rows (P, 3) of the option, or None if they are not required.

    Raises:
        BadInput: The rows are required but missing, given but not required, or invalid.
    """
    pairs_P3 = read_table("pairs", options["pairs"])
    if (options[asks] == bigrams.NAME) != (pairs_P3 is not None):
        has = "missing" if pairs_P3 is None else "given"
        raise BadInput(f"option pairs is {has} with {asks}={options[asks]!r}: allowed: pairs with 'bigram' alone")
    return None if pairs_P3 is None else bigrams.check_pairs(pairs_P3, vocab)
