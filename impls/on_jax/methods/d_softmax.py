"""Differentiated softmax in JAX: a product and a log-sum-exp for each band.

See `impls/on_numpy/methods/d_softmax.py` for the definition.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from vocabench.impls.on_jax.device import put
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.ops.arrays import Array, Tree, pick, plus_bias, product
from vocabench.impls.on_jax.ops.topk import best_by_id
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import bands


class DifferentiatedSoftmax(OutputLayer):
    """log P(w | h) = h_b.W_w + bias_w - logsumexp over the words of all bands, for w in band b with the slice h_b of h
    (Chen, Grangier, Auli 2016).

    Parameters: `band{b}_weight` (words of band b, E_b); `bias` (V,), band after band, unless it is left out.

    Structure: `band` and `slot` (V,) of each word; `place` (V,) of each word with the bands one after another; `word`
    (V,) at each place.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.bands = int(spec.structure["band"].max()) + 1

    def placement(self) -> Tree:
        band_V = self.spec.structure["band"]
        arrays = self.spec.structure | {"word": bands.words_by_band(band_V), "place": bands.places(band_V)}
        return {name: put(array, jnp.int32) for name, array in arrays.items()}

    def _of_bands(self, params: Tree, kind: str) -> list[Array]:
        return [params[f"band{band}_{kind}"] for band in range(self.bands)]

    def _inputs(self, params: Tree, hidden_ND: Array) -> list[Array]:
        """Return the part (N, E) of the hidden vectors that scores the words of each band."""
        widths = [weight.shape[1] for weight in self._of_bands(params, "weight")]
        return jnp.split(hidden_ND, np.cumsum(widths)[:-1], axis=1)

    def _band_logits(self, params: Tree, hidden_ND: Array) -> list[Array]:
        """Return the logits (N, words) of each band."""
        weights = self._of_bands(params, "weight")
        logits = [product(*pair) for pair in zip(self._inputs(params, hidden_ND), weights, strict=True)]
        if "bias" not in params:
            return logits
        biases = jnp.split(params["bias"], np.cumsum([len(weight) for weight in weights])[:-1])
        return [plus_bias(*pair) for pair in zip(logits, biases, strict=True)]

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        # The bands' logits are never copied into one array.
        logits = self._band_logits(params, hidden_ND)
        total_NB = jnp.stack([jax.nn.logsumexp(part, axis=1) for part in logits], axis=1)
        slot_N = structure["slot"][targets_N]
        score_NB = jnp.stack([pick(part, jnp.minimum(slot_N, part.shape[1] - 1)) for part in logits], axis=1)
        return jax.nn.logsumexp(total_NB, axis=1) - pick(score_NB, structure["band"][targets_N])

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        return jax.nn.log_softmax(self._by_place(params, hidden_ND), axis=1)[:, structure["place"]]

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        logits_NV = self._by_place(params, hidden_ND)
        best_NK, ids_NK = best_by_id(logits_NV, jnp.broadcast_to(structure["word"], logits_NV.shape), k)
        log_sum_N1 = jax.nn.logsumexp(logits_NV, axis=1, keepdims=True)
        return best_NK - log_sum_N1, ids_NK, jnp.ones(hidden_ND.shape[0], jnp.float32)

    def _logits(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        return self._by_place(params, hidden_ND)[:, structure["place"]]

    def _by_place(self, params: Tree, hidden_ND: Array) -> Array:
        """Return the (N, V) logits, band after band."""
        return jnp.concatenate(self._band_logits(params, hidden_ND), axis=1)

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        return tree | {"bias": tree["bias"][structure["place"]]} if "bias" in tree else dict(tree)

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        return tree | {"bias": tree["bias"][structure["word"]]} if "bias" in tree else dict(tree)


LAYER = DifferentiatedSoftmax
