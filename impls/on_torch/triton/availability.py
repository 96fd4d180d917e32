"""Whether layers have forms that are Triton kernels of ours, and what these are called."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

KERNELS = "Triton kernels"
_WIDEST = 2048  # numbers of a vector that a kernel holds at once


def known(dim: int, dtype: torch.dtype) -> bool:
    """Whether there can be kernels for vectors (D,) of `dtype`: where PyTorch sees a CUDA device, and Triton is there.
    A layer that lies on the CPU all the same has no use for them."""
    narrow = dtype in (torch.float32, torch.bfloat16, torch.float16)
    return narrow and dim <= _WIDEST and torch.cuda.is_available() and _installed()


def runs_on(tensor: Tensor) -> bool:
    """Whether kernels for single numbers of that kind can be started where the tensor lies: on PyTorch's present CUDA
    device, to which Triton sends whatever is started."""
    if not tensor.is_cuda or not known(1, tensor.dtype):
        return False
    return tensor.device.index == torch.cuda.current_device()


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of the chip's own memory that a program may take on a CUDA device."""
    found = torch.cuda.get_device_properties(device)
    return getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)


@cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def form_of(asked: str, forms: Sequence[str], parameter: Tensor) -> str:
    """The form asked for; else, of the forms that a layer has, the kernels, which come last, where its parameters are
    on a CUDA device, and elsewhere the first. Empty where there are none."""
    if asked or not forms:
        return asked
    return forms[-1] if parameter.is_cuda and forms[-1].endswith(KERNELS) else forms[0]
