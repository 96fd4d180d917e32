"""What the blocks of a conformer and of a transformer are made of.

The parameters of a stack's blocks stand stacked (`impls/models/stacks.py`), and a scan runs over them: one block is
compiled,
whatever their number, for each of the many shapes that a batch of utterances can have; and the optimizer's step has as
few arrays.

Shape letters: B sequences, T places that ask, S places asked, D width, H heads, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.models.recognizer import NORM_EPSILON
from vocabench.impls.on_jax.layer import Array, Tree, wide


def blocks_of(params: Tree, stack: str) -> Tree:
    """What a scan over the blocks of "encoder" or "decoder" takes; each sees its own parameters by their last names."""
    prefix = f"{stack}.*."
    return {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}


def run(block: Callable[[Array, Any], tuple[Array, None]], x_BTD: Array, blocks: Any) -> Array:
    """(B, T, D) after one block after the other.

    For the gradient only products with weights are kept, the rest is computed again: less memory, in no more time.
    """
    kept = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return lax.scan(jax.checkpoint(block, policy=kept, prevent_cse=False), x_BTD, blocks)[0]


def linear(params: Tree, name: str, x: Array) -> Array:
    return jnp.einsum("...i,oi->...o", x, params[f"{name}_weight"]) + params[f"{name}_bias"]


def norm(params: Tree, name: str, x: Array) -> Array:
    """The layer norm of the last dimension, in at least float32."""
    centred = x.astype(wide(x.dtype))
    centred -= centred.mean(axis=-1, keepdims=True)
    unit = centred * lax.rsqrt((centred * centred).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return unit.astype(x.dtype) * params[f"{name}_scale"] + params[f"{name}_bias"]


def feed_forward(params: Tree, name: str, x: Array, activation: Callable[[Array], Array]) -> Array:
    inner = activation(linear(params, f"{name}.in", norm(params, f"{name}.norm", x)))
    return linear(params, f"{name}.out", inner)


def split_heads(x_BTD: Array, heads: int) -> Array:
    """(B, T, H, E)."""
    return x_BTD.reshape(*x_BTD.shape[:2], heads, -1)


def scores(query_BTHE: Array, key_BSHE: Array) -> Array:
    """(B, H, T, S) products in at least float32."""
    return jnp.einsum("bthe,bshe->bhts", query_BTHE, key_BSHE, preferred_element_type=wide(key_BSHE.dtype))


def read(scores_BHTS: Array, real: Array, value_BSHE: Array) -> Array:
    """(B, T, D) of each head the mean of values that a softmax of its scores over sqrt(E) weighs.

    Args:
        scores_BHTS: In at least float32.
        real: Which places count, as broadcasts to (B, H, T, S): the others have weight 0, and so have all where none
            counts.
        value_BSHE: Values.
    """
    scaled_BHTS = scores_BHTS * value_BSHE.shape[-1] ** -0.5
    weights_BHTS = jax.nn.softmax(scaled_BHTS, where=real).astype(value_BSHE.dtype)
    return jnp.einsum("bhts,bshe->bthe", weights_BHTS, value_BSHE).reshape(*scores_BHTS.shape[::2], -1)


def attend(query_BTD: Array, key_BSD: Array, value_BSD: Array, real: Array, heads: int) -> Array:
    """(B, T, D) scaled dot-product attention (Vaswani et al. 2017, section 3.2); `real` as in `read`."""
    query_BTHE, key_BSHE, value_BSHE = (split_heads(x, heads) for x in (query_BTD, key_BSD, value_BSD))
    return read(scores(query_BTHE, key_BSHE), real, value_BSHE)
