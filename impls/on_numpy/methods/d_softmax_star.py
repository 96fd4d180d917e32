"""Differentiated softmax with projections: each band of words is scored from a projection of the hidden vector.

This is the D-softmax* with which Grave et al. (2017, table 1) compare, after Chen, Grangier, Auli (2016, arXiv
1512.04906). It equals `d_softmax` except for a projection P_b (E_b, D) instead of a slice. For word w in band b,

    log P(w | h) = (P_b h).W_w + bias_w - log sum over the words v of every band c of exp((P_c h).W_v + bias_v)

Each band depends on all of h through E_b = max(1, floor(D / div_value^b)) dimensions. The forward pass costs
2 sum_b E_b (D + V_b) FLOPs per token, compared with 2 D V for full softmax. It has (N, V) logits, as full softmax does.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.methods import d_softmax
from vocabench.impls.spec import Arrays, LayerSpec, LeastWork, Shapes
from vocabench.impls.structures import bands


def shapes(spec: LayerSpec) -> Shapes:
    weights = d_softmax.weight_shapes(spec, bands.projected_widths)
    widths = [shape[1] for name, shape in weights.items() if name != "bias"]
    return weights | {f"band{band}_projection": (width, spec.dim) for band, width in enumerate(widths)}


def least_work(spec: LayerSpec, targets_N: NDArray[np.int64]) -> LeastWork:
    tokens = len(targets_N)
    weights = [shape for name, shape in spec.parameter_shapes().items() if name.endswith("_weight")]
    multiply_adds = sum(cost.through_projection(tokens, spec.dim, inner, words) for words, inner in weights)
    return cost.least(spec, tokens, multiply_adds=multiply_adds, parameters=cost.all_parameters(spec))


DEFINITION = dataclasses.replace(d_softmax.DEFINITION, name="d_softmax_star", shapes=shapes, least_work=least_work)


class ProjectedDifferentiatedSoftmax(d_softmax.DifferentiatedSoftmax):
    """Softmax with one width per band of words, each band on its projection of the hidden vector."""

    def _inputs(self, hidden_ND: NDArray) -> list[NDArray]:
        return [hidden_ND @ self.params[f"band{band}_projection"].T for band in range(len(self.words))]

    def _inputs_back(self, dinputs: list[NDArray], hidden_ND: NDArray, grads: Arrays) -> NDArray:
        dhidden_ND = 0 * hidden_ND
        for band, dinputs_NE in enumerate(dinputs):
            name = f"band{band}_projection"
            grads[name] = dinputs_NE.T @ hidden_ND
            dhidden_ND += dinputs_NE @ self.params[name]
        return dhidden_ND


LAYER = ProjectedDifferentiatedSoftmax
