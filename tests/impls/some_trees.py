"""Binary trees over words for tests of their layers."""

import numpy as np
from numpy.typing import NDArray

from impls.structures import trees


def random_tree(vocab: int) -> NDArray[np.int64]:
    return trees.random_tree(vocab, np.random.default_rng(vocab))


def chain(vocab: int) -> NDArray[np.int64]:
    """Paths of all lengths up to the number of words."""
    first = np.arange(vocab - 1) + vocab - 1
    first[0] = 0
    return np.stack([np.arange(1, vocab), first], axis=1)
