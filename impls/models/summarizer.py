"""The encoder-decoder of SOHSM section 5.2: two LSTM layers, attention over the source's states, any output layer.

    e_1 .. e_S = LSTM(source words);  s_1 .. s_T = LSTM(end, y_1 .. y_{T-1}), from the encoder's last state
    a_ts = softmax over s of s_t W_a e_s;  c_t = sum over s of a_ts e_s;  h_t = tanh(W_c [c_t; s_t])
    loss = -log P(y_t | h_t), or the layer's training loss; the last y is the end

The attention is the global one of Luong et al. 2015 (arXiv 1508.04025, equations 5, 7 and 8, score "general"), which
reads no output of its own: the decoder's states of all steps come before it, at once. The paper names none.

Shape letters: B pairs, S source places, T target places, R decoded rows.
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

PADDING = -1  # in the places of a source or a summary beyond its last word


@dataclass(frozen=True)
class SummarizerConfig:
    """
    Attributes:
        sources: Words of the source's vocabulary; the summary's is the output layer's.
        end: The summary's word that ends it; the decoder reads it before the first word.
        embedding: Width of a word's vector.
        hidden: Width of both LSTMs, which is the output layer's `dim`.
        optimizer: Its settings.
        seed: Of the initial parameters and of the loss's random inputs.
    """

    network: ClassVar[str] = "summarizer"

    sources: int
    end: int
    embedding: int = 512
    hidden: int = 512
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0

    def body_shapes(self, spec: LayerSpec) -> Shapes:
        """Canonical parameters below the output layer: those of `impls/models/lstm.py` for "encoder" and "decoder";
        W_a is
        `attention_weight`, W_c is `combine_weight`, whose first H columns read c_t."""
        return {
            "source_embedding": (self.sources, self.embedding),
            **lstm.shapes("encoder", self.embedding, self.hidden),
            "target_embedding": (spec.vocab, self.embedding),
            **lstm.shapes("decoder", self.embedding, self.hidden),
            "attention_weight": (self.hidden, self.hidden),
            "combine_weight": (self.hidden, 2 * self.hidden),
        }

    def initial_body(self, spec: LayerSpec) -> Arrays:
        """Float64 parameters below the output layer, the same for every framework; embeddings uniform in +-0.1, the
        others uniform in +-1/sqrt(fan in)."""
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
    """An encoder-decoder with any output layer.

    Sources and targets are word ids, `PADDING` beyond the last; none is empty. A target holds its end.
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
        """One optimizer step; the mean loss in nats per token before it. `float()` of it waits for the device."""

    @abstractmethod
    def evaluate(self, sources_BS: NDArray, targets_BT: NDArray) -> float:
        """The sum of -log P over the targets' words, their ends among them, in nats."""

    @abstractmethod
    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Read sources (B, S), and keep the states after them: log-probabilities and ids (B, K) of the exact k
        likeliest first words."""
