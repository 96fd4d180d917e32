"""The settings of the optimizers, with the same meaning in every framework.

`impls/on_numpy/optimizers.py` has the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vocabench.impls.errors import BadInput, unknown

NAMES = ("adagrad", "adam", "sgd")


@dataclass(frozen=True)
class Optimizer:
    """Settings of an optimizer, with one definition where the optimizers of the frameworks differ.

    A step clips all gradients together by their global norm, adds weight decay to the gradient (L2, not decoupled), and
    then updates the parameters. Epsilon is added outside the square root, in Adam after the bias correction.

    Attributes:
        name: "adagrad", "adam" or "sgd".
        learning_rate: Step size.
        epsilon: Constant added to the root of the second moment.
        initial_accumulator: Adagrad's sum of squares before the first step.
        beta1, beta2: Decay rates of Adam.
        weight_decay: Factor of the parameter that is added to its clipped gradient.
        decayed: The parameters with weight decay, by what their canonical names start with; empty for all.
        clip_norm: Largest global gradient norm; gradients are scaled by min(1, clip_norm / (norm + 1e-6)). 0 disables
            clipping.
        row_sparse: Whether to update only the rows that a gradient reaches, if a layer or an embedding reaches few of
            them. The result is that of the dense step. Steps that a row misses cost nothing if
            `idle_without_gradient`.
    """

    name: str = "adagrad"
    learning_rate: float = 0.1
    epsilon: float = 1e-10
    initial_accumulator: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 1e-6
    clip_norm: float = 0.25
    row_sparse: bool = False
    decayed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise unknown("optimizer", self.name, NAMES)
        for setting in ("learning_rate", "epsilon", "initial_accumulator", "weight_decay", "clip_norm"):
            value = getattr(self, setting)
            if not (math.isfinite(value) and value >= 0):
                raise BadInput(f"optimizer {setting}={value!r}: allowed: a finite number from 0")
        for setting in ("beta1", "beta2"):
            value = getattr(self, setting)
            if not 0 <= value < 1:
                raise BadInput(f"optimizer {setting}={value!r}: allowed: from 0, below 1")

        if self.decayed and self.row_sparse:
            raise BadInput(f"optimizer decayed={self.decayed!r} with row_sparse=True: allowed: decay of all parameters")

    def decays(self, name: str) -> bool:
        """Return whether weight decay applies to the parameter with this canonical name."""
        return not self.decayed or name.startswith(self.decayed)

    def decay_of(self, name: str) -> float:
        """Return the weight decay of the parameter with this canonical name."""
        return self.weight_decay if self.decays(name) else 0.0

    @property
    def idle_without_gradient(self) -> bool:
        """Whether a step with a gradient of zero leaves a parameter and its slots unchanged."""
        return self.weight_decay == 0 and self.name != "adam"

    @property
    def slots(self) -> int:
        """The number of arrays of the size of the parameter that the optimizer keeps."""
        return {"adagrad": 1, "adam": 2, "sgd": 0}[self.name]


def check_rate(rate: object, *, by_rows: bool) -> None:
    """Refuse a learning rate for a single row-sparse step: missed steps of a row are made up for at the fixed rate."""
    if by_rows and rate is not None:
        raise BadInput("a step's own learning rate with row-sparse updates: allowed: row_sparse=False, or no rate")
