"""The model of word2vec and paragraph vectors: the mean of a bag of input vectors is what an output layer reads.

    h = mean over the inputs i of the bag of v_i;  loss = -log P(w | h), or the layer's training loss

CBOW's bag is the context of w, skip-gram's the one word next to it (Mikolov et al. 2013, arXiv 1301.3781), PV-DBOW's
the document that w stands in (Le and Mikolov 2014, arXiv 1405.4053). Shape letters: I inputs, J places of a bag.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from impls.errors import BadInput
from impls.optimizers import Optimizer
from impls.spec import Arrays, LayerSpec, Shapes, check_parameters


@dataclass(frozen=True)
class BagModelConfig:
    """
    Attributes:
        inputs: How many input vectors there are: of words, or of documents.
        optimizer: Its settings.
        seed: Of the initial parameters and of the loss's random inputs.
    """

    inputs: int
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0


class BagModel(ABC):
    """Input vectors below any output layer. Parameters: `input` (I, D), and `output.<name>` for those of the layer."""

    def __init__(self, spec: LayerSpec, config: BagModelConfig) -> None:
        if config.inputs < 1:
            raise BadInput(f"inputs={config.inputs}: allowed: a whole number from 1")
        self.spec = spec
        self.config = config
        self.extra_of_steps = spec.extra_of_steps(config.seed)

    def parameter_shapes(self) -> Shapes:
        output = {f"output.{name}": shape for name, shape in self.spec.parameter_shapes().items()}
        return {"input": (self.config.inputs, self.spec.dim), **output}

    def initial_parameters(self) -> Arrays:
        """Float64, the same for every framework; input vectors uniform in +-0.5 / D, as word2vec's."""
        rng = np.random.default_rng([self.config.seed, 8])
        output = {f"output.{name}": value for name, value in self.spec.initial_parameters().items()}
        bound = 0.5 / self.spec.dim
        return {"input": rng.uniform(-bound, bound, (self.config.inputs, self.spec.dim)), **output}

    def load(self, params: Mapping[str, ArrayLike]) -> None:
        """Take parameters in canonical form; raises `BadInput` on a missing, extra or misshapen one."""
        self._load(check_parameters("the bag model", self.parameter_shapes(), params))

    @abstractmethod
    def parameters(self) -> Arrays: ...

    @abstractmethod
    def _load(self, params: Arrays) -> None: ...

    @abstractmethod
    def step(self, bags_NJ: NDArray, targets_N: NDArray) -> SupportsFloat:
        """One optimizer step; the mean training loss in nats before it. A bag's places beyond its last input hold -1;
        none is empty."""

    @abstractmethod
    def evaluate(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        """The sum of -log P(target | bag), in nats."""
