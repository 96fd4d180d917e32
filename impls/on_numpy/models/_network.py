"""Base class of the networks in NumPy: float64 parameters under canonical names."""

from __future__ import annotations

import numpy as np

from vocabench.impls.models.network import AnyConfig, Network
from vocabench.impls.on_numpy.oracle import OracleLayer
from vocabench.impls.spec import Arrays, LayerSpec


class InFloat64(Network[AnyConfig]):
    """Mixin that holds the parameters of a network in float64 and shares them with the output layer.

    It comes before the network in the list of base classes.
    """

    def __init__(self, spec: LayerSpec, config: AnyConfig, layer: OracleLayer) -> None:
        super().__init__(spec, config)
        self.layer = layer
        self._load(self.initial_parameters())

    def parameters(self) -> Arrays:
        return {name: value.copy() for name, value in self.params.items()}

    def _load(self, params: Arrays) -> None:
        self.params = {name: np.array(value, dtype=np.float64) for name, value in params.items()}
        self.layer.share(self.params)
        self._begin()

    def _begin(self) -> None:
        """Reset what depends on new parameters, such as the optimizer and the states of sequences."""
