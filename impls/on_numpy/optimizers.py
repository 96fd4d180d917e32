"""Formulas of the optimizers in float64, which define `impls/optimizers.py`."""

from __future__ import annotations

import numpy as np

from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays


class Updates:
    """State of one optimizer over named parameters, which it updates in place."""

    def __init__(self, optimizer: Optimizer, params: Arrays) -> None:
        self.optimizer = optimizer
        self.steps = 0
        start = optimizer.initial_accumulator if optimizer.name == "adagrad" else 0.0
        self.slots = [
            {name: np.full_like(value, start) for name, value in params.items()} for _ in range(optimizer.slots)
        ]

    def apply(self, params: Arrays, grads: Arrays) -> None:
        """Take one step: clip by the global norm, add weight decay, update. Gradients of other names are ignored."""
        settings = self.optimizer
        self.steps += 1
        scale = 1.0
        if settings.clip_norm:
            norm = np.sqrt(sum(float((grads[name] ** 2).sum()) for name in params))
            scale = min(1.0, settings.clip_norm / (norm + 1e-6))
        for name, param in params.items():
            grad = grads[name] * scale + settings.decay_of(name) * param
            if settings.name == "adagrad":
                (squares,) = (slot[name] for slot in self.slots)
                squares += grad**2
                param -= settings.learning_rate * grad / (np.sqrt(squares) + settings.epsilon)
            elif settings.name == "adam":
                first, second = (slot[name] for slot in self.slots)
                first += (1 - settings.beta1) * (grad - first)
                second += (1 - settings.beta2) * (grad**2 - second)
                first_hat = first / (1 - settings.beta1**self.steps)
                second_hat = second / (1 - settings.beta2**self.steps)
                param -= settings.learning_rate * first_hat / (np.sqrt(second_hat) + settings.epsilon)
            else:
                param -= settings.learning_rate * grad
