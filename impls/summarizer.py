"""The encoder-decoder of SOHSM section 5.2: two LSTM layers, attention over the source's states, any output layer.

    e_1 .. e_S = LSTM(source words);  s_1 .. s_T = LSTM(end, y_1 .. y_{T-1}), from the encoder's last state
    a_ts = softmax over s of s_t W_a e_s;  c_t = sum over s of a_ts e_s;  h_t = tanh(W_c [c_t; s_t])
    loss = -log P(y_t | h_t), or the layer's training loss; the last y is the end

The attention is the global one of Luong et al. 2015 (arXiv 1508.04025, equations 5, 7 and 8, score "general"), which
reads no output of its own: the decoder's states of all steps come before it, at once. The paper names none.

Shape letters: B pairs, S source places, T target places, R decoded rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from impls import lstm
from impls.errors import BadInput
from impls.optimizers import Optimizer
from impls.spec import Arrays, LayerSpec, Shapes, check_parameters

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

    sources: int
    end: int
    embedding: int = 512
    hidden: int = 512
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0

    def body_shapes(self, vocab: int) -> Shapes:
        """Canonical parameters below the output layer: those of `impls/lstm.py` for "encoder" and "decoder"; W_a is
        `attention_weight`, W_c is `combine_weight`, whose first H columns read c_t."""
        return {
            "source_embedding": (self.sources, self.embedding),
            **lstm.shapes("encoder", self.embedding, self.hidden),
            "target_embedding": (vocab, self.embedding),
            **lstm.shapes("decoder", self.embedding, self.hidden),
            "attention_weight": (self.hidden, self.hidden),
            "combine_weight": (self.hidden, 2 * self.hidden),
        }

    def initial_body(self, vocab: int) -> Arrays:
        """Float64 parameters below the output layer, the same for every framework; embeddings uniform in +-0.1, the
        others uniform in +-1/sqrt(fan in)."""
        rng = np.random.default_rng([self.seed, 9])
        shapes = self.body_shapes(vocab)

        def uniform(name: str, bound: float) -> Arrays:
            return {name: rng.uniform(-bound, bound, shapes[name])}

        return {
            **uniform("source_embedding", 0.1),
            **lstm.initial("encoder", self.embedding, self.hidden, rng),
            **uniform("target_embedding", 0.1),
            **lstm.initial("decoder", self.embedding, self.hidden, rng),
            **uniform("attention_weight", self.hidden**-0.5),
            **uniform("combine_weight", (2 * self.hidden) ** -0.5),
        }


class Summarizer(ABC):
    """An encoder-decoder with any output layer, trained with teacher forcing.

    Parameters are named as in `SummarizerConfig.body_shapes`, and `output.<name>` for those of the layer. Sources and
    targets are word ids, `PADDING` beyond the last; none is empty. A target holds its end.
    """

    def __init__(self, spec: LayerSpec, config: SummarizerConfig) -> None:
        if spec.dim != config.hidden:
            raise BadInput(f"the layer's dim={spec.dim} differs from the LSTMs' hidden={config.hidden}: allowed: equal")
        if not 0 <= config.end < spec.vocab:
            raise BadInput(f"end={config.end}: allowed: a word id from 0 to {spec.vocab - 1}")
        if config.sources < 1:
            raise BadInput(f"sources={config.sources}: allowed: a whole number from 1")
        self.spec = spec
        self.config = config
        self.extra_of_steps = spec.extra_of_steps(config.seed)

    def parameter_shapes(self) -> Shapes:
        output = {f"output.{name}": shape for name, shape in self.spec.parameter_shapes().items()}
        return {**self.config.body_shapes(self.spec.vocab), **output}

    def initial_parameters(self) -> Arrays:
        output = {f"output.{name}": value for name, value in self.spec.initial_parameters().items()}
        return {**self.config.initial_body(self.spec.vocab), **output}

    def load(self, params: Mapping[str, ArrayLike]) -> None:
        """Take parameters in canonical form; raises `BadInput` on a missing, extra or misshapen one."""
        self._load(check_parameters("the summarizer", self.parameter_shapes(), params))

    def inputs_of(self, targets_BT: NDArray) -> NDArray[np.int32]:
        """(B, T) what the decoder reads: the end, then each target but the last; word 0 where there is padding."""
        inputs_BT = np.empty(targets_BT.shape, dtype=np.int32)
        inputs_BT[:, 0] = self.config.end
        inputs_BT[:, 1:] = np.maximum(targets_BT[:, :-1], 0)
        return inputs_BT

    @abstractmethod
    def parameters(self) -> Arrays: ...

    @abstractmethod
    def _load(self, params: Arrays) -> None: ...

    @abstractmethod
    def step(self, sources_BS: NDArray, targets_BT: NDArray) -> SupportsFloat:
        """One optimizer step; the mean loss in nats per token before it. `float()` of it waits for the device."""

    @abstractmethod
    def evaluate(self, sources_BS: NDArray, targets_BT: NDArray) -> float:
        """The sum of -log P over the targets' words, their ends among them, in nats."""

    @abstractmethod
    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Read sources (B, S) and keep the states after them: log-probabilities and ids (B, K) of the exact k likeliest
        first words. With `extend`, what `impls.decoding` searches with."""

    @abstractmethod
    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Go on from kept states `rows_R` with words `ids_R`, and keep the states after them: (R, K) as `prime`.

        Rows that go on from the same source stand together, as many for each source, sources in order: so the sources'
        states are held once, not once a row.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it."""
