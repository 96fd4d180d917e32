"""The model of word2vec and paragraph vectors: an output layer on the mean of a bag of input vectors.

    h = mean over the inputs i of the bag of v_i;  loss = -log P(w | h), or the layer's training loss

The bag of CBOW is the context of w, and that of skip-gram is one neighbouring word (Mikolov et al. 2013, arXiv
1301.3781). The bag of PV-DBOW is the document that contains w (Le and Mikolov 2014, arXiv 1405.4053).

Shape letters: I inputs, J positions of a bag.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.models.network import Network
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays, LayerSpec, Shapes
from vocabench.impls.uniform import uniform


@dataclass(frozen=True)
class BagModelConfig:
    """Settings of the bag model below its output layer.

    Attributes:
        inputs: Number of input vectors, which stand for words or documents.
        optimizer: Settings of the optimizer.
        seed: Seed of the initial parameters and of the random inputs of the loss.
    """

    network: ClassVar[str] = "bag_model"

    inputs: int
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0

    def body_shapes(self, spec: LayerSpec) -> Shapes:
        """Return the shapes of the canonical parameters below the output layer: `input` (I, D)."""
        return {"input": (self.inputs, spec.dim)}

    def initial_body(self, spec: LayerSpec) -> Arrays:
        """Return initial float64 parameters, the same for all frameworks.

        The input vectors are uniform in +-0.5 / D, as in word2vec.
        """
        bound = 0.5 / spec.dim
        return {"input": uniform(np.random.default_rng([self.seed, 8]), bound, (self.inputs, spec.dim))}


class BagModel(Network[BagModelConfig]):
    """Mean of input vectors below any output layer."""

    NAME = "the bag model"

    def __init__(self, spec: LayerSpec, config: BagModelConfig) -> None:
        if config.inputs < 1:
            raise BadInput(f"inputs={config.inputs}: allowed: a whole number from 1")
        super().__init__(spec, config)

    @abstractmethod
    def step(self, bags_NJ: NDArray, targets_N: NDArray) -> SupportsFloat:
        """Take one optimizer step, and return the mean training loss in nats before it.

        The positions of a bag beyond its last input hold -1. No bag may be empty.
        """

    @abstractmethod
    def evaluate(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        """Return the sum of -log P(target | bag) in nats."""
