"""What the models' networks share: an output layer on top, and parameters under their canonical names."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vocabench.impls.on_torch import adapter
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.spec import Arrays


class Network(nn.Module):
    """Base of the networks below any output layer. `NAMES` are the canonical names of what is below it, to ours."""

    NAMES: ClassVar[dict[str, str]]
    output: OutputLayer

    def names(self) -> dict[str, str]:
        return self.NAMES

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def read(self) -> Arrays:
        """Copies of all trained parameters in canonical form."""
        own = {name: p.detach() for name, p in self.trained().items()}
        output = self.output.to_canonical(
            {name.removeprefix("output."): value for name, value in own.items() if name.startswith("output.")}
        )
        tensors = {name: own[ours] for name, ours in self.names().items()}
        tensors |= {f"output.{name}": value for name, value in output.items()}
        return {name: np.array(adapter.to_numpy(value)) for name, value in tensors.items()}

    @torch.no_grad()
    def write(self, params: Arrays) -> None:
        """Take all trained parameters out of `params`, in canonical form."""
        own = self.trained()

        def taken(name: str) -> Tensor:
            # Out of `params`, so that a million words' float64 arrays go as they are read.
            return torch.from_numpy(np.require(params.pop(name), requirements=["C", "W"]))

        for name, ours in self.names().items():
            own[ours].copy_(taken(name).view_as(own[ours]))
        dtype = next(iter(own.values())).dtype
        output = {name.removeprefix("output."): taken(name).to(dtype) for name in list(params)}
        self.output.load_canonical(output)
