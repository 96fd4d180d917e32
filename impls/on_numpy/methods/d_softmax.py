"""Differentiated softmax (Chen, Grangier, Auli 2016, arXiv 1512.04906): rare words are scored from fewer dimensions.

Words are sorted by descending count and cut into bands with about equal total counts. The hidden vector is cut into
disjoint slices h_0, h_1, .., the widest of which belongs to the most frequent words. For word w in band b,

    log P(w | h) = h_b.W_w + bias_w - log sum over the words v of every band c of exp(h_c.W_v + bias_v)

`impls/structures/bands.py` has the rules for both cuts. With bands of V_b words and width E_b, the forward pass costs
2 sum_b E_b V_b FLOPs per token, compared with 2 D V for full softmax. It has (N, V) logits, as full softmax does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.oracle import SoftmaxLayer
from vocabench.impls.options import Number
from vocabench.impls.spec import BIAS, Arrays, Definition, LayerSpec, LeastWork, Shapes
from vocabench.impls.structures import bands, clusters
from vocabench.impls.uniform import uniform

OPTIONS = {
    "bands": Number(3, 1, 8, "number of bands of words by frequency, at most the vocabulary size"),
    "div_value": Number(4.0, 1.0, 1e6, "factor by which each band is narrower than the one before it"),
    "bias": BIAS,
}


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    band_V = bands.bands_of_words(counts_V, int(options["bands"]))  # type: ignore[call-overload]
    return {"band": band_V, "slot": clusters.slots(band_V, int(band_V.max()) + 1)}


def weight_shapes(spec: LayerSpec, widths: Callable[[int, int, float], list[int]]) -> Shapes:
    """Return the shapes of the weights of each band and of the bias.

    Args:
        widths: Function that returns the widths of the bands, given `dim`, the number of bands and `div_value`.
    """
    sizes = np.bincount(spec.structure["band"]).tolist()
    band_widths = widths(spec.dim, len(sizes), float(spec.options["div_value"]))  # type: ignore[arg-type]
    shapes_by_band = enumerate(zip(sizes, band_widths, strict=True))
    return {f"band{band}_weight": shape for band, shape in shapes_by_band} | {"bias": (spec.vocab,)}


def shapes(spec: LayerSpec) -> Shapes:
    return weight_shapes(spec, bands.slice_widths)


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    drawn = {n: uniform(rng, 1.0, s) / np.sqrt(s[1]) for n, s in spec.parameter_shapes().items() if n != "bias"}
    return drawn | {"bias": np.zeros(spec.vocab)}


def least_work(spec: LayerSpec, targets_N: NDArray[np.int64]) -> LeastWork:
    tokens, parameters = len(targets_N), cost.all_parameters(spec)
    biases = spec.vocab if spec.has_bias else 0
    return cost.least(spec, tokens, multiply_adds=tokens * (parameters - biases), parameters=parameters)


DEFINITION = Definition(
    name="d_softmax",
    paper="Chen, Grangier, Auli, Strategies for training large vocabulary neural language models, arXiv 1512.04906",
    options=OPTIONS,
    structure=structure,
    shapes=shapes,
    one_softmax=True,
    variants=({"bias": False},),
    biases=("bias",),
    initial=initial,
    least_work=least_work,
)


class DifferentiatedSoftmax(SoftmaxLayer):
    """Softmax with one width per band of words, each band on its slice of the hidden vector."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        band_V = spec.structure["band"]
        self.words = [np.flatnonzero(band_V == band) for band in range(int(band_V.max()) + 1)]
        self.widths = [self.params[f"band{band}_weight"].shape[1] for band in range(len(self.words))]

    def _inputs(self, hidden_ND: NDArray) -> list[NDArray]:
        """Return the inputs (N, E) from which the words of each band are scored."""
        return np.split(hidden_ND, np.cumsum(self.widths)[:-1], axis=1)

    def _inputs_back(self, dinputs: list[NDArray], hidden_ND: NDArray, grads: Arrays) -> NDArray:
        """Compute the gradient with respect to the hidden vectors (N, D) from those of the inputs of the bands.

        Gradients of parameters on the way, if any, are added to `grads`.
        """
        return np.concatenate(dinputs, axis=1)

    def _logits(self, hidden_ND: NDArray) -> NDArray:
        logits_NV, bias_V = np.empty((len(hidden_ND), self.spec.vocab)), self._bias()
        inputs = self._inputs(hidden_ND.astype(np.float64))
        for band, (words, inputs_NE) in enumerate(zip(self.words, inputs, strict=True)):
            logits_NV[:, words] = inputs_NE @ self.params[f"band{band}_weight"].T + bias_V[words]
        return logits_NV

    def _back(self, hidden_ND: NDArray, dlogits_NV: NDArray) -> tuple[NDArray, Arrays]:
        grads = {"bias": dlogits_NV.sum(axis=0)}
        dinputs = []
        for band, (words, inputs_NE) in enumerate(zip(self.words, self._inputs(hidden_ND), strict=True)):
            name = f"band{band}_weight"
            grads[name] = dlogits_NV[:, words].T @ inputs_NE
            dinputs.append(dlogits_NV[:, words] @ self.params[name])
        return self._inputs_back(dinputs, hidden_ND, grads), grads


LAYER = DifferentiatedSoftmax
