"""The optimizer that the settings of a task describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vocabench.impls.optimizers import Optimizer


def optimizer_of(settings: Mapping[str, Any]) -> Optimizer:
    """Read `optimizer` and `learning_rate`, and those of the other settings that the task has."""
    decayed = settings.get("weight_decay_on", "all")
    return Optimizer(
        name=settings["optimizer"],
        learning_rate=settings["learning_rate"],
        weight_decay=settings.get("weight_decay", 0.0),
        clip_norm=settings.get("clip_norm", 0.0),
        decayed=() if decayed == "all" else (decayed,),
        epsilon=1e-8 if settings["optimizer"] == "adam" else 1e-10,
    )
