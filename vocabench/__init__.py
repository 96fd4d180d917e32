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
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

    from vocabench.impls.contract import Layer
    from vocabench.impls.spec import LayerSpec

__all__ = ["create", "frameworks", "methods", "read", "run", "spec"]


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


def run(
    suite: str | os.PathLike[str] = "quick",
    *,
    framework: str | Sequence[str] | None = None,
    method: str | Sequence[str] | None = None,
    vocab: int | Sequence[int] | None = None,
    task: str | Sequence[str] | None = None,
    dim: int | None = None,
    tokens: int | None = None,
    device: str | None = None,
    devices: int | None = None,
    precision: str | Sequence[str] | None = None,
    dataset: str | os.PathLike[str] | None = None,
    text_rule: str | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    option: Mapping[str, object] | None = None,
    set: Mapping[str, object] | None = None,
    processes: int | None = None,
    rounds: int | None = None,
    out: str | os.PathLike[str] | None = None,
    retry: bool = False,
    executor: str = "local",
    address: str | None = None,
    cores: int | None = None,
    plugin: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    quiet: bool = False,
) -> pd.DataFrame:
    """Measure a suite, as `vocabench run` does, and return its rows as `read` does.

    The arguments are the command's options, with several names as "a,b" or as a list. Every row is in a results file
    as soon as it is measured, so that the same call continues after an interruption and returns at once when
    everything is measured. Progress and results are shown on standard error, one line for each cell.

    Args:
        suite: Name of a suite, or path of a TOML file.
        framework, method, vocab, task: Only these.
        devices: Measure the timing cells of the suite with the words of their layers split over so many devices.
        option: Options of methods by name, such as `{"bias": True}`.
        text_rule: Tokenization of the text: "english", "lines" or "whitespace"; by default that of the dataset.
        set: Settings of tasks by name, such as `{"epochs": 2}`.
        seeds: Measure each cell with the seeds 0 to seeds - 1, instead of one `seed`.
        out: Results file; by default one in `results/local` for the suite and this version of the code.
        retry: Measure cells that failed or were skipped again.
        executor: "local", or "ray" for a Ray cluster at `address`, with so many `cores` for each cell.
        plugin: Folders or files with further methods, datasets or suites.
        quiet: Show nothing but errors and the path of the rows.

    Returns:
        A data frame with one row per measured figure. Cells that were not measured have a `status` and a `message`,
        and no `quantity`. `attrs["file"]` is the path of the results file.

    Raises:
        ValueError: An argument is invalid, or nothing is left to run.
    """
    from vocabench.harness.commands import from_python

    return from_python.run(
        suite,
        framework=framework,
        method=method,
        vocab=vocab,
        task=task,
        dim=dim,
        tokens=tokens,
        device=device,
        devices=devices,
        precision=precision,
        dataset=dataset,
        text_rule=text_rule,
        seed=seed,
        seeds=seeds,
        option=option,
        settings=set,
        processes=processes,
        rounds=rounds,
        out=out,
        retry=retry,
        executor=executor,
        address=address,
        cores=cores,
        plugin=plugin,
        quiet=quiet,
    )
