"""Backward passes that are written out for first derivatives only."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

_MESSAGE = "second derivatives of this layer: allowed: first derivatives"


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let the backward pass of an `autograd.Function` raise when its results are differentiated again.

    PyTorch's decorator of this name drops second derivatives where the incoming gradient requires none, as in
    `loss.backward(create_graph=True)`.
    """

    @wraps(backward)
    def once(ctx: Any, *upstream: Tensor) -> Any:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return backward(ctx, *upstream)
        kept = _Kept(ctx)
        with torch.no_grad():
            results = backward(kept, *upstream)
        gradients = results if isinstance(results, tuple) else (results,)
        given = [gradient for gradient in gradients if isinstance(gradient, Tensor)]
        sources = [source for source in (*kept.saved_tensors, *upstream) if source is not None]
        raising = iter(_Raising.apply(len(given), *given, *sources))  # type: ignore[arg-type]
        return tuple(next(raising) if isinstance(gradient, Tensor) else gradient for gradient in gradients)

    return once


class _Kept:
    """The context of a backward pass, whose saved tensors are unpacked once, as activation checkpointing demands."""

    def __init__(self, ctx: Any) -> None:
        self.__dict__.update(ctx=ctx, saved_tensors=ctx.saved_tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.ctx, name, value)


class _Raising(torch.autograd.Function):
    """The given gradients, which raise when they are differentiated with respect to anything they depend on."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() if tensor.is_sparse else tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        raise RuntimeError(_MESSAGE)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:  # type: ignore[override]
        return upstream


def differentiated_once(tensor: Tensor) -> Tensor:
    """Return the tensor for a call of other code whose second derivatives are wrong."""
    return _Once.apply(tensor)  # type: ignore[return-value]
