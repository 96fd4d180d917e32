"""Products of tokens with the words of their clusters by our kernels in C++ (`impls/cpp`), as operations of XLA's."""

from __future__ import annotations

import os
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from impls import cpp
from impls.on_jax._layer import Array

_TARGETS = "cluster_scores_of_xla", "cluster_gradients_of_xla"


def known(dtype: str) -> bool:
    """Whether there are kernels for vectors of a spec's `dtype` on the device that JAX takes by itself: a CPU."""
    return dtype == "float32" and jax.default_backend() == "cpu" and _registered()


def scores(
    hidden_ND: Array, row_N: Array, slab_CSD: Array, bias_CS: Array | None, size_C: Array, end_C: Array
) -> Array:
    """(N, S) of each token, sorted by cluster, with the words of its cluster; -inf in empty slots. 0 of tokens beyond
    the last cluster's.

    Args:
        hidden_ND: Vectors in float32.
        row_N: int32: that of each token.
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        size_C: int32: words of each cluster.
        end_C: int32: one past the last token of each cluster.
    """
    out = jax.ShapeDtypeStruct((len(row_N), slab_CSD.shape[1]), jnp.float32)
    bias = jnp.zeros(0, jnp.float32) if bias_CS is None else bias_CS
    return _call(_TARGETS[0], out)(hidden_ND, row_N, slab_CSD, size_C, end_C, bias)


def gradients(
    dscores_NS: Array, hidden_ND: Array, row_N: Array, slab_CSD: Array, size_C: Array, end_C: Array
) -> tuple[Array, Array]:
    """Those of `scores` by the hidden vectors (N, D), each of which is one token's, and by the words (C, S, D)."""
    out = tuple(jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in (hidden_ND, slab_CSD))
    return _call(_TARGETS[1], out)(hidden_ND, row_N, slab_CSD, size_C, end_C, dscores_NS)


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
    for target in _TARGETS:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    return True
