"""The language model of SOHSM section 4.2: one embedding, one LSTM layer and any output layer."""

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
    """Settings of the language model below its output layer.

    Attributes:
        embedding: Width of the word vectors.
        hidden: Width of the LSTM, equal to `dim` of the output layer.
        optimizer: Settings of the optimizer.
        seed: Seed of the initial parameters, of re-organizations and of the random inputs of the loss.
    """

    network: ClassVar[str] = "language_model"

    embedding: int = 512
    hidden: int = 512
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0

    def body_shapes(self, spec: LayerSpec) -> Shapes:
        """Return the shapes of the canonical parameters below the output layer: `embedding` and those of the LSTM."""
        return {"embedding": (spec.vocab, self.embedding), **lstm.shapes("lstm", self.embedding, self.hidden)}

    def initial_body(self, spec: LayerSpec) -> Arrays:
        """Return initial float64 parameters below the output layer, the same for all frameworks.

        Embeddings are uniform in +-0.1.
        """
        rng = np.random.default_rng([self.seed, 2])
        embedding_VE = uniform(rng, 0.1, (spec.vocab, self.embedding))
        return {"embedding": embedding_VE, **lstm.initial("lstm", self.embedding, self.hidden, rng)}


class LanguageModel(Network[LanguageModelConfig]):
    """LSTM language model with any output layer, trained by truncated back-propagation with carried state."""

    NAME = "the language model"
    ROW_SPARSE = True
    DECAYS_PARTS = True

    def __init__(self, spec: LayerSpec, config: LanguageModelConfig) -> None:
        if spec.dim != config.hidden:
            raise BadInput(f"the layer's dim={spec.dim} differs from the LSTM's hidden={config.hidden}: allowed: equal")
        super().__init__(spec, config)

    @abstractmethod
    def step(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> SupportsFloat:
        """Take one optimizer step, and return the mean loss before it in nats per token.

        `float()` of the result waits for the device; until then, work may still be in progress. With `carry`, the LSTM
        starts from the final state of the last step, without a gradient through it. Otherwise it starts from zeros.
        """

    def evaluate(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> dict[str, float]:
        """Return sums over the tokens in nats: "nll", and for a two-level layer also "cluster_nll" (equation 5).

        `carry` is that of `nll_parts`.
        """
        sums = [float(part_N.sum(dtype=np.float64)) for part_N in self.nll_parts(inputs_BT, targets_BT, carry=carry)]
        return {"nll": sum(sums)} | ({"cluster_nll": sums[0]} if len(sums) > 1 else {})

    @abstractmethod
    def nll_parts(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> tuple[NDArray, ...]:
        """Return the negative log-likelihood of each target in nats, (B*T,), batch-major.

        A two-level layer returns it in two parts: that of the cluster, and that of the word in its cluster. `carry`
        refers to the last call of `nll_parts`. The carried state of training stays the same.
        """

    @abstractmethod
    def hidden(self, inputs_BT: NDArray) -> NDArray:
        """Return hidden vectors (B*T, D) from zero state, batch-major, as a trained layer reads them in decoding."""

    @abstractmethod
    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Read prompts (B, T) from zero state and keep the states after them.

        Returns log-probabilities and ids (B, K) of the exact top k next words, as `decoding.NextWords` requires.
        """

    @abstractmethod
    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Read one word after each kept state `rows_R`, and keep the resulting states instead.

        Returns log-probabilities and ids (R, K) as `prime` does.
        """

    def reorganize(self) -> tuple[NDArray, NDArray] | None:
        """Give a self-organizing layer new clusters from its statistics, moving word vectors and optimizer state.

        Returns the cluster of each word (V,) before and after, or None for a layer that does not organize itself.
        """
        return None

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has completed all pending work."""
