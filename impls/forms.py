"""The forms of a layer: the different ways in which a framework can compute the same function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CPU, GPU = "cpu", "gpu"


@dataclass(frozen=True)
class Form:
    """One way to compute a layer.

    Attributes:
        id: The name that `LayerSpec.form` asks for, such as "cpp".
        label: The description that rows and tables show, such as "C++ kernels".
        devices: The kinds of device that the form is meant for: "cpu", "gpu" or both.
        dtypes: The precisions of a `LayerSpec` that it supports; None for all of them.
        max_dim: The widest hidden vectors that it supports; None for any width.
        dim_multiple: The width of the hidden vectors must be a multiple of this.
        size: How much work the form does at a time, such as the logits of a block; 0 where it has no such size.
    """

    id: str
    label: str
    devices: tuple[str, ...] = (CPU, GPU)
    dtypes: tuple[str, ...] | None = None
    max_dim: int | None = None
    dim_multiple: int = 1
    size: int = 0

    def supports(self, dtype: str, dim: int) -> bool:
        """Return whether the form computes layers of this precision and width."""
        return (
            (self.dtypes is None or dtype in self.dtypes)
            and (self.max_dim is None or dim <= self.max_dim)
            and dim % self.dim_multiple == 0
        )

    def __str__(self) -> str:
        return self.label


def kind_of(device: str) -> str:
    """Return the kind of a device of the contract: "cpu", or "gpu" for "cuda" and "cuda:1"."""
    return CPU if device == "cpu" else GPU


def on_device(forms: Iterable[Form], device: str) -> tuple[Form, ...]:
    """Return the forms that are meant for `device`, in the order given.

    A layer lists its forms in order of preference. Forms for different kinds of device can therefore be listed in any
    order relative to each other: the first form that remains is the preferred one on this device.
    """
    return tuple(form for form in forms if kind_of(device) in form.devices)
