"""The optimizers over the rows alone that a gradient reaches, with the same result as a step over all of them.

A dense step reads and writes every row of a (V, D) parameter and of its slots, for a batch that touches a few
thousand. Here a row is updated when a sparse gradient reaches it. The steps it missed, whose gradient was zero, change
nothing with Adagrad or plain SGD without weight decay. With weight decay, or Adam, they do: `make_up` replays them for
the rows that the next forward pass reads, so that the arithmetic is that of the dense step, done later.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vocabench.impls.on_torch.layer import OutputLayer, at_least_float32
from vocabench.impls.optimizers import Optimizer

# The slots' names in PyTorch's own optimizers, whose state this one shares.
_SLOTS = {"adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq"), "sgd": ()}


class RowSparse:
    """Sparse gradients by row, all others by `dense`.

    Attributes:
        state: The slots of every parameter, as in `torch.optim.Optimizer.state`.
    """

    def __init__(self, settings: Optimizer, parameters: Iterable[nn.Parameter], dense: torch.optim.Optimizer) -> None:
        self.settings, self.parameters, self.dense = settings, list(parameters), dense
        self.state = dense.state
        self.steps = 0
        self._seen: dict[nn.Parameter, Tensor] = {}  # (V,) the last step that each row has taken part in

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.dense.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                grad = parameter.grad.coalesce()
                rows_U = grad.indices()[0]
                self._update(parameter, rows_U, grad.values(), torch.full_like(rows_U, self.steps))
                parameter.grad = None
        self.dense.step()

    @torch.no_grad()
    def make_up(self, parameter: nn.Parameter, rows: Tensor) -> None:
        """Bring rows, in any shape and repeated or not, to the present step: before a forward pass reads them."""
        if self.settings.idle_without_gradient:
            return
        if parameter not in self._seen:
            self._seen[parameter] = torch.zeros(len(parameter), dtype=torch.int64, device=parameter.device)
        rows_U = rows.unique()
        step_U = self._seen[parameter][rows_U] + 1
        while (missed_U := step_U <= self.steps).any():
            rows_U, step_U = rows_U[missed_U], step_U[missed_U]
            self._update(parameter, rows_U, None, step_U)
            step_U = step_U + 1

    def make_up_for(self, layer: OutputLayer, targets_N: Tensor, **extra: Tensor) -> None:
        """`make_up` for what the layer's loss reads."""
        if not self.settings.idle_without_gradient:
            for name, rows in layer.rows_read(targets_N, **extra).items():
                self.make_up(layer.get_parameter(name), rows)

    def catch_up(self) -> None:
        """Bring every row to the present step: before parameters are read whole, or rows are moved."""
        for parameter in self._seen:
            self.make_up(parameter, torch.arange(len(parameter), device=parameter.device))

    def _update(self, parameter: nn.Parameter, rows_U: Tensor, grad: Tensor | None, step_U: Tensor) -> None:
        """One step of some rows; `step_U` is the number of it. Half precision is computed in float32, as the fused
        kernels do."""
        settings, state = self.settings, self.state[parameter]
        value = at_least_float32(parameter[rows_U])
        decay = settings.weight_decay * value
        grad = decay if grad is None else at_least_float32(grad) + decay
        for name in _SLOTS[settings.name]:
            if name not in state:
                state[name] = torch.zeros_like(parameter)
        slots = [at_least_float32(state[name][rows_U]) for name in _SLOTS[settings.name]]
        if settings.name == "adagrad":
            slots[0].addcmul_(grad, grad)
            value.addcdiv_(grad, slots[0].sqrt().add_(settings.epsilon), value=-settings.learning_rate)
        elif settings.name == "adam":
            slots[0].lerp_(grad, 1 - settings.beta1)
            slots[1].mul_(settings.beta2).addcmul_(grad, grad, value=1 - settings.beta2)
            step = step_U.view(-1, *[1] * (value.dim() - 1)).to(torch.float64)
            first_hat = slots[0] / (1 - settings.beta1**step)
            second_hat = slots[1] / (1 - settings.beta2**step)
            value -= settings.learning_rate * first_hat / (second_hat.sqrt() + settings.epsilon)
        else:
            value.sub_(grad, alpha=settings.learning_rate)
        parameter.index_copy_(0, rows_U, value.to(parameter.dtype))
        for name, slot in zip(_SLOTS[settings.name], slots, strict=True):
            state[name].index_copy_(0, rows_U, slot.to(state[name].dtype))
        if parameter in self._seen:
            self._seen[parameter].index_copy_(0, rows_U, step_U)
