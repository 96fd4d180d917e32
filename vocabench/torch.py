"""PyTorch layers to lift into a model.

```python
import vocabench.torch

layer = vocabench.torch.layer("huffman", counts=counts, dim=512)  # an nn.Module
loss = layer(hidden, targets)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vocabench.harness import layers
from vocabench.impls.errors import unknown
from vocabench.impls.on_torch.adapter import native
from vocabench.impls.on_torch.parallel.native import parallel
from vocabench.impls.on_torch.parallel.ranks import LostRank

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from vocabench.impls.on_torch.layer import OutputLayer

__all__ = ["LostRank", "layer"]

_DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}


def layer(
    method: str,
    *,
    counts: ArrayLike | None = None,
    dim: int,
    vocab: int | None = None,
    seed: int = 0,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    group: ProcessGroup | DeviceMesh | None = None,
    **options: object,
) -> OutputLayer:
    """Create a method's `nn.Module` with its initial parameters.

    Args:
        method: One of `vocabench.methods("torch")`.
        counts: (V,) integers: how often each word id occurs in the training text. Some methods do not need them.
        dim: Width D of the hidden vectors.
        vocab: Size of the vocabulary, instead of `counts`, for methods that do not need them.
        seed: Seed of the initial parameters and of random structure.
        dtype: `torch.float32`, `torch.float64`, `torch.bfloat16` or their names; PyTorch's default dtype if None.
        device: Where the parameters are placed; PyTorch's default device if None.
        group: The process group over whose ranks the words are split, or a mesh of one axis. Every rank creates the
            layer and holds a part of its words. If None, this process holds all words.
        **options: Options of the method. `docs/methods/` describes them.

    Raises:
        ValueError: An argument is invalid. The message names it, its value and what is allowed.
    """
    kind = torch.get_default_dtype() if dtype is None else dtype
    if isinstance(kind, torch.dtype):
        if kind not in _DTYPES:
            raise unknown("dtype", str(kind), [str(known) for known in _DTYPES])
        kind = _DTYPES[kind]
    spec = layers.spec(method, counts=counts, dim=dim, vocab=vocab, seed=seed, dtype=kind, **options)
    place = torch.get_default_device() if device is None else device
    return native(spec).to(place) if group is None else parallel(spec, group, place)
