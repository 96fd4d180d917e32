"""What every trained network of ours is: a body of its own below any output layer, with canonical parameters."""

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
    """The settings of a network below its output layer.

    Attributes:
        network: The module of each framework's `models` package that holds the network, as `NETWORK`.
    """

    network: ClassVar[str]

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def seed(self) -> int: ...

    def body_shapes(self, spec: LayerSpec) -> Shapes:
        """Canonical parameters below the output layer."""
        ...

    def initial_body(self, spec: LayerSpec) -> Arrays:
        """Float64 parameters below the output layer, the same for every framework."""
        ...


class TranscriberConfig(Config, Protocol):
    @property
    def end(self) -> int: ...


AnyConfig = TypeVar("AnyConfig", bound=Config)
AnyTranscriberConfig = TypeVar("AnyTranscriberConfig", bound=TranscriberConfig)


class Network(Precise, ABC, Generic[AnyConfig]):
    """Parameters are named as in the configuration's `body_shapes`, and `output.<name>` for those of the layer."""

    NAME: ClassVar[str]  # as messages call it
    ROW_SPARSE: ClassVar[bool] = False  # whether its step can update rows alone

    def __init__(self, spec: LayerSpec, config: AnyConfig) -> None:
        if config.optimizer.row_sparse and not self.ROW_SPARSE:
            raise BadInput(f"optimizer row_sparse=True in {self.NAME}: allowed: False")
        self.spec = spec
        self.config = config
        self._draws = np.random.default_rng([config.seed, 7])

    def parameter_shapes(self) -> Shapes:
        output = {f"output.{name}": shape for name, shape in self.spec.parameter_shapes().items()}
        return {**self.config.body_shapes(self.spec), **output}

    def initial_parameters(self) -> Arrays:
        output = {f"output.{name}": value for name, value in self.spec.initial_parameters().items()}
        return {**self.config.initial_body(self.spec), **output}

    def next_extra(self, before_N: NDArray | None = None) -> Arrays:
        """The loss's random inputs of the next step, the same in every framework; `before_N` as for
        `LayerSpec.draw_extra`."""
        return self.spec.draw_extra(self._draws, before_N)

    def load(self, params: Mapping[str, ArrayLike]) -> None:
        """Take parameters in canonical form; raises `BadInput` on a missing, extra or misshapen one."""
        self._load(check_parameters(self.NAME, self.parameter_shapes(), params, self.spec.storage))

    @abstractmethod
    def parameters(self) -> Arrays: ...

    @abstractmethod
    def _load(self, params: Arrays) -> None: ...


class Transcriber(Network[AnyTranscriberConfig]):
    """A network that writes words one after the other until the end, trained with teacher forcing."""

    def __init__(self, spec: LayerSpec, config: AnyTranscriberConfig) -> None:
        if not 0 <= config.end < spec.vocab:
            raise BadInput(f"end={config.end}: allowed: a word id from 0 to {spec.vocab - 1}")
        super().__init__(spec, config)

    def inputs_of(self, targets_BT: NDArray) -> NDArray[np.int32]:
        """(B, T) what the decoder reads: the end, then each target but the last; word 0 where there is padding."""
        inputs_BT = np.empty(targets_BT.shape, dtype=np.int32)
        inputs_BT[:, 0] = self.config.end
        inputs_BT[:, 1:] = np.maximum(targets_BT[:, :-1], 0)
        return inputs_BT

    def next_extra_for(self, targets_BT: NDArray) -> Arrays:
        """The loss's random inputs of a step on these targets: padding counts as no token, and stands after none."""
        return self.next_extra(self.inputs_of(targets_BT)[targets_BT >= 0])

    @abstractmethod
    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Begin to write: log-probabilities and ids (B, K) of the exact k likeliest first words, best first. With
        `extend`, what `vocabench.impls.models.decoding` searches with."""

    @abstractmethod
    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Go on from kept states `rows_R` with words `ids_R`, and keep the states after them: (R, K) as `prime`.

        Rows that go on from the same source stand together, as many for each source, sources in order: so what was
        read of the sources is held once, not once a row.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it."""


def network_class(framework: str, config: Config) -> Callable[..., Network[Any]]:
    """Return the framework's network for these settings. This imports the framework."""
    return importlib.import_module(f"vocabench.impls.on_{framework}.models.{config.network}").NETWORK
