"""Devices and precision of PyTorch, and arrays on their way to a device and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocabench.impls.errors import unknown
from vocabench.impls.on_torch.tensors import Tensors
from vocabench.impls.precision import Precise
from vocabench.impls.spec import Arrays, LayerSpec


def devices() -> list[str]:
    """Return the devices that PyTorch can use here, "cpu" first."""
    return ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]


def check_device(device: str) -> torch.device:
    """Return PyTorch's device of this name.

    Raises:
        BadInput: There is no such device here.
    """
    if device == "cuda" and torch.cuda.is_available():
        return torch.device("cuda:0")
    if device not in devices():
        raise unknown("device of torch", device, devices())
    return torch.device(device)


@contextmanager
def precision(dtype: str, device: torch.device) -> Iterator[None]:
    """Compute float32 products in TF32 for `tf32` and in float32 otherwise, on a CUDA device.

    PyTorch's default for cuDNN is TF32. This sets the older of PyTorch's two kinds of switches: torch.compile reads it,
    and fails if only the newer one was set.
    """
    if device.type != "cuda":
        yield
        return
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = dtype == "tf32"
        with torch.cuda.device(device):  # where Triton launches kernels
            yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


class Switched(Precise):
    """A layer or network of ours whose calls run under `precision`."""

    spec: LayerSpec
    device: torch.device

    def precision(self) -> AbstractContextManager[object]:
        return precision(self.spec.dtype, self.device)


def synchronize(device: torch.device) -> None:
    """Wait for all work on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ids_on(device: torch.device, ids: NDArray) -> Tensor:
    """Return ids as int64 on the device."""
    return torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64)).to(device, non_blocking=True)


def extra_on(device: torch.device, extra: Arrays) -> Tensors:
    """Return the random inputs of a loss on the device."""
    return {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in extra.items()}


def to_numpy(tensor: Tensor) -> NDArray:
    """Return a tensor on the host, with bfloat16 converted to float32."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
