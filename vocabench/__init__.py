"""Vocabench: a benchmark and evaluation harness for output layers over large vocabularies, across frameworks.

This module imports no framework and nothing heavy; each function imports what it needs.

```python
import vocabench

layer = vocabench.create("torch", "sohsm", counts=counts, dim=512)  # NumPy arrays in and out
loss, grad_hidden, grads = layer.loss_and_grads(hidden, targets)
```

The native layers of a framework are in `vocabench.torch`, `vocabench.tensorflow` and `vocabench.jax`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

    from vocabench.impls.contract import Layer
    from vocabench.impls.spec import LayerSpec

__all__ = ["create", "frameworks", "methods", "read", "spec"]


def frameworks() -> list[str]:
    """Return the frameworks that are installed, with "numpy", the float64 definitions, first."""
    from vocabench.harness import layers

    return layers.frameworks()


def methods(framework: str = "numpy") -> list[str]:
    """Return the methods that `framework` implements. "numpy" defines all methods.

    Raises:
        ValueError: `framework` is unknown.
    """
    from vocabench.harness import layers

    return layers.methods(framework)


def spec(
    method: str,
    *,
    counts: ArrayLike | None = None,
    dim: int,
    vocab: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
    **options: object,
) -> LayerSpec:
    """Return the specification of a layer: checked arguments, structure, parameter shapes and initial parameters.

    The arguments are those of `create`, without the framework and the device.

    Raises:
        ValueError: An argument is invalid. The message names it, its value and what is allowed.
    """
    from vocabench.harness import layers

    return layers.spec(method, counts=counts, dim=dim, vocab=vocab, seed=seed, dtype=dtype, **options)


def create(
    framework: str,
    method: str,
    *,
    counts: ArrayLike | None = None,
    dim: int,
    vocab: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: str | None = None,
    **options: object,
) -> Layer:
    """Create a layer that takes and returns NumPy arrays, with the same initial parameters in every framework.

    Args:
        framework: One of `frameworks()`.
        method: One of `methods(framework)`.
        counts: (V,) integers: how often each word id occurs in the training text. Some methods do not need them.
        dim: Width D of the hidden vectors.
        vocab: Size of the vocabulary, instead of `counts`, for methods that do not need them.
        seed: Seed of the initial parameters and of random structure.
        device: "cpu", "cuda", "cuda:1", ...
        dtype: "float32" (the default), "tf32" (float32 with matrix products in TF32), "float64" or "bfloat16". The
            definitions ("numpy") compute in "float64" only, their default.
        **options: Options of the method. `docs/methods/` describes them.

    Raises:
        ValueError: An argument is invalid, or the method or precision is not supported on this machine. The message
            names the argument, its value and what is allowed.
    """
    from vocabench.harness import layers

    given = {"counts": counts, "dim": dim, "vocab": vocab, "seed": seed, "device": device, "dtype": dtype}
    return layers.create(framework, method, **given, **options)  # type: ignore[arg-type]


def read(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a results file into a data frame with one row per measured figure.

    The columns are those of `vocabench table --format json`: among others `suite`, `task`, `framework`, `method`,
    `vocab`, `quantity`, `value`, `unit`, `ratio_to_full_softmax` with its interval, `agreement` and `status`.

    Args:
        path: A results file, as `vocabench run` writes it.

    Raises:
        ValueError: There is no such file, or it is not a results file.
    """
    import pandas as pd

    from vocabench.harness.report.rows import flatten
    from vocabench.harness.run import results_files

    return pd.DataFrame(flatten(results_files.rows(results_files.resolve(os.fspath(path)))))
