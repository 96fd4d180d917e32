"""The base of the models' networks: an output layer on top, and parameters with canonical names."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vocabench.impls.on_torch.device import to_numpy
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.spec import Arrays


class Network(nn.Module):
    """Base of the networks below any output layer.

    Attributes:
        NAMES: The mapping from canonical parameter names below the output layer to those of this module.
        output: The output layer.
    """

    NAMES: ClassVar[dict[str, str]]
    output: OutputLayer

    def names(self) -> dict[str, str]:
        return self.NAMES

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def read(self) -> Arrays:
        """Return copies of all trained parameters in canonical form."""
        parameters = {name: p.detach() for name, p in self.trained().items()}
        output = self.output.to_canonical(
            {name.removeprefix("output."): value for name, value in parameters.items() if name.startswith("output.")}
        )
        tensors = {name: parameters[native_name] for name, native_name in self.names().items()}
        tensors |= {f"output.{name}": value for name, value in output.items()}
        return {name: np.array(to_numpy(value)) for name, value in tensors.items()}

    @torch.no_grad()
    def write(self, params: Arrays) -> None:
        """Load all trained parameters from `params`, in canonical form, and remove them from it."""
        parameters = self.trained()

        def taken(name: str) -> Tensor:
            # Removed, so that each float64 array is freed once it has been read.
            return torch.from_numpy(np.require(params.pop(name), requirements=["C", "W"]))

        for name, native_name in self.names().items():
            parameter = parameters[native_name]
            parameter.copy_(taken(name).view_as(parameter))
        dtype = next(iter(parameters.values())).dtype
        output = {name.removeprefix("output."): taken(name).to(dtype) for name in list(params)}
        self.output.load_canonical(output)
