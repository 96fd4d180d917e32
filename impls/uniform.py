"""Uniform random numbers for the initial parameters of large vocabularies, drawn by all usable CPUs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vocabench.impls import cpus

_AT_ONCE = 2**16  # elements, which stay in a processor's cache while they are scaled


def uniform(rng: np.random.Generator, bound: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the values of `rng.uniform(-bound, bound, shape)`, and leave `rng` in the same state.

    Each value takes one step of the generator, so each thread skips to the start of its share.

    Args:
        rng: A generator from `np.random.default_rng`.
        bound: The values are drawn from [-bound, bound).
    """
    drawn = np.empty(shape)
    flat_X = drawn.reshape(-1)
    state = rng.bit_generator.state

    def fill(first: int, end: int) -> None:
        own = np.random.PCG64()
        own.state = state
        generator = np.random.Generator(own.advance(first))
        for start in range(first, end, _AT_ONCE):
            piece_X = flat_X[start : min(start + _AT_ONCE, end)]
            generator.random(out=piece_X)
            piece_X *= 2 * bound
            piece_X -= bound

    threads = max(1, min(cpus.usable(), flat_X.size // _AT_ONCE))
    shares = pairwise(round(flat_X.size * share / threads) for share in range(threads + 1))
    if threads == 1:
        fill(0, flat_X.size)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda share: fill(*share), shares))
    rng.bit_generator.advance(flat_X.size)  # type: ignore[attr-defined]
    return drawn
