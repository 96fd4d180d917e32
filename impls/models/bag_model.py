"""The model of word2vec and paragraph vectors: the mean of a bag of input vectors is what an output layer reads.

    h = mean over the inputs i of the bag of v_i;  loss = -log P(w | h), or the layer's training loss

CBOW's bag is the context of w, skip-gram's the one word next to it (Mikolov et al. 2013, arXiv 1301.3781), PV-DBOW's
the document that w stands in (Le and Mikolov 2014, arXiv 1405.4053). Shape letters: I inputs, J places of a bag.
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
    """
    Attributes:
        inputs: How many input vectors there are: of words, or of documents.
        optimizer: Its settings.
        seed: Of the initial parameters and of the loss's random inputs.
    """

    network: ClassVar[str] = "bag_model"

    inputs: int
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0

    def body_shapes(self, spec: LayerSpec) -> Shapes:
        """Canonical parameters below the output layer: `input` (I, D)."""
        return {"input": (self.inputs, spec.dim)}

    def initial_body(self, spec: LayerSpec) -> Arrays:
        """Float64, the same for every framework; input vectors uniform in +-0.5 / D, as word2vec's."""
        bound = 0.5 / spec.dim
        return {"input": uniform(np.random.default_rng([self.seed, 8]), bound, (self.inputs, spec.dim))}


class BagModel(Network[BagModelConfig]):
    """Input vectors below any output layer."""

    NAME = "the bag model"

    def __init__(self, spec: LayerSpec, config: BagModelConfig) -> None:
        if config.inputs < 1:
            raise BadInput(f"inputs={config.inputs}: allowed: a whole number from 1")
        super().__init__(spec, config)

    @abstractmethod
    def step(self, bags_NJ: NDArray, targets_N: NDArray) -> SupportsFloat:
        """One optimizer step; the mean training loss in nats before it. A bag's places beyond its last input hold -1;
        none is empty."""

    @abstractmethod
    def evaluate(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        """The sum of -log P(target | bag), in nats."""
