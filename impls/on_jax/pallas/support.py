"""The basis of our Pallas kernels, which Triton compiles: where they are available, and how they are launched."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vocabench.impls.forms import GPU, Form
from vocabench.impls.on_jax.ops.arrays import Array, aligned, varying_axes

_BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2}
# Bytes of shared memory that the kernels use, by the size of a vector in bytes, as compiled by JAX 0.11 for compute
# capabilities 8.0, 8.9, 9.0 and 10.0. They hold 16 words and 16 hidden vectors at a time.
_SHARED = {2**11: 100_352, 2**12: 163_840}
# The widest vectors are in half precision. `known` has the limits of the other dtypes and of smaller GPUs.
_WIDEST = max(_SHARED) // min(_BYTES.values())
KERNELS = Form("pallas", "Pallas kernels", devices=(GPU,), dtypes=tuple(_BYTES), max_dim=_WIDEST)


def known(dtype: str, dim: int) -> bool:
    """Return whether there are kernels for vectors (D,) of a spec's `dtype` on JAX's default device.

    The device must be an NVIDIA GPU with enough shared memory for the vectors, padded to a power of two.
    """
    if not KERNELS.supports(dtype, dim) or jax.default_backend() != "gpu" or not _installed():
        return False
    size, room = 2 ** (dim - 1).bit_length() * _BYTES[dtype], _shared_memory(jax.devices()[0])
    return any(size <= widest and used <= room for widest, used in _SHARED.items())


def _shared_memory(device: Any) -> int:
    """Return the bytes of shared memory of a program; 0 unless the GPU is NVIDIA's and has capability 8.0 or newer."""
    major, _, _ = str(getattr(device, "compute_capability", "")).partition(".")
    modern = major.isdecimal() and int(major) >= 8
    return int(getattr(device, "shared_memory_per_block_optin", 0)) if modern else 0


@cache
def _installed() -> bool:
    """Return whether this version of JAX has Pallas' Triton backend, which is deprecated."""
    return importlib.util.find_spec("jax.experimental.pallas.triton") is not None


class How(NamedTuple):
    """The settings of a kernel launch.

    Attributes:
        tf32: Whether float32 products are computed in TF32.
        interpret: Whether Pallas' interpreter runs the kernels, which needs no GPU.
    """

    tf32: bool
    interpret: bool

    @classmethod
    def asked_for(cls, interpret: bool) -> How:
        """Return settings with TF32 if it is JAX's default precision of products."""
        return cls(jax.config.jax_default_matmul_precision == "tensorfloat32", interpret)


def call(
    kernel: Any,
    out: Any,
    grid: tuple[int, ...],
    warps: int,
    stages: int,
    interpret: bool,
    written_over: Mapping[int, int] = MappingProxyType({}),
    like: Any = (),
) -> Any:
    """Return `kernel` as an operation on arrays.

    Args:
        kernel: The Pallas kernel.
        out: Shapes and dtypes of the outputs.
        grid: Numbers of programs.
        warps: Warps of a program.
        stages: Stages of software pipelining.
        interpret: As in `How`.
        written_over: Outputs that overwrite inputs: the number of the input to the number of the output.
        like: Arrays. Inside of `jax.shard_map`, outputs vary over the same axes of the mesh as these and the inputs.
    """
    # Imported here because not every JAX has Pallas' Triton backend. The type of the parameters selects this backend.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    params = plgpu.CompilerParams(num_warps=warps, num_stages=stages)
    options = {"grid": grid, "compiler_params": params, "interpret": interpret}

    def compute(*inputs: Any) -> Any:
        inputs, shapes = aligned(inputs), out
        if axes := varying_axes((inputs, like)):
            kind = jax.sharding.ManualAxisType(varying=axes)
            shapes = jax.tree.map(lambda shape: shape.update(manual_axis_type=kind), out)
        return pl.pallas_call(kernel, shapes, input_output_aliases=written_over, **options)(*inputs)

    return compute


def up(count: Array, size: int) -> Array:
    """Return the number of tiles of `size` for a count. Triton has no division that rounds down."""
    return lax.div(count + (size - 1), np.int32(size))


def iota(size: int) -> Array:
    """Return 0, 1, ... in int32, even if 64-bit types are enabled."""
    return lax.iota(jnp.int32, size)


def loop(count: Any, body: Any, start: Any) -> Any:
    """Return the result of `lax.fori_loop` from 0 with an int32 counter."""
    return lax.fori_loop(np.int32(0), count, body, start)
