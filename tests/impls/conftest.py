"""Fixtures for kernels: C++ compiled in other ways, JAX without TF32, and printed Pallas kernels."""

import functools
import itertools
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from vocabench.impls import cpp


@functools.cache
def _compiled(compiler: str, processor: str) -> Any:
    """Return the kernels for PyTorch, or None if they cannot be compiled."""
    from vocabench.impls.on_torch.ops import cpp_kernels

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", compiler)
        patch.setattr(cpp, "_PROCESSOR", processor)
        patch.setattr(cpp, "library", cpp.library.__wrapped__)  # keeps the cached library of this process
        return cpp_kernels._library()


@pytest.fixture(params=itertools.product(("g++", "clang++"), ("native", "haswell")), ids="-".join)
def compiled_otherwise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile with GCC or Clang, for the present processor or for one with AVX2 and 16 registers."""
    compiler, processor = request.param
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    kernels = _compiled(compiler, processor)
    assert kernels is not None
    monkeypatch.setattr("vocabench.impls.on_torch.ops.cpp_kernels._library", lambda: kernels)


@pytest.fixture
def no_tf32() -> Iterator[None]:
    """Disable TF32, which is JAX's default on GPUs."""
    from vocabench.impls.on_jax import adapter

    with adapter.precision("float32"):
        yield


@pytest.fixture
def kernels_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print Pallas kernels as they are passed to Triton."""
    from jax.experimental import pallas

    monkeypatch.setattr(pallas, "pallas_call", partial(pallas.pallas_call, debug=True))
