"""Full softmax: each word is scored for each token. It is the baseline for all other layers.

    log P(w | h) = h.W_w + b_w - log sum_v exp(h.W_v + b_v)

The option `bias=False` leaves out b.

The forward pass costs 2 D V FLOPs per token and has (N, V) logits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.oracle import SoftmaxLayer
from vocabench.impls.spec import BIAS, Arrays, Definition, LayerSpec, LeastWork, Shapes
from vocabench.impls.uniform import uniform


def shapes(spec: LayerSpec) -> Shapes:
    return {"weight": (spec.vocab, spec.dim), "bias": (spec.vocab,)}


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    bound = 1 / np.sqrt(spec.dim)
    return {"weight": uniform(rng, bound, (spec.vocab, spec.dim)), "bias": np.zeros(spec.vocab)}


def least_work(spec: LayerSpec, targets_N: NDArray[np.int64]) -> LeastWork:
    tokens, parameters = len(targets_N), cost.all_parameters(spec)
    return cost.least(spec, tokens, multiply_adds=tokens * spec.vocab * spec.dim, parameters=parameters)


DEFINITION = Definition(
    name="full_softmax",
    paper="Bridle, Probabilistic interpretation of feedforward classification network outputs, 1990",
    options={"bias": BIAS},
    structure=lambda counts_V, options, seed: {},
    shapes=shapes,
    needs_counts=False,
    one_softmax=True,
    variants=({"bias": False},),
    biases=("bias",),
    initial=initial,
    least_work=least_work,
)


class FullSoftmax(SoftmaxLayer):
    """Linear layer followed by a softmax over the whole vocabulary."""

    def _logits(self, hidden_ND: NDArray) -> NDArray:
        return hidden_ND.astype(np.float64) @ self.params["weight"].T + self._bias()

    def _back(self, hidden_ND: NDArray, dlogits_NV: NDArray) -> tuple[NDArray, Arrays]:
        grads = {"weight": dlogits_NV.T @ hidden_ND, "bias": dlogits_NV.sum(axis=0)}
        return dlogits_NV @ self.params["weight"], grads


LAYER = FullSoftmax
