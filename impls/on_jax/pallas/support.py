"""What our Pallas kernels, which Triton compiles, have in common: where there are any, and how they are made."""

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
from vocabench.impls.on_jax.layer import Array

_BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2}
KERNELS = Form("pallas", "Pallas kernels", devices=(GPU,), dtypes=tuple(_BYTES))
# Bytes of the chip's own memory that the kernels take for vectors of up to so many bytes, as JAX 0.11 compiles them for
# NVIDIA's architectures 8.0, 8.9, 9.0 and 10.0: they hold sixteen words and as many hidden vectors at once.
_SHARED = {2**11: 100_352, 2**12: 163_840}


def known(dtype: str, dim: int) -> bool:
    """Whether there are kernels for vectors (D,) of a spec's `dtype` on the device that JAX takes by itself: an NVIDIA
    GPU with room for what they hold of these, padded to a power of two."""
    if dtype not in _BYTES or jax.default_backend() != "gpu" or not _installed():
        return False
    size, room = 2 ** (dim - 1).bit_length() * _BYTES[dtype], _shared_memory(jax.devices()[0])
    return any(size <= widest and taken <= room for widest, taken in _SHARED.items())


def _shared_memory(device: Any) -> int:
    """Bytes of the chip's own memory that a program may take; 0 where that is none of NVIDIA's, or older than 8.0."""
    major, _, _ = str(getattr(device, "compute_capability", "")).partition(".")
    modern = major.isdecimal() and int(major) >= 8
    return int(getattr(device, "shared_memory_per_block_optin", 0)) if modern else 0


@cache
def _installed() -> bool:
    """Whether this JAX has Triton compile kernels; it says that later ones will not."""
    return importlib.util.find_spec("jax.experimental.pallas.triton") is not None


class How(NamedTuple):
    """How products are made: in TF32 or not, and by Pallas' interpreter, which needs no GPU, or not."""

    tf32: bool
    interpret: bool

    @classmethod
    def asked_for(cls, interpret: bool) -> How:
        """In TF32 where JAX is asked for it by name."""
        return cls(jax.config.jax_default_matmul_precision == "tensorfloat32", interpret)


def call(
    kernel: Any,
    out: Any,
    grid: tuple[int, ...],
    warps: int,
    stages: int,
    interpret: bool,
    written_over: Mapping[int, int] = MappingProxyType({}),
) -> Any:
    """`kernel` as an operation that returns arrays like `out`, with so many warps and loads under way.

    Args:
        written_over: Of the inputs, by their numbers, over which outputs of these numbers are written.
    """
    # Not every JAX has Pallas' way to Triton. Parameters of its class have Triton compile the kernel, and no other of
    # Pallas' ways to a GPU.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    params = plgpu.CompilerParams(num_warps=warps, num_stages=stages)
    options = {"grid": grid, "compiler_params": params, "interpret": interpret}
    return pl.pallas_call(kernel, out, input_output_aliases=written_over, **options)


def up(count: Array, size: int) -> Array:
    """Tiles of `size` that a count takes; Triton knows no division that rounds down."""
    return lax.div(count + (size - 1), np.int32(size))


def iota(size: int) -> Array:
    """0, 1, ... of 32 bits, though JAX be asked for 64 by itself."""
    return lax.iota(jnp.int32, size)


def loop(count: Any, body: Any, start: Any) -> Any:
    """What `body`, from the number of a turn and what the one before returned, makes of `start`."""
    return lax.fori_loop(np.int32(0), count, body, start)
