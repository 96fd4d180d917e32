"""Triton kernels as a form of a layer, and where they can run."""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
from torch import Tensor

from vocabench.impls.forms import GPU, Form

_WIDEST = 2048  # elements of a vector that a kernel holds at once
KERNELS = Form("triton", "Triton kernels", devices=(GPU,), dtypes=("float32", "tf32", "bfloat16"), max_dim=_WIDEST)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def known(dim: int, dtype: torch.dtype) -> bool:
    """Return whether there can be kernels for vectors (dim,) of `dtype`: with Triton and a CUDA device.

    A layer on the CPU of such a machine has no use for them.
    """
    return dtype in _DTYPES and dim <= _WIDEST and torch.cuda.is_available() and _installed()


def runs_on(tensor: Tensor) -> bool:
    """Return whether elementwise kernels for this dtype can be launched on the tensor's device.

    Triton launches every kernel on PyTorch's current CUDA device, so the tensor must be there.
    """
    if not tensor.is_cuda or not known(1, tensor.dtype):
        return False
    return tensor.device.index == torch.cuda.current_device()


@cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that one program may use on a CUDA device."""
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)


@cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None
