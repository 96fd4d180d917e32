"""Helpers for tests of Pallas kernels.

The kernels run on a GPU, or otherwise with Pallas' interpreter. Tests can also inspect the program for a GPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from numpy.typing import NDArray

from vocabench.impls.on_jax.device import JAX_DTYPES

INTERPRET = jax.default_backend() != "gpu"
TRITON = "__gpu$xla.gpu.triton"  # the name of a kernel in XLA programs
_H200 = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", 132, "gpu"))


def differentiated(nll: Callable[[Any], jax.Array], trained: Any, dnll_N: NDArray) -> list[NDArray[np.float64]]:
    """Return losses, and gradients with respect to each trained array."""

    @jax.jit
    def both(trained: Any, dnll_N: jax.Array) -> list[jax.Array]:
        nll_N, gradients = jax.vjp(nll, trained)
        return [nll_N, *jax.tree.leaves(gradients(dnll_N))]

    return [np.asarray(array, np.float64) for array in both(trained, jnp.asarray(dnll_N, jnp.float32))]


def close(actual: Sequence[NDArray], expected: Sequence[NDArray], tolerance: float) -> None:
    """Assert that arrays agree within `tolerance`, relative to the largest entry of each array."""
    for array, exact in zip(actual, expected, strict=True):
        assert np.abs(array - exact).max() <= tolerance * np.abs(exact).max()


def for_a_gpu(function: Callable[..., Any], *arrays: tuple[Any, ...]) -> str:
    """Return the program of `function` for a GPU, which need not exist, and for arrays of these dtypes and sizes."""
    with use_abstract_mesh(_H200):
        traced = jax.jit(function).trace(*(jax.ShapeDtypeStruct(shape, kind) for kind, *shape in arrays))
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def loss_for_a_gpu(
    nll: Callable[..., jax.Array], trained: Sequence[tuple[int, ...]], fixed: Sequence[tuple[int, ...]], dtype: str
) -> str:
    """Return the program of the summed losses and their gradients for a GPU.

    Args:
        nll: Function from the trained and the fixed arrays to losses (N,).
        trained: Shapes of the arrays that are trained, in `dtype`.
        fixed: Shapes of the int32 arrays.
        dtype: Precision of a `LayerSpec`.
    """
    arrays = [(JAX_DTYPES[dtype], *shape) for shape in trained], [(jnp.int32, *shape) for shape in fixed]

    def loss(*inputs: jax.Array) -> jax.Array:
        return nll(*inputs).sum()

    return for_a_gpu(jax.value_and_grad(loss, argnums=tuple(range(len(trained)))), *arrays[0], *arrays[1])
