"""Whether layers have forms that are Pallas kernels of ours, which Triton compiles, and what these are called."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import jax

KERNELS = "Pallas kernels"
_BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2}
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
