"""The LSTM language model of the SOHSM paper (section 4.2) in TensorFlow.

On an accelerator the LSTM is cuDNN's, through Keras.
"""

from __future__ import annotations

import tensorflow as tf
from numpy.typing import NDArray

from vocabench.impls.models.language_model import LanguageModel, LanguageModelConfig
from vocabench.impls.on_tensorflow.device import Switched, extra_on, to_numpy, wait
from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.on_tensorflow.models import _lstm, _parameters
from vocabench.impls.on_tensorflow.models._lstm import State
from vocabench.impls.on_tensorflow.native import native
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, look_up, traced
from vocabench.impls.on_tensorflow.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


class TensorFlowLanguageModel(Switched, LanguageModel):
    def __init__(self, spec: LayerSpec, config: LanguageModelConfig, device: str) -> None:
        super().__init__(spec, config)
        self.device, self.dtype = device, tf.as_dtype(spec.storage)
        with tf.device(device):
            self.output = native(spec)
            self.embedding = tf.Variable(tf.zeros([spec.vocab, config.embedding], self.dtype))
            # Unrolled, a step of known length needs no loop on the CPU. cuDNN takes whole sequences.
            on_cpu = device.startswith("/CPU")
            self.lstm = _lstm.keras_lstm(config.embedding, config.hidden, spec.storage, unroll=on_cpu)
        self._load(self.initial_parameters())

    def _variables(self) -> _parameters.Variables:
        body = {"embedding": self.embedding, **_lstm.variables_of("lstm", self.lstm)}
        return _parameters.with_output(body, self.output.named_weights())

    def parameters(self) -> Arrays:
        self.optimizer.catch_up()
        return _parameters.to_canonical(self._variables(), self.output)

    def _load(self, params: Arrays) -> None:
        with tf.device(self.device):
            _parameters.load_canonical(params, self._variables(), self.output)
            few_rows = ["embedding", *(f"output.{name}" for name in self.output.FEW_ROWS)]
            settings = self.config.optimizer
            self.optimizer = optimizers.Updates(settings, self._variables(), few_rows if settings.row_sparse else ())
            # The step writes to the optimizer's variables, so a new optimizer needs a new trace.
            self._step = traced(self._step_of)
            self._evaluate = traced(self._evaluate_of)
            self._hidden = traced(self._hidden_of)
            self._next = traced(self._next_of)
        self.train_state: State | None = None
        self.eval_state: State | None = None
        self.decode_state: State | None = None

    def _zero_state(self, batch: int) -> State:
        zeros = tf.zeros([batch, self.config.hidden], self.dtype)
        return zeros, zeros

    def _hidden_of(self, inputs_BT: Tensor, state: State, vectors_VE: Tensor | None = None) -> tuple[Tensor, State]:
        """Return (B*T, D) hidden vectors, batch-major, and the final state."""
        vectors_VE = self.embedding if vectors_VE is None else vectors_VE
        outputs_BTH, h_BH, c_BH = self.lstm(look_up(vectors_VE, inputs_BT), initial_state=list(state))
        return tf.reshape(outputs_BTH, [-1, self.config.hidden]), (h_BH, c_BH)

    def _step_of(self, inputs_BT: Tensor, targets_N: Tensor, extra: Tensors, state: State) -> tuple[Tensor, State]:
        rows: Tensors = {}
        reach = OutputLayer.reach(self.output, targets_N, **extra)
        if self.config.optimizer.row_sparse:
            reach = self.output.reach(targets_N, **extra)
            words_U, place_R = tf.unique(tf.reshape(inputs_BT, [-1]))
            rows = _parameters.with_output({"embedding": words_U}, reach.rows)
            inputs_BT = tf.reshape(place_R, tf.shape(inputs_BT))
        tables = self.optimizer.read(rows)
        sources = {**self._variables(), **tables}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            hidden_ND, state = self._hidden_of(inputs_BT, state, sources["embedding"])
            if self.output.reorganizes:
                loss = self.output.training_loss(hidden_ND, targets_N, **extra)
            else:
                loss = reach.loss(hidden_ND, _parameters.output_of(tables))
        grads = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        self.optimizer.apply({name: tf.convert_to_tensor(grad) for name, grad in grads.items()}, rows=rows)
        return loss, state

    def step(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> Tensor:
        with tf.device(self.device):
            state = self.train_state if carry and self.train_state is not None else self._zero_state(len(inputs_BT))
            ids = (tf.constant(inputs_BT, tf.int32), tf.constant(targets_BT.ravel(), tf.int32))
            extra = extra_on(self.device, self.next_extra(inputs_BT.size, inputs_BT.ravel()))
            loss, self.train_state = self._step(*ids, extra, state)
            return loss

    def _evaluate_of(self, inputs_BT: Tensor, targets_N: Tensor, state: State) -> tuple[tuple[Tensor, ...], State]:
        hidden_ND, state = self._hidden_of(inputs_BT, state)
        return self.output.nll_parts(hidden_ND, targets_N), state

    def nll_parts(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> tuple[NDArray, ...]:
        with tf.device(self.device):
            self.optimizer.catch_up()
            state = self.eval_state if carry and self.eval_state is not None else self._zero_state(len(inputs_BT))
            ids = (tf.constant(inputs_BT, tf.int32), tf.constant(targets_BT.ravel(), tf.int32))
            parts, self.eval_state = self._evaluate(*ids, state)
            return tuple(map(to_numpy, parts))

    def hidden(self, inputs_BT: NDArray) -> NDArray:
        with tf.device(self.device):
            self.optimizer.catch_up()
            ids = tf.constant(inputs_BT, tf.int32)
            return to_numpy(self._hidden(ids, self._zero_state(len(inputs_BT)))[0])

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        self.optimizer.catch_up()
        return self._next_words(prompts_BT, self._zero_state(len(prompts_BT)), k)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decode_state is not None
        h_RH, c_RH = (tf.gather(state, rows_R) for state in self.decode_state)
        return self._next_words(ids_R[:, None], (h_RH, c_RH), k)

    def _next_words(self, inputs_BT: NDArray, state: State, k: int) -> tuple[NDArray, NDArray]:
        with tf.device(self.device):
            values, ids, self.decode_state = self._next(tf.constant(inputs_BT, tf.int32), state, k)
            return to_numpy(values), to_numpy(ids)

    def _next_of(self, inputs_BT: Tensor, state: State, k: int) -> tuple[Tensor, Tensor, State]:
        _, state = self._hidden_of(inputs_BT, state)
        return *self.output.topk(state[0], k), state  # the LSTM's output is its hidden state

    def reorganize(self) -> tuple[NDArray, NDArray] | None:
        if not self.output.reorganizes:
            return None
        with tf.device(self.device):
            self.optimizer.catch_up()
            return self.output.reorganize(self.optimizer, seed=self.config.seed)

    def synchronize(self) -> None:
        wait(self.embedding)


NETWORK = TensorFlowLanguageModel
