"""A native TensorFlow layer behind the NumPy contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from vocabench.impls.calls import ALL_WORDS, NUCLEUS, PLAIN, Objective, Sampling
from vocabench.impls.contract import Job, Layer
from vocabench.impls.on_tensorflow.device import Switched, extra_on, to_numpy, wait
from vocabench.impls.on_tensorflow.hooks import Reach
from vocabench.impls.on_tensorflow.native import native
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, traced
from vocabench.impls.on_tensorflow.training import optimizers
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays, LayerSpec


class TensorFlowLayer(Switched, Layer):
    """Any native layer behind the NumPy contract. Each function is traced once for each shape."""

    def __init__(self, spec: LayerSpec, device: str) -> None:
        super().__init__(spec)
        self.device, self.dtype = device, tf.as_dtype(spec.storage)
        with tf.device(device):
            self.native = layer = native(spec)
        self._by_rows: optimizers.Updates | None = None  # the optimizer of the last step, if it was row-sparse
        compiled: dict[str, Any] = {"jit_compile": layer.jit_compile}
        self._loss_of = traced(self._native_loss, **compiled)
        self._grads_of = traced(self._gradients, **compiled)
        self._objective_grads_of = traced(self._objective_gradients, **compiled)
        self._log_probs_of = traced(lambda hidden, softcap=None: layer.log_probs(hidden, softcap=softcap), **compiled)
        self._target_log_probs_of = traced(layer.target_log_probs, **compiled)
        self._entropy_of = traced(layer.entropy, **compiled)
        self._search_of, self._beam_of = self._as_called("search"), self._as_called("beam")
        self._sample_of = traced(layer.sample)

    def _as_called(self, name: str) -> Callable[..., Any]:
        """Return a function of the layer, traced unless TensorFlow calls it faster as it is."""
        function: Callable[..., Any] = getattr(self.native, name)
        return function if name in self.native.one_operation else traced(function)

    def _native_loss(self, hidden: Tensor, targets: Tensor, extra: Tensors, objective: Objective = PLAIN) -> Tensor:
        return self.native(hidden, targets, **objective._asdict(), **extra)

    def _gradients(self, hidden: Tensor, targets: Tensor, extra: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        return self._gradients_of(self.native.whole_reach(targets, **extra), hidden, {})

    def _objective_gradients(
        self, hidden: Tensor, targets: Tensor, extra: Tensors, objective: Objective
    ) -> tuple[Tensor, Tensor, Tensors]:
        reach = Reach({}, lambda hidden, tables: self._native_loss(hidden, targets, extra, objective))
        return self._gradients_of(reach, hidden, {})

    def _gradients_of(self, reach: Reach, hidden: Tensor, tables: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """Return the loss, and its gradients with respect to the hidden vectors and each weight.

        The gradient of a weight in `tables` is the gradient with respect to its table of rows.
        """
        with tf.GradientTape() as tape:
            tape.watch((hidden, tables))
            loss = reach.loss(hidden, tables)
        sources = (hidden, {**self.native.named_weights(), **tables})
        grads: Any = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return loss, *grads

    def _catch_up(self) -> None:
        if self._by_rows is not None:
            self._by_rows.catch_up()

    def parameters(self) -> Arrays:
        self._catch_up()
        tensors = {name: tf.convert_to_tensor(value) for name, value in self.native.named_weights().items()}
        return {name: to_numpy(value) for name, value in self.native.to_canonical(tensors).items()}

    def _load(self, params: Arrays) -> None:
        self._catch_up()  # otherwise missed steps would be applied to the new rows
        with tf.device(self.device):
            self.native.load_canonical({name: tf.constant(value) for name, value in params.items()})

    def _on_device(self, *arrays: NDArray) -> list[Tensor]:
        """Return hidden vectors, and target ids if there are any, on the device."""
        self._catch_up()  # the parameters are about to be read
        dtypes = (self.dtype, tf.int32)
        with tf.device(self.device):
            return [tf.cast(tf.constant(array), dtype) for array, dtype in zip(arrays, dtypes, strict=False)]

    def _loss(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> float:
        inputs = (*self._on_device(hidden_ND, targets_N), self._extra(token_weight_N, extra))
        return float(self._loss_of(*inputs) if objective is PLAIN else self._loss_of(*inputs, objective))

    def _extra(self, token_weight_N: NDArray | None, extra: Arrays) -> Tensors:
        weight = {} if token_weight_N is None else {"token_weight": token_weight_N}
        return extra_on(self.device, {**extra, **weight})

    def _loss_and_grads(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> tuple[float, NDArray, Arrays]:
        inputs = (*self._on_device(hidden_ND, targets_N), self._extra(token_weight_N, extra))
        plain = objective is PLAIN and token_weight_N is None
        made = self._grads_of(*inputs) if plain else self._objective_grads_of(*inputs, objective)
        loss, dhidden_ND, grads = made
        canonical = self.native.to_canonical(grads)
        return float(loss), to_numpy(dhidden_ND), {name: to_numpy(grad) for name, grad in canonical.items()}

    def _log_probs(self, hidden_ND: NDArray, softcap: float | None = None) -> NDArray:
        return to_numpy(self._log_probs_of(*self._on_device(hidden_ND), softcap))

    def _entropy(self, hidden_ND: NDArray) -> NDArray:
        return to_numpy(self._entropy_of(*self._on_device(hidden_ND)))

    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray:
        return to_numpy(self._target_log_probs_of(*self._on_device(hidden_ND, targets_N)))

    def _topk(self, hidden_ND: NDArray, k: int) -> tuple[NDArray, NDArray]:
        values, ids, _ = self._search_of(*self._on_device(hidden_ND), k)
        return to_numpy(values), to_numpy(ids)

    def _expanded_share(self, hidden_ND: NDArray, k: int) -> NDArray:
        return to_numpy(self._search_of(*self._on_device(hidden_ND), k)[2])

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        return self._path_beam(hidden_ND, k, width, 1)

    def _path_beam(self, hidden_ND: NDArray, k: int, width: int, levels: int) -> tuple[NDArray, NDArray]:
        values, ids = self._beam_of(*self._on_device(hidden_ND), k, width, levels)
        return to_numpy(values), to_numpy(ids)

    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray, sampling: Sampling = ALL_WORDS) -> NDArray:
        return to_numpy(self._sample_of(*self._on_device(hidden_ND), self._uniforms(uniforms_NU), *sampling))

    def _uniforms(self, uniforms_NU: NDArray) -> Tensor:
        with tf.device(self.device):
            return tf.constant(uniforms_NU, tf.float64 if self.dtype == tf.float64 else tf.float32)

    def _prepare(self, job: Job) -> Callable[[], object]:
        hidden, targets = self._on_device(job.hidden_ND, job.targets_N)
        uniforms, extra = self._uniforms(job.uniforms_NU), extra_on(self.device, job.extra)
        if job.work == "layer_step":
            return self._step(hidden, targets, extra, job.optimizer)
        if job.work == "topk":
            return self._decoder(self._search_of, hidden, job.k)
        if job.work == "beam":
            one_level = 1  # a concrete function has no defaults
            return self._decoder(self._beam_of, hidden, job.k, job.width, one_level)
        calls: dict[str, Callable[[], object]] = {
            "layer": lambda: self._grads_of(hidden, targets, extra),
            "score": lambda: self._target_log_probs_of(hidden, targets),
            "entropy": lambda: self._entropy_of(hidden),
            "sample": lambda: self._sample_of(hidden, uniforms),
            "nucleus_sample": lambda: self._sample_of(hidden, uniforms, *NUCLEUS),
            "log_probs": lambda: self._log_probs_of(hidden),
        }
        return self._precise(calls[job.work])

    def _decoder(self, function: Any, hidden: Tensor, *sizes: int) -> Callable[[], object]:
        """Return a function that decodes the batch in the way that is fastest for many batches of its shape."""
        called: Any = function
        if isinstance(function, tf.types.experimental.PolymorphicFunction):
            # TensorFlow takes 0.2 ms to find the graph for these arguments. Without the sizes in the call, it takes
            # milliseconds, since it first tries all its graphs.
            called = function.get_concrete_function(hidden, *sizes)
        return self._precise(lambda: called(hidden, *sizes))

    def _step(self, hidden: Tensor, targets: Tensor, extra: Tensors, optimizer: Optimizer) -> Callable[[], object]:
        """Return a function that takes one step of the optimizer."""
        layer, weights = self.native, self.native.named_weights()
        if optimizer.row_sparse:
            self._by_rows = updates = optimizers.Updates(optimizer, weights, layer.FEW_ROWS)
            reach_of = layer.reach
        else:
            updates, reach_of = optimizers.Updates(optimizer, weights), layer.whole_reach

        @traced(jit_compile=layer.jit_compile)
        def step(hidden: Tensor, targets: Tensor, extra: Tensors) -> Tensor:
            reach = reach_of(targets, **extra)
            _, dhidden, grads = self._gradients_of(reach, hidden, updates.read(reach.rows))
            updates.apply(grads, rows=reach.rows)
            return dhidden

        return self._precise(lambda: step(hidden, targets, extra))

    def _precise(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return `work`, run in the precision of the layer."""

        def begin() -> object:
            with self.precision():
                return work()

        return begin

    def _wait(self, made: object) -> None:
        wait(made)

    def reaches_few_rows(self) -> bool:
        return bool(self.native.FEW_ROWS)

    def formulation(self) -> str:
        return self.native.formulation()
