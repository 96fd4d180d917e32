"""The encoder-decoder of SOHSM section 5.2: two LSTM layers, attention over the source, any output layer.

    e_1 .. e_S = LSTM(source words);  s_1 .. s_T = LSTM(end, y_1 .. y_{T-1}), from the encoder's last state
    a_ts = softmax over s of s_t W_a e_s;  c_t = sum over s of a_ts e_s;  h_t = tanh(W_c [c_t; s_t])
    loss = -log P(y_t | h_t), or the layer's training loss; y_T is the end

The paper does not specify the attention. Here it is the global one of Luong et al. 2015 (arXiv 1508.04025, equations 5,
7 and 8, score "general"). It does not feed its output back to the decoder, so the decoder's states of all steps can be
computed first.

Shape letters: B pairs, S source positions, T target positions, R decoded rows.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.models import lstm
from vocabench.impls.models.network import Transcriber
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays, LayerSpec, Shapes
from vocabench.impls.uniform import uniform

PADDING = -1  # at the positions of a source or a summary beyond its last word


@dataclass(frozen=True)
class SummarizerConfig:
    """Settings of the summarizer below its output layer.

    Attributes:
        sources: Number of words in the source vocabulary; the vocabulary of summaries is that of the output layer.
        end: Word that ends a summary; the decoder reads it before the first word.
        embedding: Width of the word vectors.
        hidden: Width of both LSTMs, equal to `dim` of the output layer.
        optimizer: Settings of the optimizer.
        seed: Seed of the initial parameters and of the random inputs of the loss.
    """

    network: ClassVar[str] = "summarizer"

    sources: int
    end: int
    embedding: int = 512
    hidden: int = 512
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0

    def body_shapes(self, spec: LayerSpec) -> Shapes:
        """Return the shapes of the canonical parameters below the output layer.

        The LSTMs "encoder" and "decoder" have the parameters of `impls/models/lstm.py`. W_a is `attention_weight`, and
        W_c is `combine_weight`, whose first H columns multiply c_t.
        """
        return {
            "source_embedding": (self.sources, self.embedding),
            **lstm.shapes("encoder", self.embedding, self.hidden),
            "target_embedding": (spec.vocab, self.embedding),
            **lstm.shapes("decoder", self.embedding, self.hidden),
            "attention_weight": (self.hidden, self.hidden),
            "combine_weight": (self.hidden, 2 * self.hidden),
        }

    def initial_body(self, spec: LayerSpec) -> Arrays:
        """Return initial float64 parameters below the output layer, the same for all frameworks.

        Embeddings are uniform in +-0.1, and the weights of the attention in +-1/sqrt(fan in).
        """
        rng = np.random.default_rng([self.seed, 9])
        shapes = self.body_shapes(spec)

        def drawn(name: str, bound: float) -> Arrays:
            return {name: uniform(rng, bound, shapes[name])}

        return {
            **drawn("source_embedding", 0.1),
            **lstm.initial("encoder", self.embedding, self.hidden, rng),
            **drawn("target_embedding", 0.1),
            **lstm.initial("decoder", self.embedding, self.hidden, rng),
            **drawn("attention_weight", self.hidden**-0.5),
            **drawn("combine_weight", (2 * self.hidden) ** -0.5),
        }


class Summarizer(Transcriber[SummarizerConfig]):
    """Encoder-decoder with any output layer.

    Sources and targets are word ids, with `PADDING` beyond the last word. None is empty. A target includes its end.
    """

    NAME = "the summarizer"

    def __init__(self, spec: LayerSpec, config: SummarizerConfig) -> None:
        if spec.dim != config.hidden:
            raise BadInput(f"the layer's dim={spec.dim} differs from the LSTMs' hidden={config.hidden}: allowed: equal")
        if config.sources < 1:
            raise BadInput(f"sources={config.sources}: allowed: a whole number from 1")
        super().__init__(spec, config)

    @abstractmethod
    def step(self, sources_BS: NDArray, targets_BT: NDArray) -> SupportsFloat:
        """Take one optimizer step, and return the mean loss before it in nats per token.

        `float()` of the result waits for the device.
        """

    @abstractmethod
    def evaluate(self, sources_BS: NDArray, targets_BT: NDArray) -> float:
        """Return the sum of -log P over the words of the targets in nats, ends included."""

    @abstractmethod
    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Read sources (B, S) and keep the states after them.

        Returns log-probabilities and ids (B, K) of the exact top k first words, best first.
        """
