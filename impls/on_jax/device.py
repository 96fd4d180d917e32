"""Devices and precision of JAX, and arrays on their way to a device and back."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.errors import unknown
from vocabench.impls.spec import Arrays

Device = Any  # jax.Device, which type checkers do not accept as an annotation

JAX_DTYPES = {"float32": jnp.float32, "tf32": jnp.float32, "float64": jnp.float64, "bfloat16": jnp.bfloat16}


def devices() -> list[str]:
    """Return the devices that JAX can use here, "cpu" first."""
    return ["cpu", *(f"cuda:{number}" for number in range(len(_gpus())))]


def _gpus() -> list[Device]:
    try:
        return jax.devices("cuda")
    except RuntimeError:  # raised where there is no GPU
        return []


def check_device(device: str) -> Device:
    """Return JAX's device of this name.

    Raises:
        BadInput: There is no such device here.
    """
    if device == "cpu":
        return jax.devices("cpu")[0]
    gpus = _gpus()
    if device == "cuda" and gpus:
        return gpus[0]
    if device not in devices():
        raise unknown("device of jax", device, devices())
    return gpus[int(device.partition(":")[2])]


def precision(dtype: str) -> AbstractContextManager[Any]:
    """Compute float32 products in TF32 for `tf32` and in float32 otherwise; enable float64 for `float64`.

    By default JAX uses TF32 on devices that have it. float64 is disabled by default, and is enabled only within this
    context, so that other programs in the process keep their types. Programs for a CPU are the same either way.
    """
    if dtype == "float64":
        return jax.enable_x64(True)
    return jax.default_matmul_precision("tensorfloat32" if dtype == "tf32" else "float32")


def put(array: ArrayLike, dtype: DTypeLike | None = None, device: Device | None = None) -> jax.Array:
    """Cast and copy an array on the host, and put it on a device.

    `jnp.asarray` would compile a program for each shape.
    """
    return jax.device_put(np.array(array, dtype), device)


def extra_on(device: Device, extra: Arrays) -> dict[str, jax.Array]:
    """Return the random inputs of a loss on the device, with ids as int32."""
    narrow = {name: array.astype(np.int32) if array.dtype.kind == "i" else array for name, array in extra.items()}
    return jax.device_put(narrow, device)


def to_numpy(array: Any) -> NDArray:
    """Return an array on the host, with bfloat16 converted to float32."""
    return np.array(array.astype(jnp.float32) if array.dtype == jnp.bfloat16 else array)
