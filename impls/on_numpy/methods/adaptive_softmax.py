"""Adaptive softmax (Grave, Joulin, Cisse, Grangier, Jegou 2017, arXiv 1609.04309).

Words are sorted by descending count and cut into a head and several tails. The head scores its words, plus one entry
for each tail, from all of h. Tail i scores its words from a projection of h to D / div_value^(i + 1) dimensions:

    log P(w | h) = log softmax(H h)[w]                                          for a word of the head
    log P(w | h) = log softmax(H h)[tail i] + log softmax(W_i P_i h)[w]         for a word of tail i

There are no biases. The function and its parameters are those of `torch.nn.AdaptiveLogSoftmaxWithLoss`.

The forward pass costs 2 D (head + tails) FLOPs per token, plus 2 D / div_value^(i + 1) (D + words of tail i) for each
token whose target lies in tail i. `impls/structures/cutoffs.py` chooses the cutoffs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.oracle import OracleLayer, best, draw, log_softmax, mean_nll
from vocabench.impls.options import Number, Rising
from vocabench.impls.spec import Arrays, Definition, LayerSpec, LeastWork, Shapes
from vocabench.impls.structures import cutoffs
from vocabench.impls.uniform import uniform

OPTIONS = {
    "cutoffs": Rising("ends of the head and of each tail but the last, in words by descending count; empty: cheapest"),
    "div_value": Number(4.0, 1.0, 1e6, "factor by which the width shrinks from the head to the first tail, and so on"),
}


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    order_V = np.argsort(-counts_V, kind="stable")
    div_value: float = options["div_value"]  # type: ignore[assignment]
    given: tuple[int, ...] = options["cutoffs"]  # type: ignore[assignment]
    vocab = len(counts_V)
    ends = cutoffs.check(given, vocab) if given else cutoffs.choose(counts_V[order_V], div_value)
    return {"order": order_V, "cutoffs": np.array([*ends, vocab])}


def shapes(spec: LayerSpec) -> Shapes:
    ends = spec.structure["cutoffs"].tolist()
    div_value: float = spec.options["div_value"]  # type: ignore[assignment]
    parameter_shapes: Shapes = {"head_weight": (ends[0] + len(ends) - 1, spec.dim)}
    for tail, (start, end) in enumerate(pairwise(ends)):
        width = max(1, int(spec.dim // div_value ** (tail + 1)))
        parameter_shapes |= {f"tail{tail}_projection": (width, spec.dim), f"tail{tail}_weight": (end - start, width)}
    return parameter_shapes


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    parameter_shapes = spec.parameter_shapes().items()
    return {name: uniform(rng, 1.0, shape) / np.sqrt(shape[1]) for name, shape in parameter_shapes}


def least_work(spec: LayerSpec, targets_N: NDArray[np.int64]) -> LeastWork:
    """Count the head for all tokens, and each tail only for the tokens whose target lies in it."""
    tokens, parameter_shapes = len(targets_N), spec.parameter_shapes()
    parameters = math.prod(parameter_shapes["head_weight"])
    multiply_adds = tokens * parameters
    rank_N = np.argsort(spec.structure["order"])[targets_N]
    for tail, (start, end) in enumerate(pairwise(spec.structure["cutoffs"].tolist())):
        inside = int(np.count_nonzero((start <= rank_N) & (rank_N < end)))
        if inside:
            words, inner = parameter_shapes[f"tail{tail}_weight"]
            multiply_adds += cost.through_projection(inside, spec.dim, inner, words)
            parameters += inner * (spec.dim + words)
    return cost.least(spec, tokens, multiply_adds=multiply_adds, parameters=parameters)


DEFINITION = Definition(
    name="adaptive_softmax",
    paper="Grave, Joulin, Cisse, Grangier, Jegou, Efficient softmax approximation for GPUs, arXiv 1609.04309, 2017",
    options=OPTIONS,
    structure=structure,
    shapes=shapes,
    initial=initial,
    draws=lambda spec: 2,
    least_work=least_work,
)


class AdaptiveSoftmax(OracleLayer):
    """Adaptive softmax with a full-width head and projected tails."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.order_V = spec.structure["order"]
        ends = spec.structure["cutoffs"]
        self.head = int(ends[0])
        # The words of each tail, as a range of ranks by descending count.
        self.tails = [slice(int(start), int(end)) for start, end in pairwise(ends)]
        self.rank_V = np.argsort(self.order_V)
        self.tail_V = np.searchsorted(ends, self.rank_V, side="right") - 1  # -1 in the head

    def head_log_probs(self, hidden_ND: NDArray) -> NDArray:
        """Return log P (N, head + tails) of each word of the head, by descending count, and of each tail."""
        return log_softmax(hidden_ND.astype(np.float64) @ self.params["head_weight"].T)

    def _tail_log_probs(self, hidden_ND: NDArray, tail: int) -> NDArray:
        """Return log P(w | tail, h) (N, S)."""
        projected = hidden_ND.astype(np.float64) @ self.params[f"tail{tail}_projection"].T
        return log_softmax(projected @ self.params[f"tail{tail}_weight"].T)

    def _plain_log_probs(self, hidden_ND: NDArray) -> NDArray:
        head = self.head_log_probs(hidden_ND)
        parts = [head[:, : self.head]]
        for tail in range(len(self.tails)):
            parts.append(head[:, self.head + tail, None] + self._tail_log_probs(hidden_ND, tail))
        return np.concatenate(parts, axis=1)[:, self.rank_V]

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        # Keep the head's words and those of the most probable tails.
        tails = len(self.tails)
        _, chosen_NW = best(self.head_log_probs(hidden_ND)[:, self.head :], min(width, tails))
        followed_NT = np.zeros((len(hidden_ND), tails + 1), dtype=bool)
        followed_NT[:, -1] = True  # the head, which is tail -1
        np.put_along_axis(followed_NT, chosen_NW, True, axis=1)
        return best(np.where(followed_NT[:, self.tail_V], self._log_probs(hidden_ND), -np.inf), k)

    def _draw(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        probabilities_NV = np.exp(self._log_probs(hidden_ND))
        tail_mass_NT = np.exp(self.head_log_probs(hidden_ND)[:, self.head :])
        # First draw a word of the head, in order of ids, or a tail; then draw one of the tail's words.
        head_words = np.flatnonzero(self.tail_V < 0)
        first_N = draw(np.concatenate([probabilities_NV[:, head_words], tail_mass_NT], axis=1), uniforms_NU[:, 0])
        inside_NV = self.tail_V == (first_N - self.head)[:, None]
        in_head_N = first_N < self.head
        inside_NV[in_head_N] = True  # whatever is drawn there is not used
        second_N = draw(np.where(inside_NV, probabilities_NV, 0.0), uniforms_NU[:, 1])
        return np.where(in_head_N, head_words[np.minimum(first_N, self.head - 1)], second_N)

    def _plain_loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        hidden_ND = hidden_ND.astype(np.float64)
        tokens = len(targets_N)
        grads = {name: np.zeros_like(value) for name, value in self.params.items()}
        rank_N, tail_N = self.rank_V[targets_N], self.tail_V[targets_N]

        # The head: the word itself, or the entry of its tail.
        entry_N = np.where(tail_N < 0, rank_N, self.head + tail_N)
        loss, dscores = mean_nll(self.head_log_probs(hidden_ND), entry_N)
        grads["head_weight"] = dscores.T @ hidden_ND
        dhidden_ND = dscores @ self.params["head_weight"]

        # The word: a softmax over the words of its tail, for the tokens of that tail only.
        for tail, words in enumerate(self.tails):
            rows = np.flatnonzero(tail_N == tail)
            projection, weight = self.params[f"tail{tail}_projection"], self.params[f"tail{tail}_weight"]
            projected = hidden_ND[rows] @ projection.T
            log_probs = log_softmax(projected @ weight.T)
            place = (np.arange(len(rows)), rank_N[rows] - words.start)
            loss -= float(log_probs[place].sum()) / tokens
            dscores = np.exp(log_probs)
            dscores[place] -= 1
            dscores /= tokens
            grads[f"tail{tail}_weight"] = dscores.T @ projected
            dprojected = dscores @ weight
            grads[f"tail{tail}_projection"] = dprojected.T @ hidden_ND[rows]
            dhidden_ND[rows] += dprojected @ projection
        return loss, dhidden_ND, grads


LAYER = AdaptiveSoftmax
