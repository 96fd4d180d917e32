"""The LSTM language model of SOHSM section 4.2 in JAX. See `impls/on_numpy/models/language_model.py`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from vocabench.impls.models.language_model import LanguageModel, LanguageModelConfig
from vocabench.impls.on_jax.device import JAX_DTYPES, Device, extra_on, precision, to_numpy
from vocabench.impls.on_jax.hooks import Reach
from vocabench.impls.on_jax.models import _lstm, _output
from vocabench.impls.on_jax.models._lstm import State
from vocabench.impls.on_jax.models._output import output_of
from vocabench.impls.on_jax.native import native
from vocabench.impls.on_jax.ops import sparse_rows
from vocabench.impls.on_jax.ops.arrays import Array, Tree
from vocabench.impls.on_jax.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


class JaxLanguageModel(LanguageModel):
    """The language model with a compiled training step, whose parameters are updated in place."""

    def __init__(self, spec: LayerSpec, config: LanguageModelConfig, device: Device) -> None:
        super().__init__(spec, config)
        self.device, self.dtype = device, JAX_DTYPES[spec.dtype]
        self.output = native(spec, device)
        self._lstm = _lstm.form_for(device, spec.dtype)
        with precision(spec.dtype), jax.default_device(device):
            self.structure = self.output.structure()
        self._step = jax.jit(self._step_of, donate_argnums=(0, 1, 2, 3))
        self._make_up = jax.jit(partial(optimizers.make_up, config.optimizer), donate_argnums=(0, 1))
        self._evaluate = jax.jit(self._evaluate_of)
        self._hidden = jax.jit(self._hidden_of)
        self._next = jax.jit(self._next_of, static_argnums=4)
        self._load(self.initial_parameters())

    def _load(self, params: Arrays) -> None:
        with precision(self.spec.dtype), jax.default_device(self.device):
            self.params = _output.from_canonical(self.output, self.structure, params, self.dtype)
            few_rows = ["embedding", *(f"output.{name}" for name in self.output.FEW_ROWS)]
            optimizer = self.config.optimizer
            self.optimizer = optimizers.init(optimizer, self.params, few_rows if optimizer.row_sparse else ())
        self.train_state: State | None = None
        self.eval_state: State | None = None
        self.decode_state: State | None = None

    def _catch_up(self) -> None:
        if self.optimizer.seen:
            self.params, self.optimizer = self._make_up(self.params, self.optimizer)

    def parameters(self) -> Arrays:
        with precision(self.spec.dtype):
            self._catch_up()
            return _output.to_canonical(self.output, self.structure, self.params)

    def _zero_state(self, batch: int) -> State:
        return _lstm.zero_state(batch, self.config.hidden, self.dtype)

    def _hidden_of(self, params: Tree, inputs_BT: Array, state: State) -> tuple[Array, State]:
        outputs_BTH, state = self._lstm(params, "lstm", params["embedding"], inputs_BT, state)
        return outputs_BTH.reshape(-1, self.config.hidden), state

    def _step_of(
        self,
        params: Tree,
        optimizer: optimizers.State,
        state: State,
        structure: Tree,
        inputs_BT: Array,
        targets_N: Array,
        extra: dict[str, Any],
    ) -> tuple[Tree, optimizers.State, State, Tree, Array]:
        settings, rows, reach = self.config.optimizer, {}, Reach({}, structure, targets_N, extra)
        if settings.row_sparse:
            reach = self.output.reach(structure, targets_N, **extra)
            words_U, place_R = sparse_rows.distinct(
                inputs_BT.ravel(), self.spec.vocab, min(inputs_BT.size, self.spec.vocab)
            )
            rows, inputs_BT = _output.with_output({"embedding": words_U}, reach.rows), place_R.reshape(inputs_BT.shape)
            params, optimizer = optimizers.make_up(settings, params, optimizer, rows)

        def loss_of(params: Tree) -> tuple[Array, tuple[State, Tree]]:
            hidden_ND, new_state = self._hidden_of(params, inputs_BT, state)
            if not self.output.reorganizes:
                return self.output.loss_of_reach(output_of(params), reach, hidden_ND), (new_state, structure)
            loss, observed = self.output.training_loss(output_of(params), structure, hidden_ND, targets_N)
            return loss, (new_state, observed)

        tables = sparse_rows.tables(params, rows)
        (loss, (new_state, structure)), grads = jax.value_and_grad(loss_of, has_aux=True)(tables)
        params, optimizer = optimizers.update(settings, params, grads, optimizer, rows=rows)
        return params, optimizer, new_state, structure, loss

    def step(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> Array:
        with precision(self.spec.dtype), jax.default_device(self.device):
            state = self.train_state if carry and self.train_state is not None else self._zero_state(len(inputs_BT))
            targets_N = targets_BT.ravel()
            self.params, self.optimizer, self.train_state, self.structure, loss = self._step(
                self.params,
                self.optimizer,
                state,
                self.structure,
                inputs_BT.astype(np.int32),
                targets_N.astype(np.int32),
                extra_on(self.device, self.next_extra(inputs_BT.size, inputs_BT.ravel())),
            )
            return loss

    def _evaluate_of(
        self, params: Tree, structure: Tree, state: State, inputs_BT: Array, targets_N: Array
    ) -> tuple[tuple[Array, ...], State]:
        hidden_ND, state = self._hidden_of(params, inputs_BT, state)
        return self.output.nll_parts(output_of(params), structure, hidden_ND, targets_N), state

    def nll_parts(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> tuple[NDArray, ...]:
        with precision(self.spec.dtype), jax.default_device(self.device):
            self._catch_up()
            state = self.eval_state if carry and self.eval_state is not None else self._zero_state(len(inputs_BT))
            ids = (inputs_BT.astype(np.int32), targets_BT.ravel().astype(np.int32))
            parts, self.eval_state = self._evaluate(self.params, self.structure, state, *ids)
            return tuple(map(to_numpy, parts))

    def hidden(self, inputs_BT: NDArray) -> NDArray:
        with precision(self.spec.dtype), jax.default_device(self.device):
            self._catch_up()
            state = self._zero_state(len(inputs_BT))
            return to_numpy(self._hidden(self.params, inputs_BT.astype(np.int32), state)[0])

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        with precision(self.spec.dtype), jax.default_device(self.device):
            self._catch_up()
            return self._next_words(prompts_BT, self._zero_state(len(prompts_BT)), k)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decode_state is not None
        with precision(self.spec.dtype), jax.default_device(self.device):
            h_BH, c_BH = self.decode_state
            return self._next_words(ids_R[:, None], (h_BH[rows_R], c_BH[rows_R]), k)

    def _next_words(self, inputs_BT: NDArray, state: State, k: int) -> tuple[NDArray, NDArray]:
        values, ids, self.decode_state = self._next(self.params, self.structure, inputs_BT.astype(np.int32), state, k)
        return to_numpy(values), to_numpy(ids)

    def _next_of(
        self, params: Tree, structure: Tree, inputs_BT: Array, state: State, k: int
    ) -> tuple[Array, Array, State]:
        _, state = self._hidden_of(params, inputs_BT, state)
        # The output of the LSTM is its hidden state.
        return *self.output.topk(output_of(params), structure, state[0], k), state

    def reorganize(self) -> tuple[NDArray, NDArray] | None:
        if not self.output.reorganizes:
            return None
        with precision(self.spec.dtype), jax.default_device(self.device):
            self._catch_up()
            before_V = np.asarray(self.structure["cluster"], np.int64)
            slots = tuple(map(output_of, self.optimizer.slots))
            output, self.structure, slots = self.output.reorganize(
                output_of(self.params), self.structure, slots, seed=self.config.seed
            )
            self.params = _output.with_output(self.params, output)
            slots = tuple(map(_output.with_output, self.optimizer.slots, slots))
            self.optimizer = self.optimizer._replace(slots=slots)
            return before_V, np.asarray(self.structure["cluster"], np.int64)

    def synchronize(self) -> None:
        jax.block_until_ready(self.params)


NETWORK = JaxLanguageModel
