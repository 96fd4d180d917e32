"""CNN softmax in JAX. See `impls/on_numpy/cnn_softmax.py` for the definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from impls.on_jax._layer import Array, OutputLayer, Tree, pick, product, wide
from impls.on_numpy.cnn_softmax import WIDTHS, before, blocks
from impls.structures.spelling import END

_WIDEST = WIDTHS[-1]


class CnnSoftmax(OutputLayer):
    """log P(w | h) = log softmax(h (f P^T / sqrt 4F + r M^T / sqrt R)^T + b)[w], with f the pooled filters over the
    characters of every word.

    Parameters: `char_embedding` (A, E), `conv{k}_weight` (F, k, E) and `conv{k}_bias` (F,) for k = 1..4,
    `char_projection` (D, 4 F), `correction_weight` (V, R) and `correction_projection` (D, R) where there is a
    correction, `bias` (V,). Structure: `characters` (B, W, L), the words in blocks.

    Every call makes all word vectors, (V, 4 F) features and then (V, D), once. The windows of a block of words are held
    only while the block is under way, and made anew for the gradient: about 4 L (E + F) numbers a word of the block at
    a time, twice that in the backward pass.
    """

    def structure(self) -> Tree:
        return {"characters": jnp.asarray(blocks(self.spec))}

    def _features(self, params: Tree, structure: Tree) -> Array:
        """(V, 4 F)"""
        dtype = params["bias"].dtype
        # Filters are of one width by zeros, so that all are one product. Half precision is widened here, outside the
        # blocks, so that the gradients of all blocks are summed in float32.
        around = {k: ((0, 0), (before(k), _WIDEST - k - before(k)), (0, 0)) for k in WIDTHS}
        weight_XkE = jnp.concatenate([jnp.pad(_scaled(params[f"conv{k}_weight"]), around[k]) for k in WIDTHS])
        weight_XY = weight_XkE.reshape(len(weight_XkE), -1)
        bias_X = jnp.concatenate([params[f"conv{k}_bias"] for k in WIDTHS]).astype(wide(dtype))
        embedding_AE = jnp.pad(params["char_embedding"], ((1, 0), (0, 0))).astype(wide(dtype))  # row 0 is padding

        @jax.checkpoint
        def features_of(characters_WL: Array) -> Array:
            places = characters_WL.shape[1] - 2
            chars_WLE = jnp.pad(embedding_AE[characters_WL], ((0, 0), (0, 1), (0, 0)))
            windows_WTY = jnp.concatenate([chars_WLE[:, j : j + places] for j in range(_WIDEST)], axis=2)
            scores_WTX = jnp.matmul(windows_WTY.astype(dtype), weight_XY.astype(dtype).T)
            scores_WTX = jnp.where((characters_WL[:, 1:-1] > END)[:, :, None], scores_WTX, -jnp.inf)
            # A bias is the same at every place: it can wait until one is chosen.
            return jax.nn.relu(scores_WTX.max(axis=1) + bias_X.astype(dtype))

        features_BWX = jax.lax.map(features_of, structure["characters"])
        return features_BWX.reshape(-1, len(bias_X))[: self.spec.vocab]

    def _logits(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        bias_V = params["bias"]
        projection_DX = _scaled(params["char_projection"]).astype(bias_V.dtype)
        vectors_VD = product(self._features(params, structure), projection_DX)
        if "correction_weight" in params:
            projection_DR = _scaled(params["correction_projection"]).astype(bias_V.dtype)
            vectors_VD = vectors_VD + product(params["correction_weight"], projection_DR)
        return product(hidden_ND, vectors_VD.astype(bias_V.dtype)) + bias_V

    def nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        logits_NV = self._logits(params, structure, hidden_ND)
        return jax.nn.logsumexp(logits_NV, axis=1) - pick(logits_NV, targets_N)

    def log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        return jax.nn.log_softmax(self._logits(params, structure, hidden_ND), axis=1)


def _scaled(weight: Array) -> Array:
    """A matrix over the square root of how many terms its products have, in float32 at least."""
    return weight.astype(wide(weight.dtype)) / weight[0].size ** 0.5


LAYER = CnnSoftmax
