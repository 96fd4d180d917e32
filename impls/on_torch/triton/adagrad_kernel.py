"""PyTorch's Adagrad on a CUDA device, with one Triton kernel for each parameter that reads and writes each array once.

PyTorch's own is fused for CPUs only, and makes eight passes over the arrays of a large vocabulary.
"""

# Where Triton is not installed, kernels look like plain functions, which take no grid.
# pyright: reportIndexIssue=false

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

_BLOCK = 2048  # elements that a program updates


@triton.jit
def _step_kernel(parameter, gradient, sum_of_squares, count, rate, decay, epsilon, BLOCK: tl.constexpr):
    place_B = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here_B = place_B < count
    value_B = tl.load(parameter + place_B, mask=here_B).to(tl.float32)
    gradient_B = tl.load(gradient + place_B, mask=here_B).to(tl.float32) + decay * value_B
    sum_B = tl.load(sum_of_squares + place_B, mask=here_B).to(tl.float32) + gradient_B * gradient_B
    value_B -= rate * gradient_B / (tl.sqrt(sum_B) + epsilon)
    tl.store(sum_of_squares + place_B, sum_B.to(sum_of_squares.dtype.element_ty), mask=here_B)
    tl.store(parameter + place_B, value_B.to(parameter.dtype.element_ty), mask=here_B)


class Adagrad(torch.optim.Adagrad):
    """`torch.optim.Adagrad` without learning-rate decay, for dense gradients."""

    capturable = True  # by a CUDA graph: a step does not depend on the number of steps before it

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            settings = group["lr"], group["weight_decay"], group["eps"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, count = self.state[parameter], parameter.numel()
                state["step"] += 1
                arrays = parameter, parameter.grad.contiguous(), state["sum"]
                _step_kernel[(triton.cdiv(count, _BLOCK),)](*arrays, count, *settings, BLOCK=_BLOCK)
