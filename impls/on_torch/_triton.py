"""Whether layers have forms that are Triton kernels of ours, and what these are called."""

from __future__ import annotations

import importlib.util

import torch

KERNELS = "Triton kernels"
_WIDEST = 2048  # numbers of a vector that a kernel holds at once


def known(dim: int, dtype: torch.dtype) -> bool:
    """Whether there can be kernels for vectors (D,) of `dtype`: where PyTorch sees a CUDA device, and Triton is there.
    A layer that lies on the CPU all the same has no use for them."""
    narrow = dtype in (torch.float32, torch.bfloat16, torch.float16)
    return narrow and dim <= _WIDEST and torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
