"""The speech recognizer in TensorFlow.

See `impls/models/recognizer.py` for the formulas, and `impls/on_numpy/models/recognizer.py` for the definition.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from vocabench.impls.models import stacks
from vocabench.impls.models.decoding import PathSearch
from vocabench.impls.models.recognizer import Recognizer, RecognizerConfig, frames_after
from vocabench.impls.on_tensorflow.device import Switched, extra_on, extra_signature, to_numpy, wait
from vocabench.impls.on_tensorflow.models import _blocks, _conformer, _ctc, _parameters, _transformer
from vocabench.impls.on_tensorflow.models._transformer import KeysValues
from vocabench.impls.on_tensorflow.native import native
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32, traced
from vocabench.impls.on_tensorflow.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


class _Speech(NamedTuple):
    """Inputs of the encoder.

    Attributes:
        features_BFM: Features of the audio frames.
        frames_B: Number of real frames after the convolutions.
    """

    features_BFM: Tensor
    frames_B: Tensor


class _Units(NamedTuple):
    """Inputs and targets of the decoder, as defined in `Recognizer`."""

    inputs_BT: Tensor
    targets_BT: Tensor


class _Heard(NamedTuple):
    """The encoded speech, to which the decoder attends.

    Attributes:
        memory: Keys and values of the frames for each block.
        real_BS: Which of the frames are real.
    """

    memory: list[KeysValues]
    real_BS: Tensor


class TensorFlowRecognizer(Switched, Recognizer):
    def __init__(self, spec: LayerSpec, config: RecognizerConfig, device: str) -> None:
        super().__init__(spec, config)
        self.device, self.dtype = device, tf.as_dtype(spec.storage)
        shapes = stacks.stacked_shapes(config.body_shapes(spec))
        with tf.device(device):
            self.output = native(spec)
            self.body = {name: tf.Variable(tf.zeros(shape, self.dtype)) for name, shape in shapes.items()}
            self.optimizer = optimizers.Updates(config.optimizer, self._variables())
        # Each function has one trace for all shapes.
        ids_N, ids_BT = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
        speech = _Speech(tf.TensorSpec([None, None, config.mels], self.dtype), ids_N)
        units = _Units(ids_BT, ids_BT)
        extra = extra_signature(spec)
        rate = tf.TensorSpec([], tf.float64)
        by_head = tf.TensorSpec([None, config.heads, None, config.dim // config.heads], self.dtype)
        keys_values = [(by_head, by_head)] * config.decoder_layers
        heard = _Heard(keys_values, tf.TensorSpec([None, None], tf.bool))
        self._step = traced(self._step_of, input_signature=[speech, units, extra, rate])
        self._evaluate = traced(self._evaluate_of, input_signature=[speech, units])
        self._listen = traced(self._listen_of, input_signature=[speech])
        next_signature = [heard, keys_values, ids_N, ids_N]
        self._next = cache(lambda *given: traced(partial(self._next_of, *given), input_signature=next_signature))
        self._load(self.initial_parameters())

    def _variables(self) -> _parameters.Variables:
        return _parameters.with_output(self.body, self.output.named_weights())

    def parameters(self) -> Arrays:
        canonical = stacks.unstack(_parameters.to_canonical(self._variables(), self.output))
        return {name: canonical[name] for name in self.parameter_shapes()}

    def _load(self, params: Arrays) -> None:
        with tf.device(self.device):
            _parameters.load_canonical(stacks.stack(params), self._variables(), self.output)
            self.optimizer.reset()
        self.steps = 0
        self.heard: _Heard | None = None
        self.past: list[KeysValues] = []

    def _listen_of(self, speech: _Speech) -> _Heard:
        return self._heard(*_conformer.encode(self.body, *speech))

    def _heard(self, frames_BSD: Tensor, real_BS: Tensor) -> _Heard:
        return _Heard(_transformer.remember(self.body, frames_BSD, self.config.heads), real_BS)

    def _hidden(self, heard: _Heard, units: _Units) -> tuple[Tensor, Tensor]:
        """Return the (N, D) hidden vectors and (N,) targets of all real positions."""
        past = _transformer.nothing_read(self.body, tf.shape(units.inputs_BT)[0], self.config.heads)
        hidden_BTD, _ = _transformer.decode(self.body, units.inputs_BT, *heard, past)
        place_N2 = tf.where(units.targets_BT >= 0)
        return tf.gather_nd(hidden_BTD, place_N2), tf.gather_nd(units.targets_BT, place_N2)

    def _step_of(self, speech: _Speech, units: _Units, extra: Tensors, rate: Tensor) -> Tensor:
        return self.optimizer.minimize(lambda: self._loss(speech, units, extra), rate)

    def _loss(self, speech: _Speech, units: _Units, extra: Tensors) -> Tensor:
        weight = self.config.ctc_weight
        frames_BSD, real_BS = _conformer.encode(self.body, *speech)
        hidden_ND, targets_N = self._hidden(self._heard(frames_BSD, real_BS), units)
        loss = self._unit_loss(hidden_ND, targets_N, extra)
        if not weight:
            return loss
        ctc_nll = self._ctc_nll(frames_BSD, speech.frames_B, units.targets_BT)
        return (1 - weight) * loss + weight * ctc_nll / tf.cast(tf.size(targets_N), loss.dtype)

    def _unit_loss(self, hidden_ND: Tensor, targets_N: Tensor, extra: Tensors) -> Tensor:
        """Return the mean loss over the units, with label smoothing."""
        smoothing = self.config.smoothing
        if not smoothing:
            return self.output(hidden_ND, targets_N, **extra)
        log_probs_NV = self.output.log_probs(hidden_ND)
        if self.spec.definition.train_only_loss:
            loss = self.output(hidden_ND, targets_N, **extra)
        else:
            # The loss of the layer, from the log-probabilities that smoothing needs anyway.
            loss = -tf.reduce_mean(tf.gather(log_probs_NV, targets_N, batch_dims=1))
        return (1 - smoothing) * loss - smoothing * tf.reduce_mean(log_probs_NV)

    def _ctc_nll(self, frames_BSD: Tensor, frames_B: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the sum of the CTC losses of the utterances that have enough frames."""
        log_probs_BSU = tf.nn.log_softmax(at_least_float32(_blocks.linear(self.body, "ctc", frames_BSD)))
        labels_B = tf.math.count_nonzero(targets_BT >= 0, axis=1, dtype=tf.int32) - 1
        return tf.reduce_sum(_ctc.nll(log_probs_BSU, frames_B, targets_BT, labels_B))

    def _evaluate_of(self, speech: _Speech, units: _Units) -> Tensor:
        log_probs_N = self.output.target_log_probs(*self._hidden(self._listen_of(speech), units))
        return -tf.reduce_sum(tf.cast(log_probs_N, tf.float64))

    def _next_of(
        self,
        k: int,
        paths: PathSearch | None,
        heard: _Heard,
        past: list[KeysValues],
        rows_R: Tensor,
        ids_R: Tensor,
    ) -> tuple[Tensor, Tensor, list[KeysValues]]:
        past = [(tf.gather(keys, rows_R), tf.gather(values, rows_R)) for keys, values in past]
        hidden_R1D, past = _transformer.decode(self.body, ids_R[:, None], *heard, past)
        if paths is None:
            return *self.output.topk(hidden_R1D[:, 0], k), past
        return *self.output.beam(hidden_R1D[:, 0], k, paths.width, paths.levels), past

    def _speech(self, features_BFM: NDArray, frames_B: NDArray) -> _Speech:
        return _Speech(tf.cast(tf.constant(features_BFM), self.dtype), _ids(frames_after(frames_B)))

    def _units(self, targets_BT: NDArray) -> _Units:
        return _Units(_ids(self.inputs_of(targets_BT)), _ids(targets_BT))

    def step(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> Tensor:
        self.steps += 1
        with tf.device(self.device):
            extra = extra_on(self.device, self.next_extra_for(targets_BT))
            rate = tf.constant(self.config.rate_at(self.steps), tf.float64)
            return self._step(self._speech(features_BFM, frames_B), self._units(targets_BT), extra, rate)

    def evaluate(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> float:
        with tf.device(self.device):
            return float(self._evaluate(self._speech(features_BFM, frames_B), self._units(targets_BT)))

    def listen(self, features_BFM: NDArray, frames_B: NDArray, longest: int) -> None:
        with tf.device(self.device):
            self.heard = self._listen(self._speech(features_BFM, frames_B))

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        with tf.device(self.device):
            self.past = _transformer.nothing_read(self.body, len(prompts_BT), self.config.heads)
        return self.extend(np.arange(len(prompts_BT)), prompts_BT[:, 0], k)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.heard is not None
        with tf.device(self.device):
            values, ids, self.past = self._next(k, self.paths)(self.heard, self.past, _ids(rows_R), _ids(ids_R))
            return to_numpy(values), to_numpy(ids)

    def synchronize(self) -> None:
        wait(self.body)


def _ids(ids: NDArray) -> Tensor:
    return tf.constant(ids, tf.int32)


NETWORK = TensorFlowRecognizer
