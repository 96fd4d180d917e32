"""PyTorch's optimizers with the settings of `impls/optimizers.py`."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vocabench.impls.on_torch.tensors import at_least_float32
from vocabench.impls.on_torch.training.row_sparse import RowSparse
from vocabench.impls.on_torch.triton import availability
from vocabench.impls.optimizers import Optimizer, check_rate


def build(
    settings: Optimizer, parameters: Iterable[nn.Parameter], undecayed: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer | RowSparse:
    """Return Adagrad, Adam or SGD; over rows alone if the settings say so.

    Args:
        settings: The settings, whose `decayed` the caller has turned into `undecayed`.
        parameters: The parameters that are trained.
        undecayed: Those of them without weight decay.
    """
    parameters, without = list(parameters), set(undecayed)
    dense = _dense(settings, parameters)
    if without:
        (group,) = dense.param_groups
        group["params"] = [parameter for parameter in parameters if parameter not in without]
        others = [parameter for parameter in parameters if parameter in without]
        dense.add_param_group({**group, "params": others, "weight_decay": 0.0})
    return RowSparse(settings, parameters, dense) if settings.row_sparse else dense


def _dense(settings: Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return PyTorch's optimizer, fused if possible: fused kernels read and write each array once."""
    rate, decay = settings.learning_rate, settings.weight_decay
    fused = all(p.dtype in (torch.float32, torch.float64, torch.bfloat16) for p in parameters)
    if settings.name == "adagrad":
        if parameters and all(availability.known(1, p.dtype) and p.is_cuda and p.is_contiguous() for p in parameters):
            from vocabench.impls.on_torch.triton import adagrad_kernel  # imports Triton, which may not be installed

            return adagrad_kernel.Adagrad(
                parameters,
                lr=rate,
                weight_decay=decay,
                initial_accumulator_value=settings.initial_accumulator,
                eps=settings.epsilon,
            )
        fused = fused and all(p.device.type == "cpu" for p in parameters)
        return torch.optim.Adagrad(
            parameters,
            lr=rate,
            weight_decay=decay,
            initial_accumulator_value=settings.initial_accumulator,
            eps=settings.epsilon,
            fused=fused,
            foreach=None if fused else True,
        )
    if settings.name == "adam":
        betas = (settings.beta1, settings.beta2)
        return torch.optim.Adam(parameters, lr=rate, betas=betas, eps=settings.epsilon, weight_decay=decay, fused=fused)
    # On a CPU the fused kernel does not update half precision (https://github.com/pytorch/pytorch/issues/191763).
    fused = fused and not any(p.device.type == "cpu" and p.dtype == torch.bfloat16 for p in parameters)
    return torch.optim.SGD(parameters, lr=rate, weight_decay=decay, fused=fused, foreach=None if fused else True)


def is_capturable(stepper: torch.optim.Optimizer | RowSparse) -> bool:
    """Return whether a CUDA graph can contain its step. PyTorch's optimizers are not built for that here."""
    return getattr(stepper, "capturable", False)


@torch.no_grad()
def finish_gradients(settings: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Set missing gradients to zero and clip all gradients, without synchronization.

    PyTorch would skip a parameter without a gradient, including its weight decay. Clipping multiplies the gradients
    with min(1, clip_norm / (norm + 1e-6)).
    """
    parameters = list(parameters)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if not settings.clip_norm:
        return
    values = []
    for parameter in parameters:
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # duplicate rows must be summed before they are squared
            values.append(parameter.grad.values())
        else:
            values.append(parameter.grad)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values, dtype=at_least_float32(values[0]).dtype)))
    torch._foreach_mul_(values, (settings.clip_norm / (norm + 1e-6)).clamp(max=1.0))


def descend(
    loss: Tensor,
    settings: Optimizer,
    optimizer: torch.optim.Optimizer | RowSparse,
    parameters: Iterable[nn.Parameter],
    rate: float | None = None,
) -> None:
    """Take one step along the gradient of the loss.

    Args:
        loss: The loss, with its graph.
        settings: The optimizer's settings.
        optimizer: The optimizer.
        parameters: Its parameters, which are trained. No gradient is computed for others.
        rate: A learning rate for this step instead of the settings' one; row-sparse optimizers refuse it.
    """
    check_rate(rate, by_rows=isinstance(optimizer, RowSparse))
    parameters = list(parameters)
    loss.backward(inputs=parameters)
    finish_gradients(settings, parameters)
    for group in optimizer.param_groups if rate is not None else ():
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)  # gradients are as large as the parameters, so they are freed between steps
