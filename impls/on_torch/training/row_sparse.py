"""The optimizers over only those rows that a gradient reaches, with the same result as steps over all rows.

A dense step reads and writes every row of a (V, D) parameter and its slots, although a batch reaches only a few
thousand rows. Here a row is updated when a sparse gradient reaches it. The steps that it missed had a zero gradient.
They change nothing with Adagrad or SGD without weight decay. With weight decay or Adam they do: `make_up` replays them
for the rows that the next forward pass reads, so that the arithmetic is the same as that of dense steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.tensors import at_least_float32
from vocabench.impls.optimizers import Optimizer

# The names of the slots in PyTorch's optimizers, whose state this one shares.
_SLOTS = {"adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq"), "sgd": ()}


class RowSparse:
    """An optimizer that updates only the rows of sparse gradients, and leaves dense gradients to `dense`.

    Attributes:
        state: Slots of each parameter, as in `torch.optim.Optimizer.state`.
    """

    def __init__(self, settings: Optimizer, parameters: Iterable[nn.Parameter], dense: torch.optim.Optimizer) -> None:
        self.settings, self.parameters, self.dense = settings, list(parameters), dense
        self.state = dense.state
        self.steps = 0
        self._seen: dict[nn.Parameter, Tensor] = {}  # (V,) last step that updated each row

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
        """Bring rows up to the current step before a forward pass reads them; any shape, possibly repeated."""
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
        """Call `make_up` for all rows that the layer's loss reads."""
        if not self.settings.idle_without_gradient:
            for name, rows in layer.rows_read(targets_N, **extra).items():
                self.make_up(layer.get_parameter(name), rows)

    def catch_up(self) -> None:
        """Bring all rows up to the current step before whole parameters are read or rows are moved."""
        for parameter in self._seen:
            self.make_up(parameter, torch.arange(len(parameter), device=parameter.device))

    def _update(self, parameter: nn.Parameter, rows_U: Tensor, grad: Tensor | None, step_U: Tensor) -> None:
        """Update rows by one step, whose number is `step_U`, in float32 for half precision, as fused kernels do."""
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
