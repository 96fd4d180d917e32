"""PyTorch's linear layer and cross-entropy under torch.compile. See
`impls/on_numpy/methods/compiled_cross_entropy.py`."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabench.impls.errors import Unsupported
from vocabench.impls.on_torch.summed_loss import SummedSoftmax
from vocabench.impls.on_torch.tensors import at_least_float32
from vocabench.impls.spec import LayerSpec


def _total(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, ignore_index: int) -> Tensor:
    logits_NV = at_least_float32(F.linear(hidden_ND, weight_VD, bias_V))
    return F.cross_entropy(logits_NV, targets_N, reduction="sum", ignore_index=ignore_index)


def _compiled() -> Callable[..., Tensor]:
    """Return the loss to compile. PyTorch limits how often a code object is recompiled, so each layer has a copy."""
    return torch.compile(FunctionType(_total.__code__.replace(), _total.__globals__), fullgraph=True)


class CompiledCrossEntropy(SummedSoftmax):
    """`F.cross_entropy(F.linear(...))`, compiled with torch.compile's default settings.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.

    Raises:
        Unsupported: torch.compile lacks what it needs to compile.
    """

    def __init__(self, spec: LayerSpec) -> None:
        _check_compiler(spec.method)
        super().__init__(spec)
        self._compiled = _compiled()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_compiled"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._compiled = _compiled()

    def total(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        return self._compiled(hidden_ND, self.weight, self.bias, targets_N, ignore_index)

    def formulation(self) -> str:
        return "torch.compile of cross_entropy(linear)"


def _check_compiler(method: str) -> None:
    """Check for a compiler and headers: torch.compile writes C++ that includes Python's headers, even for a GPU."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # PyTorch's choice
    headers = Path(sysconfig.get_path("include"))
    for requirement, is_there in (
        (f"a C++ compiler ({compiler})", shutil.which(compiler)),
        (f"Python's headers ({headers / 'Python.h'})", (headers / "Python.h").is_file()),
    ):
        if not is_there:
            raise Unsupported(f"{method} needs {requirement}, not found here: allowed: where torch.compile can compile")


LAYER = CompiledCrossEntropy
