"""Our kernels in C++ (`impls/cpp`), as operations of XLA's: both levels of two-level layers, and fused softmax."""

from __future__ import annotations

import os
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from impls import cpp
from impls.on_jax._layer import Array
from impls.on_numpy.sohsm import Projected

_SCORES, _GRADIENTS, _LIKELIEST = "cluster_scores_of_xla", "cluster_gradients_of_xla", "likeliest_words_of_xla"
_FUSED, _UPPER = "fused_softmax_of_xla", "upper_level_of_xla"


def known(dtype: str) -> bool:
    """Whether there are kernels for vectors of a spec's `dtype` on the device that JAX takes by itself: a CPU."""
    return dtype == "float32" and jax.default_backend() == "cpu" and _registered()


def scores(
    hidden_ND: Array, row_N: Array, slab_CSD: Array, bias_CS: Array | None, word_CS: Array, end_C: Array
) -> Array:
    """(N, S) of each token, sorted by cluster, with the words of its cluster; -inf in empty slots. 0 of tokens beyond
    the last cluster's.

    Args:
        hidden_ND: Vectors in float32.
        row_N: int32: that of each token.
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: int32: the word in each slot; negative in empty slots, which come last.
        end_C: int32: one past the last token of each cluster.
    """
    out = jax.ShapeDtypeStruct((len(row_N), slab_CSD.shape[1]), jnp.float32)
    return _call(_SCORES, out)(slab_CSD, word_CS, hidden_ND, row_N, end_C, _or_none(bias_CS))


def gradients(
    dscores_NS: Array, hidden_ND: Array, row_N: Array, slab_CSD: Array, word_CS: Array, end_C: Array
) -> tuple[Array, Array]:
    """Those of `scores` by the hidden vectors (N, D), each of which is one token's, and by the words (C, S, D)."""
    out = tuple(jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in (hidden_ND, slab_CSD))
    return _call(_GRADIENTS, out)(slab_CSD, word_CS, hidden_ND, row_N, end_C, dscores_NS)


def likeliest(
    hidden_ND: Array, log_cluster_NC: Array, slab_CSD: Array, bias_CS: Array | None, word_CS: Array, k: int,
    most: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Values and ids (N, K) of the k likeliest words, best first, equals by their ids, and (N,) how many clusters were
    looked through for them: 0 where it had been more than `most`, and there are neither values nor ids."""
    rows = len(hidden_ND)
    shapes = ((rows, k), jnp.float32), ((rows, k), jnp.int32), ((rows,), jnp.int32)
    call = _call(_LIKELIEST, tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    return call(slab_CSD, word_CS, hidden_ND, log_cluster_NC, _or_none(bias_CS), most=np.int32(most))


def upper_level(
    hidden_ND: Array, cluster_projection_DD: Array | None, word_projection_DD: Array | None, projected: Projected,
    weight_CD: Array, bias_C: Array | None,
) -> tuple[Array, Array]:  # fmt: skip
    """(N, D) what words are multiplied with, and (N, C) log P(c | h). Without a gradient."""
    (rows, dim), clusters = hidden_ND.shape, len(weight_CD)
    shapes = (rows, clusters), (0 if word_projection_DD is None else rows, dim)
    call = _call(_UPPER, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    given = hidden_ND, *map(_or_none, (cluster_projection_DD, word_projection_DD)), weight_CD, _or_none(bias_C)
    log_cluster_NC, word_hidden_ND = call(*given, **{name: np.float32(n) for name, n in projected._asdict().items()})
    return hidden_ND if word_projection_DD is None else word_hidden_ND, log_cluster_NC


def fused_softmax(
    hidden_ND: Array, weight_VD: Array, bias_V: Array, targets_N: Array, share_N: Array, most: int
) -> tuple[Array, tuple[Array, Array, Array]]:
    """Total and gradients as `impls/cpp/fused_softmax.h` has them; targets in int32."""
    shapes = (), hidden_ND.shape, weight_VD.shape, bias_V.shape
    call = _call(_FUSED, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    total, *gradients = call(hidden_ND, weight_VD, bias_V, targets_N, share_N, most=np.int32(most))
    return total, tuple(gradients)


def _or_none(array: Array | None) -> Array:
    return jnp.zeros(0, jnp.float32) if array is None else array


def threads() -> int:
    """As many as XLA has in its pools."""
    return int(os.environ.get("NPROC") or os.cpu_count() or 1)


def _call(target: str, out):  # type: ignore[no-untyped-def]
    return partial(jax.ffi.ffi_call(target, out, vmap_method="sequential"), threads=np.int32(threads()))


@cache
def _registered() -> bool:
    library = cpp.library("for_jax", ("-isystem", jax.ffi.include_dir()))
    if library is None:
        return False
    for target in (_SCORES, _GRADIENTS, _LIKELIEST, _FUSED, _UPPER):
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    return True
