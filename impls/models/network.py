"""Base classes of the trained networks: a body below any output layer, with canonical parameters."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.precision import Precise
from vocabench.impls.spec import Arrays, LayerSpec, Shapes, check_parameters


class Config(Protocol):
    """Settings of a network below its output layer.

    Attributes:
        network: Name of the module in each framework's `models` package that defines the network, as `NETWORK`.
    """

    network: ClassVar[str]

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def seed(self) -> int: ...

    def body_shapes(self, spec: LayerSpec) -> Shapes:
        """Return the shapes of the canonical parameters below the output layer."""
        ...

    def initial_body(self, spec: LayerSpec) -> Arrays:
        """Return initial float64 parameters below the output layer, the same for all frameworks."""
        ...


class TranscriberConfig(Config, Protocol):
    """Settings of a network that writes sequences, with the word that ends them."""

    @property
    def end(self) -> int: ...


AnyConfig = TypeVar("AnyConfig", bound=Config)
AnyTranscriberConfig = TypeVar("AnyTranscriberConfig", bound=TranscriberConfig)


class Network(Precise, ABC, Generic[AnyConfig]):
    """Trainable network with any output layer.

    Parameters are named as in the `body_shapes` of the configuration; those of the layer are named `output.<name>`.
    """

    NAME: ClassVar[str]  # name in messages
    ROW_SPARSE: ClassVar[bool] = False  # whether a step can update single rows
    DECAYS_PARTS: ClassVar[bool] = False  # whether weight decay can be that of some parameters

    def __init__(self, spec: LayerSpec, config: AnyConfig) -> None:
        if config.optimizer.row_sparse and not self.ROW_SPARSE:
            raise BadInput(f"optimizer row_sparse=True in {self.NAME}: allowed: False")
        if config.optimizer.decayed and not self.DECAYS_PARTS:
            raise BadInput(f"optimizer decayed={config.optimizer.decayed} in {self.NAME}: allowed: all parameters, ()")
        self.spec = spec
        self.config = config
        self._draws = np.random.default_rng([config.seed, 7])

    def parameter_shapes(self) -> Shapes:
        output = {f"output.{name}": shape for name, shape in self.spec.parameter_shapes().items()}
        return {**self.config.body_shapes(self.spec), **output}

    def initial_parameters(self) -> Arrays:
        output = {f"output.{name}": value for name, value in self.spec.initial_parameters().items()}
        return {**self.config.initial_body(self.spec), **output}

    def next_extra(self, tokens: int, before_N: NDArray | None = None) -> Arrays:
        """Draw the random inputs of the loss for the next step, the same in all frameworks.

        The arguments are described in `LayerSpec.draw_extra`.
        """
        return self.spec.draw_extra(self._draws, before_N, tokens=tokens)

    def load(self, params: Mapping[str, ArrayLike]) -> None:
        """Load parameters in canonical form.

        Raises:
            BadInput: A parameter is missing, unknown, or has the wrong shape.
        """
        self._load(check_parameters(self.NAME, self.parameter_shapes(), params, self.spec.storage))

    @abstractmethod
    def parameters(self) -> Arrays: ...

    @abstractmethod
    def _load(self, params: Arrays) -> None: ...


class Transcriber(Network[AnyTranscriberConfig]):
    """Network that writes one word after the other until the end, trained with teacher forcing."""

    def __init__(self, spec: LayerSpec, config: AnyTranscriberConfig) -> None:
        if not 0 <= config.end < spec.vocab:
            raise BadInput(f"end={config.end}: allowed: a word id from 0 to {spec.vocab - 1}")
        super().__init__(spec, config)

    def inputs_of(self, targets_BT: NDArray) -> NDArray[np.int32]:
        """Return the inputs (B, T) of the decoder: the end, then each target but the last; word 0 at padding."""
        inputs_BT = np.empty(targets_BT.shape, dtype=np.int32)
        inputs_BT[:, 0] = self.config.end
        inputs_BT[:, 1:] = np.maximum(targets_BT[:, :-1], 0)
        return inputs_BT

    def next_extra_for(self, targets_BT: NDArray) -> Arrays:
        """Draw the random inputs of the loss for a step on these targets, ignoring padding."""
        before_N = self.inputs_of(targets_BT)[targets_BT >= 0]
        return self.next_extra(len(before_N), before_N)

    @abstractmethod
    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Start decoding.

        Returns log-probabilities and ids (B, K) of the exact top k first words, best first, as `decoding.NextWords`
        requires.
        """

    @abstractmethod
    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Read words `ids_R` after the kept states `rows_R`, and keep the resulting states instead.

        Returns log-probabilities and ids (R, K) as `prime` does.

        Rows of the same source must be adjacent, with the same number of rows for each source, and with the sources in
        order. The encoded sources are therefore stored once, and not once per row.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has completed all pending work."""


def network_class(framework: str, config: Config) -> Callable[..., Network[Any]]:
    """Return the network class of the framework for these settings, importing the framework."""
    return importlib.import_module(f"vocabench.impls.on_{framework}.models.{config.network}").NETWORK
