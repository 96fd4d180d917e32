"""Dtypes of PyTorch, and draws from rows of probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

Tensors = dict[str, Tensor]

TORCH_DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert half precision to float32, as is needed before exponentials are summed."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def draw(probabilities_NV: Tensor, uniforms_N: Tensor) -> Tensor:
    """Return the (N,) first columns whose cumulative probability exceeds the uniform's share of the row's sum.

    The column is 0 where no cumulative probability exceeds it, as in rows that contain NaN.
    """
    cumulative_NV = probabilities_NV.cumsum(dim=1)
    share_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    # `searchsorted` returns V where no column exceeds the share.
    return torch.searchsorted(cumulative_NV, share_N1, right=True)[:, 0].remainder_(cumulative_NV.shape[1])
