"""What tests of Pallas kernels have in common: they run on a GPU, else by Pallas' interpreter, and are looked at as
what Triton is given for a GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from numpy.typing import NDArray

from vocabench.impls.on_jax import adapter

INTERPRET = jax.default_backend() != "gpu"
TRITON = "__gpu$xla.gpu.triton"  # what XLA calls a kernel
_H200 = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", 132, "gpu"))


def differentiated(nll: Callable[[Any], jax.Array], trained: Any, dnll_N: NDArray) -> list[NDArray[np.float64]]:
    """Losses, and gradients by each array that is trained."""

    @jax.jit
    def both(trained: Any, dnll_N: jax.Array) -> list[jax.Array]:
        nll_N, gradients = jax.vjp(nll, trained)
        return [nll_N, *jax.tree.leaves(gradients(dnll_N))]

    return [np.asarray(array, np.float64) for array in both(trained, jnp.asarray(dnll_N, jnp.float32))]


def close(found: Sequence[NDArray], wanted: Sequence[NDArray], tolerance: float) -> None:
    for ours, exact in zip(found, wanted, strict=True):
        assert np.abs(ours - exact).max() <= tolerance * np.abs(exact).max()


def for_a_gpu(function: Callable[..., Any], *arrays: tuple[Any, ...]) -> str:
    """`function` of arrays of these dtypes and sizes as it is for a GPU, which is not asked."""
    with use_abstract_mesh(_H200):
        traced = jax.jit(function).trace(*(jax.ShapeDtypeStruct(shape, kind) for kind, *shape in arrays))
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def loss_for_a_gpu(
    nll: Callable[..., jax.Array], trained: Sequence[tuple[int, ...]], fixed: Sequence[tuple[int, ...]], dtype: str
) -> str:
    """Forward and backward of the sum of losses of arrays of these shapes: those that are trained, in `dtype`, and
    those of int32."""
    arrays = [(adapter.JAX_DTYPES[dtype], *shape) for shape in trained], [(jnp.int32, *shape) for shape in fixed]

    def loss(*given: jax.Array) -> jax.Array:
        return nll(*given).sum()

    return for_a_gpu(jax.value_and_grad(loss, argnums=tuple(range(len(trained)))), *arrays[0], *arrays[1])
