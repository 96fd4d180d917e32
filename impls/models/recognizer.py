"""The speech recognizer of Liu et al. 2022 (arXiv 2204.03855, section 4.2): conformer encoder and transformer decoder.

Encoder (Gulati et al. 2020, arXiv 2005.08100). Two 3x3 convolutions of stride 2 without padding, each with ReLU, over
frames and mels; a linear map to D, times sqrt(D); then blocks of

    x += FF(x) / 2;  x += A(LN(x));  x += C(LN(x));  x += FF(x) / 2;  x = LN(x)
    FF(x) = W_out swish(W_in LN(x)),  swish(x) = x sigmoid(x)
    A: heads over frames i, j with score ((q_i + u) k_j + (q_i + v) W_r r_{i-j}) / sqrt(D / heads)   (arXiv 1901.02860)
    C(x) = W_out swish(LN(depthwise(GLU(W_in x)))),  depthwise(x)_s = b + sum over k of w_k x_{s + k - (kernel - 1) / 2}

where r_{i-j} are the sinusoids of i - j, which is negative for frames ahead. The convolution module of the paper has a
batch norm instead of the second layer norm. With the layer norm, the result of an utterance depends neither on the
other utterances of its batch nor on padding: padding frames have weight 0 in all attention, and are zero before the
depthwise convolution.

Decoder (Vaswani et al. 2017, arXiv 1706.03762), with norms first. The unit vectors times sqrt(D) plus the sinusoids of
the positions from 0 pass through blocks of x += self-attention(LN(x)) over the units so far, x += attention(LN(x)) over
the frames of the encoder, and x += W_out relu(W_in LN(x)). A last LN yields the hidden vectors for the output layer.

    loss = (1 - ctc_weight) [mean over units of (1 - smoothing) L + smoothing mean over units w of -log P(w | h)]
           + ctc_weight [sum over utterances of -log P_CTC] / units

L is the training loss of the layer, which is -log P(target | h) for a normalized layer. The smoothed target is uniform
over the V units and ignores the tree or the clusters above them. Smoothing is therefore the same for all layers as for
full softmax. A layer that is trained on samples is smoothed by its normalized P, too.

CTC (Graves et al. 2006) applies a separate softmax over the units and a blank to the frames of the encoder. Its
transcripts exclude the end, although `units` includes it. CTC needs a frame for each unit and one between equal units.
An utterance with fewer frames adds 0 to the sum and nothing to the gradient.

Weights are (out, in). All linear maps have a bias, except W_r and the relative terms of the attention. LN has epsilon
1e-5. There is no dropout: SpecAugment, which is applied to the input, serves as regularization.

Shape letters: B utterances, F frames of features, M mels, S frames after the convolutions, T units, R decoded rows.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.models.decoding import PathSearch
from vocabench.impls.models.network import Transcriber
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays, LayerSpec, Shapes
from vocabench.impls.uniform import uniform

PADDING = -1  # at the positions of a transcript beyond its last unit
NORM_EPSILON = 1e-5


@dataclass(frozen=True)
class RecognizerConfig:
    """Settings of the recognizer below its output layer.

    Attributes:
        end: Unit that ends a transcript; the decoder reads it before the first unit.
        dim: Width D of both stacks, equal to `dim` of the output layer.
        mels: Number of features of a frame, from 7.
        channels: Number of channels of the two convolutions.
        heads: Number of heads of each attention; 2 * heads divides `dim`.
        feed_forward: Inner width of the feed-forward maps.
        kernel: Number of frames in a window of the depthwise convolution, odd.
        encoder_layers, decoder_layers: Number of blocks of each stack.
        smoothing: Share of the target that is spread over all units, from 0, below 1.
        ctc_weight: Weight of CTC in the loss, from 0, below 1; 0 leaves out the softmax of CTC.
        optimizer: Settings of the optimizer; `learning_rate` is the peak of the schedule.
        warmup: Number of steps in which the learning rate rises linearly to its peak. Afterwards it falls with the
            square root of the step. 0 means a constant rate.
        seed: Seed of the initial parameters and of the random inputs of the loss.
    """

    network: ClassVar[str] = "recognizer"

    end: int
    dim: int = 256
    mels: int = 80
    channels: int = 256
    heads: int = 4
    feed_forward: int = 2048
    kernel: int = 31
    encoder_layers: int = 12
    decoder_layers: int = 6
    smoothing: float = 0.1
    ctc_weight: float = 0.0
    optimizer: Optimizer = field(default_factory=Optimizer)
    warmup: int = 25_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dim", "channels", "heads", "feed_forward", "kernel", "encoder_layers", "decoder_layers"):
            if getattr(self, name) < 1:
                raise BadInput(f"recognizer {name}={getattr(self, name)}: allowed: a whole number from 1")
        if self.dim % (2 * self.heads):
            raise BadInput(f"recognizer dim={self.dim} with heads={self.heads}: allowed: a multiple of 2 * heads")
        if self.kernel % 2 == 0:
            raise BadInput(f"recognizer kernel={self.kernel}: allowed: an odd number")
        if self.warmup < 0:
            raise BadInput(f"recognizer warmup={self.warmup}: allowed: a whole number from 0")
        if self.mels < 7:
            raise BadInput(f"recognizer mels={self.mels}: allowed: from 7, so that two convolutions leave one")
        for name in ("smoothing", "ctc_weight"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"recognizer {name}={getattr(self, name)}: allowed: from 0, below 1")

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        if not self.warmup:
            return self.optimizer.learning_rate
        return self.optimizer.learning_rate * min(step / self.warmup, (self.warmup / step) ** 0.5)

    def body_shapes(self, spec: LayerSpec) -> Shapes:
        """Return the shapes of the canonical parameters below the output layer."""
        dim, heads = self.dim, self.heads
        shapes: Shapes = {
            "front.conv1_weight": (self.channels, 1, 3, 3),  # (out, in, frames, mels)
            "front.conv1_bias": (self.channels,),
            "front.conv2_weight": (self.channels, self.channels, 3, 3),
            "front.conv2_bias": (self.channels,),
            "front.out_weight": (dim, self.channels * int(frames_after(self.mels))),  # channels outside, mels inside
            "front.out_bias": (dim,),
        }
        for number in range(self.encoder_layers):
            block = f"encoder.{number}"
            shapes |= self._feed_forward(f"{block}.feed1")
            shapes |= self._attention(f"{block}.attention")
            shapes |= {
                f"{block}.attention.position_weight": (dim, dim),
                f"{block}.attention.content_bias": (heads, dim // heads),  # u
                f"{block}.attention.position_bias": (heads, dim // heads),  # v
            }
            shapes |= self._norm(f"{block}.conv.norm")
            shapes |= self._linear(f"{block}.conv.in", 2 * dim, dim)  # first half times sigmoid(second half)
            shapes |= {f"{block}.conv.depth_weight": (dim, self.kernel), f"{block}.conv.depth_bias": (dim,)}
            shapes |= self._norm(f"{block}.conv.mid")
            shapes |= self._linear(f"{block}.conv.out", dim, dim)
            shapes |= self._feed_forward(f"{block}.feed2")
            shapes |= self._norm(f"{block}.norm")
        shapes["embedding"] = (spec.vocab, dim)
        for number in range(self.decoder_layers):
            block = f"decoder.{number}"
            shapes |= self._attention(f"{block}.self")
            shapes |= self._attention(f"{block}.cross")
            shapes |= self._feed_forward(f"{block}.feed")
        shapes |= self._norm("decoder.norm")
        if self.ctc_weight:
            shapes |= self._linear("ctc", spec.vocab + 1, dim)  # the blank comes last
        return shapes

    @staticmethod
    def _linear(name: str, outputs: int, inputs: int) -> Shapes:
        return {f"{name}_weight": (outputs, inputs), f"{name}_bias": (outputs,)}

    def _norm(self, name: str) -> Shapes:
        return {f"{name}_scale": (self.dim,), f"{name}_bias": (self.dim,)}

    def _feed_forward(self, name: str) -> Shapes:
        return {
            **self._norm(f"{name}.norm"),
            **self._linear(f"{name}.in", self.feed_forward, self.dim),
            **self._linear(f"{name}.out", self.dim, self.feed_forward),
        }

    def _attention(self, name: str) -> Shapes:
        """Return the shapes of an attention; the heads are concatenated in the rows of query, key and value."""
        shapes = self._norm(f"{name}.norm")
        for part in ("query", "key", "value", "out"):
            shapes |= self._linear(f"{name}.{part}", self.dim, self.dim)
        return shapes

    def initial_body(self, spec: LayerSpec) -> Arrays:
        """Return initial float64 parameters below the output layer, the same for all frameworks.

        Weights are uniform in +-1/sqrt(fan in), unit vectors in +-1/sqrt(D). Scales are one and biases zero.
        """
        rng = np.random.default_rng([self.seed, 10])
        body: Arrays = {}
        for name, shape in self.body_shapes(spec).items():
            if name.endswith("_scale"):
                body[name] = np.ones(shape)
            elif name.endswith("_bias"):
                body[name] = np.zeros(shape)
            else:
                fan_in = self.dim if name == "embedding" else int(np.prod(shape[1:]))
                body[name] = uniform(rng, fan_in**-0.5, shape)
        return body


def frames_after(frames: ArrayLike) -> NDArray[np.int64]:
    """Return the number of frames (or mels) after the two convolutions, which is 0 for fewer than 7."""
    after_first = (np.asarray(frames, dtype=np.int64) - 1) // 2
    return np.maximum((after_first - 1) // 2, 0)


def frequencies(dim: int) -> NDArray[np.float64]:
    """Return the frequencies (D/2,) of the sinusoids in radians per position."""
    return 10_000.0 ** (-np.arange(0, dim, 2) / dim)


def sinusoids(positions_P: ArrayLike, dim: int) -> NDArray[np.float64]:
    """Return sines, then cosines, (P, D) of the positions at D/2 wavelengths from 2 pi to 2 pi 10000.

    See Vaswani et al. 2017, section 3.5.
    """
    angle_PH = np.asarray(positions_P, dtype=np.float64)[:, None] * frequencies(dim)
    return np.concatenate([np.sin(angle_PH), np.cos(angle_PH)], axis=1)


class Recognizer(Transcriber[RecognizerConfig]):
    """Conformer encoder and transformer decoder with any output layer.

    `prime` and `extend` return the exact top k units, or with `paths` those that a search along the paths of a tree
    finds.

    Features are (B, F, M), with the number of real frames of each utterance (B,), at least 7. Frames beyond these are
    zero. Targets are unit ids (B, T), with `PADDING` beyond the last unit. None is empty, and each ends with `end`.
    """

    NAME = "the recognizer"

    def __init__(self, spec: LayerSpec, config: RecognizerConfig) -> None:
        if spec.dim != config.dim:
            raise BadInput(f"the layer's dim={spec.dim} differs from the recognizer's dim={config.dim}: allowed: equal")
        super().__init__(spec, config)
        self.paths: PathSearch | None = None

    @abstractmethod
    def step(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> SupportsFloat:
        """Take one optimizer step at the scheduled rate, and return the loss before it.

        `float()` of the result waits for the device.
        """

    @abstractmethod
    def evaluate(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> float:
        """Return the sum of -log P over the targets in nats, ends included, without smoothing or CTC."""

    @abstractmethod
    def listen(self, features_BFM: NDArray, frames_B: NDArray, longest: int) -> None:
        """Encode utterances that `prime` and `extend` then decode to at most `longest` units."""

    @abstractmethod
    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """Start decoding the encoded utterances with units (B, 1), which are the end.

        Returns log-probabilities and ids (B, K) of the top k first units, best first.
        """
