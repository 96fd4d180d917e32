"""CNN softmax in JAX. See `impls/on_numpy/methods/cnn_softmax.py` for the definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vocabench.impls.on_jax.device import put
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.ops.arrays import Array, Tree, log_softmax, pick, product, wide
from vocabench.impls.on_jax.ops.topk import best_of_logits
from vocabench.impls.on_numpy.methods.cnn_softmax import WIDTHS, before
from vocabench.impls.structures.windows import WIDEST, blocks, windows

_FLAT = 2**31 - 1  # longest array that 32-bit indices can address


class CnnSoftmax(OutputLayer):
    """log P(w | h) = log softmax(h (f P^T / sqrt 4F + r M^T / sqrt R)^T + b)[w], where f (V, 4 F) are the pooled
    filters over the characters of each word.

    Parameters: `char_embedding` (A, E); `conv{k}_weight` (F, k, E) and `conv{k}_bias` (F,) for k = 1..4;
    `char_projection` (D, 4 F); with a correction `correction_weight` (V, R) and `correction_projection` (D, R);
    `bias` (V,) unless it is left out. Structure: `windows` (U, 4) and the fields of `Blocks`.

    Each call computes the scores (U, X) of the U different windows that occur in words. The features (V, X) are the
    highest scores of each word. If X + R is less than D, the hidden vectors are projected to the features; otherwise
    the features are projected to word vectors (V, D). These arrays, the gradient of the scores and (V, X) ids are kept
    for the backward pass.
    """

    def placement(self) -> Tree:
        windows_UK, ids_VT = windows(self.spec.structure["characters"])
        arrays = {"windows": windows_UK, **blocks(ids_VT)._asdict()}
        return {name: put(array) for name, array in arrays.items()}

    def _features(self, params: Tree, structure: Tree) -> Array:
        """Return the (V, X) features of words."""
        bias_X = jnp.concatenate([params[f"conv{k}_bias"] for k in WIDTHS])
        # A bias is the same at every place, so it is added after the maximum.
        return jax.nn.relu(_highest(_scores(params, structure["windows"]), structure) + bias_X)

    def _logits(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        dtype = params["char_projection"].dtype
        features_VY, projection_DY = self._features(params, structure).astype(dtype), _scaled(params["char_projection"])
        if "correction_weight" in params:
            features_VY = jnp.concatenate([features_VY, params["correction_weight"]], axis=1)
            projection_DY = jnp.concatenate([projection_DY, _scaled(params["correction_projection"])], axis=1)
        projection_DY = projection_DY.astype(dtype)
        # The product with the vocabulary has the smaller of both widths.
        if features_VY.shape[1] < self.spec.dim:
            logits_NV = product(product(hidden_ND, projection_DY.T), features_VY)
        else:
            logits_NV = product(hidden_ND, product(features_VY, projection_DY).astype(dtype))
        return self._plus_bias(logits_NV, params)

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        logits_NV = self._logits(params, structure, hidden_ND)
        return jax.nn.logsumexp(logits_NV, axis=1) - pick(logits_NV, targets_N)

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        return log_softmax(self._logits(params, structure, hidden_ND))

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        return *best_of_logits(self._logits(params, structure, hidden_ND), k), jnp.ones(hidden_ND.shape[0], jnp.float32)


def _scaled(weight: Array) -> Array:
    """Return a matrix divided by the square root of the number of terms of its products, in at least float32."""
    return weight.astype(wide(weight.dtype)) / weight[0].size ** 0.5


def _scores(params: Tree, windows_UK: Array) -> Array:
    """Return the (U, X) scores of each window and filter.

    The product is summed in at least float32, and so are gradients. All widths are one product, for which narrower
    filters are padded with zeros.
    """
    around = {k: ((0, 0), (before(k), WIDEST - k - before(k)), (0, 0)) for k in WIDTHS}
    weight_XKE = jnp.concatenate([jnp.pad(_scaled(params[f"conv{k}_weight"]), around[k]) for k in WIDTHS])
    dtype = params["char_embedding"].dtype
    embedding_AE = jnp.pad(params["char_embedding"].astype(wide(dtype)), ((1, 0), (0, 0)))  # row 0 is padding
    windows_UY = embedding_AE[windows_UK].reshape(windows_UK.shape[0], -1)
    return product(windows_UY, weight_XKE.reshape(len(weight_XKE), -1).astype(dtype))


def _highest(scores_UX: Array, structure: Tree) -> Array:
    """Return the (V, X) highest scores of each word. The gradient goes to the first of equal ones."""
    filters = scores_UX.shape[1]
    fixed_UX = jax.lax.stop_gradient(scores_UX)

    def winners(block: tuple[Array, Array]) -> Array:
        ids_TW, places = block

        def later(place: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
            highest_WX, winner_WX = best
            score_WX = fixed_UX[ids_TW[place]]
            winner_WX = jnp.where(score_WX > highest_WX, ids_TW[place, :, None], winner_WX)
            return jnp.maximum(highest_WX, score_WX), winner_WX

        first_WX = jnp.broadcast_to(ids_TW[0, :, None], (ids_TW.shape[1], filters))
        return jax.lax.fori_loop(1, places, later, (fixed_UX[ids_TW[0]], first_WX))[1]

    winner_BWX = jax.lax.map(winners, (structure["ids_BTW"], structure["places_B"]))
    winner_VX = winner_BWX.reshape(-1, filters)[structure["rank_V"]]
    if scores_UX.size > _FLAT:
        return jnp.take_along_axis(scores_UX, winner_VX, axis=0)
    # XLA gathers and scatters twice as fast with a single index as with two.
    return scores_UX.ravel()[winner_VX * filters + jnp.arange(filters)]


LAYER = CnnSoftmax
