"""GloVe (Pennington, Socher and Manning 2014): word vectors from a weighted factorization of co-occurrence counts.

    loss = sum over pairs with X_ij > 0 of f(X_ij) (v_i.u_j + b_i + c_j - log X_ij)^2,   f(x) = min(1, (x / most)^0.75)

X counts the words within a window, each weighted by 1 / distance. Adagrad with a rate of 0.05 minimizes half of the
loss, as in the authors' program, in random order. That program updates after each pair, which would be too slow in
NumPy: here, each step takes a batch of pairs and the sum of their gradients for each row.

Cost of a pair in a vector of E = D + 2 elements: 2 E operations for the product, 4 E for both gradients and 10 E for
Adagrad, where a row that occurs several times in a batch is updated once. The arrays of a batch are larger than a
second-level cache, so that the time is that of moving them: sparse matrices sum the gradients without storing them for
each pair, and Adagrad updates a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vocabench.impls.errors import BadInput

_POWER = 0.75
_RATE = 0.05
_BATCH = 4096  # pairs
_ROWS_AT_ONCE = 256  # of an update, whose arrays then stay in a second-level cache


@dataclass(frozen=True)
class Factors:
    """Both sides of a fitted factorization.

    Attributes:
        input_VD: The vectors v.
        output_VD: The vectors u.
        input_bias_V, output_bias_V: The biases b and c.
        losses: Mean loss of a pair in each epoch.
    """

    input_VD: NDArray[np.float32] = field(repr=False)
    output_VD: NDArray[np.float32] = field(repr=False)
    input_bias_V: NDArray[np.float32] = field(repr=False)
    output_bias_V: NDArray[np.float32] = field(repr=False)
    losses: list[float]

    @property
    def curve(self) -> list[dict[str, float]]:
        """The losses as the training curve of a row."""
        return [{"epoch": epoch, "train_loss": loss} for epoch, loss in enumerate(self.losses, start=1)]


@dataclass(frozen=True)
class Pairs:
    """Pairs of words that occur together.

    Attributes:
        row_P, column_P: Indices i and j.
        log_P: log X_ij.
        weight_P: f(X_ij).
    """

    row_P: NDArray[np.integer]
    column_P: NDArray[np.integer]
    log_P: NDArray[np.floating]
    weight_P: NDArray[np.floating]

    @classmethod
    def of(cls, counts: sparse.coo_array, most: float) -> Pairs:
        row_P, column_P = counts.coords
        times_P = np.asarray(counts.data, dtype=np.float64)
        weight_P = np.minimum(1.0, (times_P / most) ** _POWER)
        return cls(row_P, column_P, np.log(times_P).astype(np.float32), weight_P.astype(np.float32))

    def __len__(self) -> int:
        return len(self.log_P)

    def take(self, places_N: NDArray[np.integer]) -> Pairs:
        return Pairs(
            self.row_P.take(places_N),
            self.column_P.take(places_N),
            self.log_P.take(places_N),
            self.weight_P.take(places_N),
        )


@dataclass(frozen=True)
class RowGradient:
    """The gradient of half the loss with respect to those rows of a side that a batch reads.

    Attributes:
        row_R: Indices of the rows, each once.
        before_RE: The rows themselves.
        grad_RE: Their gradients.
    """

    row_R: NDArray[np.integer]
    before_RE: NDArray[np.floating]
    grad_RE: NDArray[np.floating]


def cooccurrences(ids_T: NDArray[np.integer], vocab: int, window: int) -> sparse.coo_array:
    """Count how often words are within `window` of each other, (V, V), weighted by 1/distance, in both directions."""
    ids_T = ids_T.astype(np.int32)
    one_way = sparse.csr_array((vocab, vocab), dtype=np.float64)
    for distance in range(1, min(window, len(ids_T) - 1) + 1):
        weight = np.full(len(ids_T) - distance, 1.0 / distance)
        places = ids_T[:-distance], ids_T[distance:]
        one_way = one_way + sparse.coo_array((weight, places), shape=(vocab, vocab)).tocsr()
    return (one_way + one_way.T).tocoo()


def fit(
    counts: sparse.coo_array,
    vocab: int,
    dim: int,
    *,
    epochs: int,
    most: float,
    seed: int,
    progress: Callable[[str], None],
) -> Factors:
    """Factorize counts of co-occurrence.

    Args:
        counts: X, (V, V), without zeros among the stored values.
        vocab: V.
        dim: D.
        epochs: Passes over the pairs.
        most: x_max, from which on pairs have full weight.
        seed: Seed of the initial vectors and of the order of the pairs.
        progress: Called with a line after each epoch.

    Raises:
        BadInput: No two words occur together.
    """
    if not counts.nnz:
        raise BadInput("GloVe has no pairs of words: allowed: a text of two words or more")
    rng = np.random.default_rng([seed, 9])
    pairs = Pairs.of(counts, most)
    sides = _initial_sides(vocab, dim, rng)
    input_side, output_side = (_Side(values_VE, fixed) for values_VE, fixed in zip(sides, (-1, -2), strict=True))
    losses: list[float] = []
    for epoch in range(epochs):
        total = 0.0
        order_P = rng.permutation(len(pairs))
        for start in range(0, len(order_P), _BATCH):
            batch = pairs.take(order_P[start : start + _BATCH])
            loss, of_input, of_output = gradients(input_side.values_VE, output_side.values_VE, batch)
            input_side.update(of_input)
            output_side.update(of_output)
            total += loss
        losses.append(total / len(pairs))
        progress(f"glove epoch {epoch + 1}/{epochs} loss {losses[-1]:.4f}")
    input_VE, output_VE = input_side.values_VE, output_side.values_VE
    return Factors(input_VE[:, :dim], output_VE[:, :dim], input_VE[:, -2], output_VE[:, -1], losses)


def gradients(
    input_VE: NDArray[np.floating], output_VE: NDArray[np.floating], pairs: Pairs
) -> tuple[float, RowGradient, RowGradient]:
    """Return the loss of a batch, and the gradient of half of it with respect to the rows (v, b, 1) and (u, 1, c).

    The product of two such rows is the estimate of log X. The gradient with respect to the ones is not meaningful.
    """
    row_R, row_N = np.unique(pairs.row_P, return_inverse=True)
    column_R, column_N = np.unique(pairs.column_P, return_inverse=True)
    rows_RE, columns_RE = input_VE.take(row_R, axis=0), output_VE.take(column_R, axis=0)
    estimate_N = np.einsum("ne,ne->n", rows_RE.take(row_N, axis=0), columns_RE.take(column_N, axis=0))
    error_N = estimate_N - pairs.log_P
    slope_N = pairs.weight_P * error_N
    slope = sparse.coo_array((slope_N, (row_N, column_N)), shape=(len(row_R), len(column_R))).tocsr()
    loss = float(slope_N @ error_N)
    return loss, RowGradient(row_R, rows_RE, slope @ columns_RE), RowGradient(column_R, columns_RE, slope.T @ rows_RE)


class _Side:
    """The parameters of one side, with what Adagrad keeps of them.

    Attributes:
        values_VE: Vector, bias, and a one that is not updated.
    """

    def __init__(self, values_VE: NDArray[np.float32], fixed: int) -> None:
        self.values_VE = values_VE
        self._squares_VE = np.ones_like(values_VE)
        self._fixed = fixed  # column of the ones

    def update(self, gradient: RowGradient) -> None:
        gradient.grad_RE[:, self._fixed] = 0.0
        for start in range(0, len(gradient.row_R), _ROWS_AT_ONCE):
            piece = slice(start, start + _ROWS_AT_ONCE)
            rows, grad_RE = gradient.row_R[piece], gradient.grad_RE[piece]
            squares_RE = self._squares_VE.take(rows, axis=0)
            change_RE = np.sqrt(squares_RE)
            np.divide(grad_RE, change_RE, out=change_RE)
            change_RE *= _RATE
            self.values_VE[rows] = gradient.before_RE[piece] - change_RE
            np.square(grad_RE, out=grad_RE)
            squares_RE += grad_RE
            self._squares_VE[rows] = squares_RE


def _initial_sides(vocab: int, dim: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the rows (v, b, 1) and (u, 1, c), uniform between -1/(2 D) and 1/(2 D)."""
    input_VE, output_VE = (((rng.random((vocab, dim + 1)) - 0.5) / dim).astype(np.float32) for _ in range(2))
    one_V1 = np.ones((vocab, 1), dtype=np.float32)
    return np.hstack([input_VE, one_V1]), np.hstack([output_VE[:, :dim], one_V1, output_VE[:, dim:]])
