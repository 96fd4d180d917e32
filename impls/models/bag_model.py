"""The model of word2vec and paragraph vectors: an output layer on the mean of a bag of input vectors.

    h = mean over the inputs i of the bag of v_i;  loss = -log P(w | h), or the layer's training loss

The bag of CBOW is the context of w, and that of skip-gram is one neighbouring word (Mikolov et al. 2013, arXiv
1301.3781). The bag of PV-DBOW is the document that contains w (Le and Mikolov 2014, arXiv 1405.4053).

Shape letters: I inputs, J positions of a bag.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.models.decisions import NO_SQUARES, Decider, Decisions, Squares, parameter_of
from vocabench.impls.models.network import Network
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays, LayerSpec, Shapes, check_ids, check_words
from vocabench.impls.uniform import uniform

_FIRST_SQUARE = 1e-6  # bounds the first step of a vector, whose gradient may be tiny


@dataclass(frozen=True)
class BagModelConfig:
    """Settings of the bag model below its output layer.

    Attributes:
        inputs: Number of input vectors, which stand for words or documents.
        optimizer: Settings of the optimizer.
        seed: Seed of the initial parameters and of the random inputs of the loss.
        frozen_output: Whether a step changes the input vectors only, as when vectors of new documents are inferred.
    """

    network: ClassVar[str] = "bag_model"

    inputs: int
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0
    frozen_output: bool = False

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

    def step_by_example(
        self,
        bags_NJ: NDArray,
        targets_G: NDArray,
        rates: tuple[float, float],
        *,
        group_N: NDArray | None = None,
        threads: int = 1,
        adagrad: bool = False,
    ) -> SupportsFloat:
        """Take one step of SGD for each example in turn, as word2vec does, and return their mean loss in nats.

        The loss of an example is that before its own step. The optimizer of the configuration is not used.
        With `adagrad`, a vector's step is divided by the root of G, where G sums the mean squares of its gradients up
        to now (row-wise Adagrad, after Duchi et al. 2011). The sums are kept from call to call.

        Args:
            bags_NJ: Inputs (N, J) of each example, at least one; -1 where there is none.
            targets_G: Target of each group of examples. The examples of a group also share their sampled words, which
                are then read once for several steps (Ji et al. 2016, arXiv 1604.04661).
            rates: The learning rate falls linearly from the first to the second, which the example after the last one
                would have.
            group_N: Group of each example; by default each example is a group of its own.
            threads: Threads that share the examples and change the same vectors without locks (Recht et al. 2011,
                "Hogwild"). With more than one, the result differs from run to run.
            adagrad: Whether each vector has a rate of its own, which falls with its gradients.

        Raises:
            BadInput: The layer's loss is no sum of binary decisions (`models/decisions.py`), the output layer is
                frozen, an id is out of range, or an example has no input.
            Unsupported: There are no C++ kernels for the device and dtype.
        """
        if self.config.frozen_output:
            raise BadInput("steps for single examples with frozen_output=True: allowed: False")
        if group_N is None:
            group_N = np.arange(len(targets_G))
        check_ids("targets", targets_G, self.spec.vocab)
        check_ids("groups", group_N, len(targets_G))
        check_words("bags", bags_NJ, self.config.inputs, lowest=-1)
        if bags_NJ.ndim != 2 or len(bags_NJ) != len(group_N):
            raise BadInput(f"bags have shape {bags_NJ.shape}: allowed: ({len(group_N)}, J), a row for each example")
        if len(empty := np.flatnonzero(bags_NJ.max(axis=1, initial=-1) < 0)):
            raise BadInput(f"bags[{empty[0]}] holds no input: allowed: at least one for each example")
        bags_NJ, targets_G, group_N = (np.ascontiguousarray(ids, np.int32) for ids in (bags_NJ, targets_G, group_N))
        extra = self.next_extra(tokens=len(targets_G))
        decisions = self._decider.decisions(targets_G, group_N, extra)
        squares = self._squares if adagrad else NO_SQUARES
        return self._step_by_example(bags_NJ, decisions, rates, squares, threads)

    @cached_property
    def _squares(self) -> Squares:
        rows, _ = self.spec.parameter_shapes()[parameter_of(self.spec)]
        dtype = np.float64 if self.spec.storage == "float64" else np.float32
        return Squares(*(np.full(count, _FIRST_SQUARE, dtype) for count in (self.config.inputs, rows)))

    @cached_property
    def _decider(self) -> Decider:
        return Decider(self.spec)

    @abstractmethod
    def _step_by_example(
        self,
        bags_NJ: NDArray[np.int32],
        decisions: Decisions,
        rates: tuple[float, float],
        squares: Squares,
        threads: int,
    ) -> SupportsFloat:
        """Take the steps of `step_by_example` for these decisions."""

    @abstractmethod
    def evaluate(self, bags_NJ: NDArray, targets_N: NDArray) -> float:
        """Return the sum of -log P(target | bag) in nats."""
