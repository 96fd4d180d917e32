"""Whether layers have forms that are Pallas kernels of ours, which Triton compiles, and what these are called."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import jax

KERNELS = "Pallas kernels"
_BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2}
# Bytes of the chip's own memory that a program may take at least, on NVIDIA's GPUs since Ampere.
_LEAST_SHARED = 99 * 2**10
# Bytes of it that kernels of PyTorch's layers, which have the same tiles, take of vectors of up to so many bytes.
_SHARED = {2**11: 99_392, 2**12: 163_840}


def known(dtype: str, dim: int) -> bool:
    """Whether there are kernels for vectors (D,) of a spec's `dtype` on the device that JAX takes by itself: an NVIDIA
    GPU with room for them, padded to a power of two."""
    if dtype not in _BYTES or jax.default_backend() != "gpu" or not _installed():
        return False
    size, room = 2 ** (dim - 1).bit_length() * _BYTES[dtype], _shared_memory(jax.devices()[0])
    return any(size <= widest and taken <= room for widest, taken in _SHARED.items())


def _shared_memory(device: Any) -> int:
    """Bytes of the chip's own memory that a program may take; 0 where Triton makes no products in units for them."""
    major, _, _ = str(getattr(device, "compute_capability", "")).partition(".")
    modern = major.isdecimal() and int(major) >= 8
    return getattr(device, "shared_memory_per_block_optin", _LEAST_SHARED) if modern else 0


@cache
def _installed() -> bool:
    """Whether JAX can have Triton compile what Pallas traces: later versions may not."""
    return importlib.util.find_spec("jax.experimental.pallas.triton") is not None
