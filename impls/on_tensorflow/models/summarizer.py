"""The encoder-decoder in TensorFlow. See `impls/on_numpy/models/summarizer.py` for the definition."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf
from numpy.typing import NDArray

from vocabench.impls.models.summarizer import Summarizer, SummarizerConfig
from vocabench.impls.on_tensorflow.device import Switched, extra_on, extra_signature, to_numpy, wait
from vocabench.impls.on_tensorflow.models import _parameters
from vocabench.impls.on_tensorflow.models._lstm import LSTM, State
from vocabench.impls.on_tensorflow.native import native
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32, look_up, traced
from vocabench.impls.on_tensorflow.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


class _Source(NamedTuple):
    """The encoded source, to which the decoder attends.

    Attributes:
        memory_BSH: The states e of the encoder.
        real_BS: False for padding.
    """

    memory_BSH: Tensor
    real_BS: Tensor


class TensorFlowSummarizer(Switched, Summarizer):
    def __init__(self, spec: LayerSpec, config: SummarizerConfig, device: str) -> None:
        super().__init__(spec, config)
        self.device, self.dtype = device, tf.as_dtype(spec.storage)
        with tf.device(device):
            self.output = native(spec)
            shapes = config.body_shapes(spec)
            names = ("source_embedding", "target_embedding", "attention_weight", "combine_weight")
            self.body = {name: tf.Variable(tf.zeros(shapes[name], self.dtype)) for name in names}
            self.encoder, self.decoder = (
                LSTM(prefix, config.embedding, config.hidden, spec.storage, on_cpu=device.startswith("/CPU"))
                for prefix in ("encoder", "decoder")
            )
        self._load(self.initial_parameters())

    def _variables(self) -> _parameters.Variables:
        body = {**self.body, **self.encoder.variables(), **self.decoder.variables()}
        return _parameters.with_output(body, self.output.named_weights())

    def parameters(self) -> Arrays:
        return _parameters.to_canonical(self._variables(), self.output)

    def _load(self, params: Arrays) -> None:
        with tf.device(self.device):
            _parameters.load_canonical(params, self._variables(), self.output)
            self.optimizer = optimizers.Updates(self.config.optimizer, self._variables())
        # The step writes to the optimizer's variables, so a new optimizer needs a new trace, one for all shapes.
        words = [tf.TensorSpec([None, None], tf.int32)] * 3
        signature = [*words, extra_signature(self.spec)]
        self._step = traced(self._step_of, input_signature=signature)
        self._evaluate = traced(self._evaluate_of, input_signature=words)
        self._prime = traced(self._prime_of, reduce_retracing=True)
        self._extend = traced(self._extend_of, reduce_retracing=True)
        self.source: _Source | None = None
        self.decode_state: State | None = None

    def _encode(self, sources_BS: Tensor) -> tuple[Tensor, Tensor, State]:
        """Return (B, S, H) states, (B, S) which positions are real, and the final state."""
        real_BS = sources_BS >= 0
        zeros_BH = tf.zeros([tf.shape(sources_BS)[0], self.config.hidden], self.dtype)
        vectors_BSE = look_up(self.body["source_embedding"], tf.maximum(sources_BS, 0))
        memory_BSH, state = self.encoder(vectors_BSE, real_BS, (zeros_BH, zeros_BH))
        return memory_BSH, real_BS, state

    def _decode(self, inputs_BT: Tensor, real_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """Return (B, T, H) states s, and the final state."""
        return self.decoder(look_up(self.body["target_embedding"], inputs_BT), real_BT, state)

    def _attend(self, states_BTH: Tensor, source: _Source) -> Tensor:
        """Return (B, T, H) contexts c."""
        # W_a is multiplied with the decoder's states, which are fewer than the encoder's.
        queries_BTH = tf.matmul(states_BTH, self.body["attention_weight"])
        scores_BTS = at_least_float32(tf.matmul(queries_BTH, source.memory_BSH, transpose_b=True))
        none = -tf.cast(float("inf"), scores_BTS.dtype)
        shares_BTS = tf.nn.softmax(tf.where(source.real_BS[:, None, :], scores_BTS, none))
        return tf.matmul(tf.cast(shares_BTS, self.dtype), source.memory_BSH)

    def _combine(self, contexts_NH: Tensor, states_NH: Tensor) -> Tensor:
        """Return the (N, H) hidden vectors for the output layer."""
        both_NF = tf.concat([contexts_NH, states_NH], axis=1)
        return tf.tanh(tf.matmul(both_NF, self.body["combine_weight"], transpose_b=True))

    def _hidden(self, sources_BS: Tensor, inputs_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (N, H) hidden vectors and (N,) targets of all real positions: padding is not scored."""
        memory_BSH, real_BS, state = self._encode(sources_BS)
        states_BTH, _ = self._decode(inputs_BT, targets_BT >= 0, state)
        contexts_BTH = self._attend(states_BTH, _Source(memory_BSH, real_BS))
        place_N2 = tf.where(targets_BT >= 0)
        contexts_NH, states_NH, targets_N = (
            tf.gather_nd(array, place_N2) for array in (contexts_BTH, states_BTH, targets_BT)
        )
        return self._combine(contexts_NH, states_NH), targets_N

    def _step_of(self, sources_BS: Tensor, inputs_BT: Tensor, targets_BT: Tensor, extra: Tensors) -> Tensor:
        def loss() -> Tensor:
            return self.output(*self._hidden(sources_BS, inputs_BT, targets_BT), **extra)

        return self.optimizer.minimize(loss)

    def _evaluate_of(self, sources_BS: Tensor, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return -tf.reduce_sum(self.output.target_log_probs(*self._hidden(sources_BS, inputs_BT, targets_BT)))

    def step(self, sources_BS: NDArray, targets_BT: NDArray) -> Tensor:
        with tf.device(self.device):
            extra = extra_on(self.device, self.next_extra_for(targets_BT))
            return self._step(*_tensors(sources_BS, self.inputs_of(targets_BT), targets_BT), extra)

    def evaluate(self, sources_BS: NDArray, targets_BT: NDArray) -> float:
        with tf.device(self.device):
            return float(self._evaluate(*_tensors(sources_BS, self.inputs_of(targets_BT), targets_BT)))

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        with tf.device(self.device):
            values, ids, self.decode_state, self.source = self._prime(*_tensors(prompts_BT), k)
            return to_numpy(values), to_numpy(ids)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.source is not None
        assert self.decode_state is not None
        with tf.device(self.device):
            tensors = _tensors(rows_R, ids_R)
            values, ids, self.decode_state = self._extend(*tensors, self.decode_state, self.source, k)
            return to_numpy(values), to_numpy(ids)

    def _prime_of(self, sources_BS: Tensor, k: int) -> tuple[Tensor, Tensor, State, _Source]:
        memory_BSH, real_BS, state = self._encode(sources_BS)
        source = _Source(memory_BSH, real_BS)
        first_B = tf.fill(tf.shape(sources_BS)[:1], self.config.end)
        return *self._next(first_B, state, source, k), source

    def _extend_of(
        self, rows_R: Tensor, ids_R: Tensor, state: State, source: _Source, k: int
    ) -> tuple[Tensor, Tensor, State]:
        h_RH, c_RH = (tf.gather(array_BH, rows_R) for array_BH in state)
        return self._next(ids_R, (h_RH, c_RH), source, k)

    def _next(self, ids_R: Tensor, state: State, source: _Source, k: int) -> tuple[Tensor, Tensor, State]:
        inputs_R1 = ids_R[:, None]
        _, state = self._decode(inputs_R1, tf.ones_like(inputs_R1, tf.bool), state)
        # Each source has the same number of rows, in order.
        states_BWH = tf.reshape(state[0], [tf.shape(source.memory_BSH)[0], -1, self.config.hidden])
        contexts_RH = tf.reshape(self._attend(states_BWH, source), [-1, self.config.hidden])
        return *self.output.topk(self._combine(contexts_RH, state[0]), k), state

    def synchronize(self) -> None:
        wait(self.body)


def _tensors(*ids: NDArray) -> list[Tensor]:
    return [tf.constant(array, tf.int32) for array in ids]


NETWORK = TensorFlowSummarizer
