"""GloVe (Pennington, Socher and Manning 2014): word vectors from a weighted factorization of co-occurrence counts.

    loss = sum over pairs with X_ij > 0 of f(X_ij) (v_i.u_j + b_i + c_j - log X_ij)^2,   f(x) = min(1, (x / most)^0.75)

This is a reference objective without an output layer. Adagrad on single pairs, as in the paper, would be too slow in
NumPy: here each step takes a batch of pairs and sums the gradients of each row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

_POWER = 0.75
_RATE = 0.05
_BATCH = 4096  # pairs


def cooccurrences(ids_T: NDArray[np.integer], vocab: int, window: int) -> sparse.coo_array:
    """Count how often words are within `window` of each other, (V, V), weighted by 1/distance, in both directions."""
    total = sparse.csr_array((vocab, vocab), dtype=np.float64)
    for distance in range(1, window + 1):
        first, second = ids_T[:-distance].astype(np.int64), ids_T[distance:].astype(np.int64)
        weight = np.full(len(first), 1.0 / distance)
        one_way = sparse.coo_array((weight, (first, second)), shape=(vocab, vocab)).tocsr()
        total = total + one_way + one_way.T
    return total.tocoo()


def factorise(
    counts: sparse.coo_array,
    vocab: int,
    dim: int,
    *,
    epochs: int,
    most: float,
    seed: int,
    progress: Callable[[str], None],
) -> tuple[NDArray[np.float64], list[float]]:
    """Return (V, D) vectors, the sum of both sides as in the paper, and the mean loss of each epoch."""
    rng = np.random.default_rng([seed, 9])
    row_P, column_P = (np.asarray(axis, dtype=np.int64) for axis in counts.coords)
    times_P = np.asarray(counts.data, dtype=np.float64)
    log_P, weight_P = np.log(times_P), np.minimum(1.0, (times_P / most) ** _POWER)
    sides = [(rng.random((vocab, dim + 1)) - 0.5) / dim for _ in range(2)]  # the last column is the bias
    squares = [np.ones_like(side) for side in sides]
    losses = []
    for epoch in range(epochs):
        total = 0.0
        order_P = rng.permutation(len(log_P))
        for start in range(0, len(order_P), _BATCH):
            pairs = order_P[start : start + _BATCH]
            places = row_P[pairs], column_P[pairs]
            here = [side[place] for side, place in zip(sides, places, strict=True)]
            dot = (here[0][:, :-1] * here[1][:, :-1]).sum(axis=1)
            error = dot + here[0][:, -1] + here[1][:, -1] - log_P[pairs]
            total += float((weight_P[pairs] * error**2).sum())
            slope_1 = (weight_P[pairs] * error)[:, None]
            for mine, other in ((0, 1), (1, 0)):
                grad = slope_1 * np.concatenate([here[other][:, :-1], np.ones((len(pairs), 1))], axis=1)
                _adagrad(sides[mine], squares[mine], places[mine], grad)
        losses.append(total / len(log_P))
        progress(f"glove epoch {epoch + 1}/{epochs} loss {losses[-1]:.4f}")
    return sides[0][:, :-1] + sides[1][:, :-1], losses


def _adagrad(param: NDArray, squares: NDArray, places: NDArray[np.int64], grad: NDArray) -> None:
    rows, segment = np.unique(places, return_inverse=True)
    gather = sparse.csr_array((np.ones(len(places)), (segment, np.arange(len(places)))), shape=(len(rows), len(places)))
    grad = gather @ grad
    param[rows] -= _RATE * grad / np.sqrt(squares[rows])
    squares[rows] += grad**2
