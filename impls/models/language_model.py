"""The language model of SOHSM section 4.2: one embedding, one LSTM layer, any output layer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.models import lstm
from vocabench.impls.models.network import Network
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays, LayerSpec, Shapes
from vocabench.impls.uniform import uniform


@dataclass(frozen=True)
class LanguageModelConfig:
    """The network of SOHSM section 4.2: one embedding, one LSTM layer, an output layer.

    Attributes:
        embedding: Width of a word's vector.
        hidden: Width of the LSTM, which is the output layer's `dim`.
        optimizer: Its settings.
        seed: Of the initial parameters, of re-organizations and of the loss's random inputs.
    """

    network: ClassVar[str] = "language_model"

    embedding: int = 512
    hidden: int = 512
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0

    def body_shapes(self, spec: LayerSpec) -> Shapes:
        """Canonical parameters below the output layer: `embedding`, and those of `impls/models/lstm.py` for "lstm"."""
        return {"embedding": (spec.vocab, self.embedding), **lstm.shapes("lstm", self.embedding, self.hidden)}

    def initial_body(self, spec: LayerSpec) -> Arrays:
        """Float64 parameters below the output layer, the same for every framework; embeddings uniform in +-0.1."""
        rng = np.random.default_rng([self.seed, 2])
        embedding_VE = uniform(rng, 0.1, (spec.vocab, self.embedding))
        return {"embedding": embedding_VE, **lstm.initial("lstm", self.embedding, self.hidden, rng)}


class LanguageModel(Network[LanguageModelConfig]):
    """An LSTM language model with any output layer, trained by truncated back-propagation with carried state."""

    NAME = "the language model"
    ROW_SPARSE = True

    def __init__(self, spec: LayerSpec, config: LanguageModelConfig) -> None:
        if spec.dim != config.hidden:
            raise BadInput(f"the layer's dim={spec.dim} differs from the LSTM's hidden={config.hidden}: allowed: equal")
        super().__init__(spec, config)

    @abstractmethod
    def step(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> SupportsFloat:
        """One optimizer step; the mean loss in nats per token before it.

        `float()` of what returns waits for the device; before that, work may be under way. With `carry`, the LSTM
        starts from the final state of the last step (no gradient through it), else from zeros.
        """

    @abstractmethod
    def evaluate(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> dict[str, float]:
        """Sums over the tokens, in nats: "nll", and for a two-level layer also "cluster_nll" (equation 5).

        `carry` refers to the last call of `evaluate`: training's carried state is not touched.
        """

    @abstractmethod
    def hidden(self, inputs_BT: NDArray) -> NDArray:
        """(B*T, D) hidden vectors from zero state, batch-major: what a trained layer meets when it decodes."""

    @abstractmethod
    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Read prompts (B, T) from zero state, and keep the states after them: log-probabilities and ids (B, K) of the
        exact k likeliest next words. With `extend`, what `vocabench.impls.models.decoding` searches with."""

    @abstractmethod
    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Go on from the kept states of `rows_R` with a word each, and keep what follows: as `prime`, (R, K)."""

    def reorganize(self) -> tuple[NDArray, NDArray] | None:
        """Give a self-organizing layer new clusters from its statistics, moving word vectors and optimizer state.

        Returns the cluster of each word (V,) before and after, or None for a layer that does not organize itself.
        """
        return None

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all that was asked."""
