"""JAX layers to lift into a model: hashable objects with pure functions.

```python
import vocabench.jax

layer = vocabench.jax.layer("huffman", counts=counts, dim=512)  # static under jit
params, structure = layer.init(seed=0)  # pytrees of arrays; `structure` is not trained
loss = layer.loss(params, structure, hidden, targets)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from vocabench.harness import layers
from vocabench.impls.on_jax.adapter import native
from vocabench.impls.on_jax.parallel.native import parallel

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from jax.typing import DTypeLike
    from numpy.typing import ArrayLike

    from vocabench.impls.on_jax.layer import OutputLayer

__all__ = ["layer"]


def layer(
    method: str,
    *,
    counts: ArrayLike | None = None,
    dim: int,
    vocab: int | None = None,
    seed: int = 0,
    dtype: DTypeLike | None = None,
    device: Any = None,
    mesh: Mesh | None = None,
    axis_name: str | None = None,
    **options: object,
) -> OutputLayer:
    """Create a method's layer. It holds its specification and no arrays; `init` makes those.

    Args:
        method: One of `vocabench.methods("jax")`.
        counts: (V,) integers: how often each word id occurs in the training text. Some methods do not need them.
        dim: Width D of the hidden vectors.
        vocab: Size of the vocabulary, instead of `counts`, for methods that do not need them.
        seed: Seed of random structure.
        dtype: Precision of the parameters: float32 (the default), float64 or bfloat16.
        device: A `jax.Device` for which the layer is computed; JAX's default backend if None.
        mesh: A mesh of devices over one of whose axes the words are split. If None, they are on one device.
        axis_name: The axis of the mesh; it may be left out if the mesh has only one.
        **options: Options of the method. `docs/methods/` describes them.

    Raises:
        ValueError: An argument is invalid. The message names it, its value and what is allowed.
    """
    kind = "float32" if dtype is None else jnp.dtype(dtype).name
    spec = layers.spec(method, counts=counts, dim=dim, vocab=vocab, seed=seed, dtype=kind, **options)
    if mesh is None and axis_name is None:
        return native(spec, device)
    return parallel(spec, mesh, axis_name)
