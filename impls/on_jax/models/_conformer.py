"""The conformer encoder of `impls/models/recognizer.py` in JAX.

Shape letters: B utterances, F frames of features, M mels, S frames after the convolutions, D width, C channels,
P relative positions, H heads, E width of a head.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vocabench.impls.models.recognizer import RecognizerConfig, sinusoids
from vocabench.impls.on_jax.models._blocks import blocks_of, feed_forward, linear, norm, read, run, scores, split_heads
from vocabench.impls.on_jax.models._depthwise import depthwise
from vocabench.impls.on_jax.ops.arrays import Array, Tree, wide


def encode(params: Tree, config: RecognizerConfig, features_BFM: Array, real_BS: Array) -> Array:
    """Return encoded frames (B, S, D). Frames outside `real_BS` are meaningless and pass no gradient."""
    x_BSD = front(params, features_BFM) * config.dim**0.5
    last = x_BSD.shape[1] - 1
    relative_PD = jnp.asarray(sinusoids(np.arange(last, -last - 1, -1), config.dim), x_BSD.dtype)

    def block(x_BSD: Array, params: Tree) -> tuple[Array, None]:
        x_BSD += feed_forward(params, "feed1", x_BSD, jax.nn.silu) / 2
        x_BSD += attention(params, norm(params, "attention.norm", x_BSD), relative_PD, real_BS, config.heads)
        x_BSD += convolution(params, norm(params, "conv.norm", x_BSD), real_BS)
        x_BSD += feed_forward(params, "feed2", x_BSD, jax.nn.silu) / 2
        return norm(params, "norm", x_BSD), None

    return run(block, x_BSD, blocks_of(params, "encoder"))


def front(params: Tree, features_BFM: Array) -> Array:
    """Return the subsampled frames (B, S, D)."""
    x_BFMC = features_BFM[:, :, :, None]
    for name in ("front.conv1", "front.conv2"):
        # Channels last is twice as fast on a CPU.
        layout = lax.conv_dimension_numbers(x_BFMC.shape, params[f"{name}_weight"].shape, ("NHWC", "OIHW", "NHWC"))
        x_BFMC = lax.conv_general_dilated(x_BFMC, params[f"{name}_weight"], (2, 2), "VALID", dimension_numbers=layout)
        x_BFMC = jax.nn.relu(x_BFMC + params[f"{name}_bias"])
    x_BSCM = x_BFMC.swapaxes(2, 3)
    return linear(params, "front.out", x_BSCM.reshape(*x_BSCM.shape[:2], -1))


def attention(params: Tree, x_BSD: Array, relative_PD: Array, real_BS: Array, heads: int) -> Array:
    """Return self-attention (B, S, D) with relative positions (Dai et al. 2019, arXiv 1901.02860, section 3.3).

    Args:
        params: Parameters of the block.
        x_BSD: Frames.
        relative_PD: Vectors of the positions S - 1 down to 1 - S.
        real_BS: Mask of the real frames.
        heads: Number of heads H.
    """
    query_BSHE, key_BSHE, value_BSHE = (
        split_heads(linear(params, f"attention.{part}", x_BSD), heads) for part in ("query", "key", "value")
    )
    position_PHE = (relative_PD @ params["attention.position_weight"].T).reshape(len(relative_PD), heads, -1)
    by_content_BHSS = scores(query_BSHE + params["attention.content_bias"], key_BSHE)
    by_position_BHSP = jnp.einsum(
        "bshe,phe->bhsp",
        query_BSHE + params["attention.position_bias"],
        position_PHE,
        preferred_element_type=wide(x_BSD.dtype),
    )
    context_BSD = read(by_content_BHSS + by_distance(by_position_BHSP), real_BS[:, None, None], value_BSHE)
    return linear(params, "attention.out", context_BSD)


def by_distance(scores_BHSP: Array) -> Array:
    """Return (B, H, S, S): for frames i and j the score of i at the position i - j, which is its column S - 1 - i + j.

    A column is prepended, the rows are concatenated, and the result from place S on is cut into rows of one column
    less. The columns of the result are then the first ones.
    """
    frames, positions = scores_BHSP.shape[2:]
    padded_BHSP = jnp.pad(scores_BHSP, ((0, 0), (0, 0), (0, 0), (1, 0)))
    flat_BHX = padded_BHSP.reshape(*scores_BHSP.shape[:2], -1)[:, :, frames:]
    return flat_BHX.reshape(*scores_BHSP.shape[:2], frames, positions)[:, :, :, :frames]


def convolution(params: Tree, x_BSD: Array, real_BS: Array) -> Array:
    """Return the convolution module's output (B, S, D)."""
    value_BSD, gate_BSD = jnp.split(linear(params, "conv.in", x_BSD), 2, axis=2)
    gated_BSD = jnp.where(real_BS[:, :, None], value_BSD * jax.nn.sigmoid(gate_BSD), 0)
    mixed_BSD = depthwise(gated_BSD, params["conv.depth_weight"]) + params["conv.depth_bias"]
    return linear(params, "conv.out", jax.nn.silu(norm(params, "conv.mid", mixed_BSD)))
