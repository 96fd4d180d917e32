"""Building blocks of the conformer and the transformer.

The parameters of the blocks of a stack are stacked arrays (`impls/models/stacks.py`), and a scan runs over them. Only
one block is compiled for each of the many shapes of batches of utterances, and the optimizer's step has few arrays.

Shape letters: B sequences, T queries, S keys, D width, H heads, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.models.recognizer import NORM_EPSILON
from vocabench.impls.on_jax.ops.arrays import Array, Tree, wide


def blocks_of(params: Tree, stack: str) -> Tree:
    """Return the stacked parameters of "encoder" or "decoder", without the prefix, for a scan over the blocks."""
    prefix = f"{stack}.*."
    return {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}


def run(block: Callable[[Array, Any], tuple[Array, None]], x_BTD: Array, blocks: Any) -> Array:
    """Apply the blocks one after another, and return (B, T, D).

    Only products with weights are kept for the gradient. The rest is computed again, which saves memory and costs no
    time.
    """
    saved = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return lax.scan(jax.checkpoint(block, policy=saved, prevent_cse=False), x_BTD, blocks)[0]


def linear(params: Tree, name: str, x: Array) -> Array:
    """Apply the linear layer `name` to the last dimension."""
    return jnp.einsum("...i,oi->...o", x, params[f"{name}_weight"]) + params[f"{name}_bias"]


def norm(params: Tree, name: str, x: Array) -> Array:
    """Apply the layer norm `name` to the last dimension, in at least float32."""
    centred = x.astype(wide(x.dtype))
    centred -= centred.mean(axis=-1, keepdims=True)
    unit = centred * lax.rsqrt((centred * centred).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return unit.astype(x.dtype) * params[f"{name}_scale"] + params[f"{name}_bias"]


def feed_forward(params: Tree, name: str, x: Array, activation: Callable[[Array], Array]) -> Array:
    """Apply the feed-forward module `name`, with its layer norm."""
    inner = activation(linear(params, f"{name}.in", norm(params, f"{name}.norm", x)))
    return linear(params, f"{name}.out", inner)


def split_heads(x_BTD: Array, heads: int) -> Array:
    """Return the heads (B, T, H, E) of vectors (B, T, D)."""
    return x_BTD.reshape(*x_BTD.shape[:2], heads, -1)


def scores(query_BTHE: Array, key_BSHE: Array) -> Array:
    """Return the (B, H, T, S) products of queries and keys, in at least float32."""
    return jnp.einsum("bthe,bshe->bhts", query_BTHE, key_BSHE, preferred_element_type=wide(key_BSHE.dtype))


def read(scores_BHTS: Array, real: Array, value_BSHE: Array) -> Array:
    """Return the (B, T, D) means of the values of each head, weighted by a softmax of the scores over sqrt(E).

    Args:
        scores_BHTS: Scores in at least float32.
        real: Mask of the keys that count, broadcast to (B, H, T, S). All weights are 0 where no key counts.
        value_BSHE: Values.
    """
    scaled_BHTS = scores_BHTS * value_BSHE.shape[-1] ** -0.5
    weights_BHTS = jax.nn.softmax(scaled_BHTS, where=real).astype(value_BSHE.dtype)
    return jnp.einsum("bhts,bshe->bthe", weights_BHTS, value_BSHE).reshape(*scores_BHTS.shape[::2], -1)


def attend(query_BTD: Array, key_BSD: Array, value_BSD: Array, real: Array, heads: int) -> Array:
    """Return scaled dot-product attention (B, T, D) (Vaswani et al. 2017, section 3.2). `real` is as in `read`."""
    query_BTHE, key_BSHE, value_BSHE = (split_heads(x, heads) for x in (query_BTD, key_BSD, value_BSD))
    return read(scores(query_BTHE, key_BSHE), real, value_BSHE)
