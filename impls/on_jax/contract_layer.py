"""A native JAX layer behind the NumPy contract."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding
from numpy.typing import NDArray

from vocabench.impls.calls import ALL_WORDS, NUCLEUS, PLAIN, Objective, Sampling
from vocabench.impls.contract import Job, Layer
from vocabench.impls.on_jax.device import JAX_DTYPES, Device, extra_on, precision, put, to_numpy
from vocabench.impls.on_jax.hooks import Reach
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.memory import called
from vocabench.impls.on_jax.native import native
from vocabench.impls.on_jax.ops import sparse_rows
from vocabench.impls.on_jax.ops.arrays import Tree, wide
from vocabench.impls.on_jax.training import optimizers
from vocabench.impls.optimizers import Optimizer
from vocabench.impls.spec import Arrays, LayerSpec


class JaxLayer(Layer):
    """A native layer behind the NumPy contract. Every function is compiled once for each shape.

    Args:
        layer: The native layer; None for that of `spec`.
        place: Where a layer that is split over devices takes its inputs; None for `device`.
    """

    def __init__(
        self, spec: LayerSpec, device: Device, layer: OutputLayer | None = None, place: Sharding | None = None
    ) -> None:
        super().__init__(spec)
        self.device, self.dtype = place or device, JAX_DTYPES[spec.dtype]
        self.native = layer = native(spec, device) if layer is None else layer
        objective = Objective._fields
        self._target_log_probs_of = jax.jit(layer.target_log_probs)
        self._loss_of = jax.jit(layer.loss, static_argnames=objective)
        self._grads_of = jax.jit(jax.value_and_grad(layer.loss, argnums=(0, 2)), static_argnames=objective)
        self._log_probs_of = jax.jit(layer.log_probs, static_argnames="softcap")
        self._entropy_of = jax.jit(layer.entropy)
        self._search_of = jax.jit(layer.search, static_argnums=3)
        self._beam_of = jax.jit(layer.beam, static_argnums=(3, 4, 5))
        self._sample_of = jax.jit(layer.sample, static_argnums=(4, 5, 6))
        with precision(spec.dtype), jax.default_device(device):
            structure = layer.placement()
            self._structure = structure if place else jax.device_put(structure, device)
        self._held: Tree = {}
        self._catch_up: Callable[[], None] | None = None  # set while some rows lag behind the last step
        self._load(spec.initial_parameters())

    def _load(self, params: Arrays) -> None:
        with precision(self.spec.dtype):
            tree = {name: put(value, self.dtype, self.device) for name, value in params.items()}
            if self._catch_up is not None:  # otherwise the new rows would seem to lag behind
                self._catch_up()
            self._held = self.native.from_canonical(self._structure, tree)

    @property
    def held(self) -> Tree:
        """The parameters in the layer's own layout, where some rows may lag behind the last step."""
        return self._held

    @property
    def _params(self) -> Tree:
        """The parameters, with every row updated to the last step."""
        if self._catch_up is not None:
            self._catch_up()
        return self._held

    def parameters(self) -> Arrays:
        with precision(self.spec.dtype):
            tree = self.native.to_canonical(self._structure, self._params)
            return {name: to_numpy(value) for name, value in tree.items()}

    def _on_device(self, *arrays: NDArray) -> list[jax.Array]:
        dtypes = [self.dtype, jnp.int32]
        return [put(array, dtype, self.device) for array, dtype in zip(arrays, dtypes, strict=False)]

    def _loss(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> float:
        plain = objective is PLAIN and token_weight_N is None
        if plain and not self.spec.definition.train_only_loss:  # compiled once for both
            return -float(self._target_log_probs(hidden_ND, targets_N).mean())
        with precision(self.spec.dtype):
            inputs, options = self._on_device(hidden_ND, targets_N), self._options(objective, token_weight_N, extra)
            return float(self._loss_of(self._params, self._structure, *inputs, **options))

    def _options(self, objective: Objective, token_weight_N: NDArray | None, extra: Arrays) -> dict[str, Any]:
        """Return the keywords of the native loss."""
        weight = {} if token_weight_N is None else {"token_weight": put(token_weight_N, wide(self.dtype), self.device)}
        return {**objective._asdict(), **weight, **extra_on(self.device, extra)}

    def _loss_and_grads(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> tuple[float, NDArray, Arrays]:
        with precision(self.spec.dtype):
            inputs, options = self._on_device(hidden_ND, targets_N), self._options(objective, token_weight_N, extra)
            loss, (grads, dhidden_ND) = self._grads_of(self._params, self._structure, *inputs, **options)
            canonical = self.native.to_canonical(self._structure, grads)
            return float(loss), to_numpy(dhidden_ND), {name: to_numpy(grad) for name, grad in canonical.items()}

    def _log_probs(self, hidden_ND: NDArray, softcap: float | None = None) -> NDArray:
        with precision(self.spec.dtype):
            arguments = self._params, self._structure, *self._on_device(hidden_ND)
            return to_numpy(self._log_probs_of(*arguments, softcap=softcap))

    def _entropy(self, hidden_ND: NDArray) -> NDArray:
        with precision(self.spec.dtype):
            return to_numpy(self._entropy_of(self._params, self._structure, *self._on_device(hidden_ND)))

    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray:
        with precision(self.spec.dtype):
            inputs = self._on_device(hidden_ND, targets_N)
            return to_numpy(self._target_log_probs_of(self._params, self._structure, *inputs))

    def _topk(self, hidden_ND: NDArray, k: int) -> tuple[NDArray, NDArray]:
        with precision(self.spec.dtype):
            values, ids, _ = self._search_of(self._params, self._structure, *self._on_device(hidden_ND), k)
            return to_numpy(values), to_numpy(ids)

    def _expanded_share(self, hidden_ND: NDArray, k: int) -> NDArray:
        with precision(self.spec.dtype):
            return to_numpy(self._search_of(self._params, self._structure, *self._on_device(hidden_ND), k)[2])

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        return self._path_beam(hidden_ND, k, width, 1)

    def _path_beam(self, hidden_ND: NDArray, k: int, width: int, levels: int) -> tuple[NDArray, NDArray]:
        with precision(self.spec.dtype):
            values, ids = self._beam_of(self._params, self._structure, *self._on_device(hidden_ND), k, width, levels)
            return to_numpy(values), to_numpy(ids)

    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray, sampling: Sampling = ALL_WORDS) -> NDArray:
        with precision(self.spec.dtype):
            hidden, uniforms = *self._on_device(hidden_ND), self._uniforms(uniforms_NU)
            return to_numpy(self._sample_of(self._params, self._structure, hidden, uniforms, *sampling))

    def _uniforms(self, uniforms_NU: NDArray) -> jax.Array:
        return put(uniforms_NU, wide(self.dtype), self.device)

    def _prepare(self, job: Job) -> Callable[[], object]:
        with precision(self.spec.dtype):
            hidden, targets = self._on_device(job.hidden_ND, job.targets_N)
            uniforms, extra = self._uniforms(job.uniforms_NU), extra_on(self.device, job.extra)
        if job.work == "layer_step":
            return self._prepare_step(hidden, targets, extra, job.optimizer)
        calls: dict[str, Callable[[], object]] = {
            "layer": lambda: called(self._grads_of, self._params, self._structure, hidden, targets, **extra),
            "score": lambda: called(self._target_log_probs_of, self._params, self._structure, hidden, targets),
            "entropy": lambda: called(self._entropy_of, self._params, self._structure, hidden),
            "topk": lambda: called(self._search_of, self._params, self._structure, hidden, job.k),
            "beam": lambda: called(self._beam_of, self._params, self._structure, hidden, job.k, job.width),
            "sample": lambda: called(self._sample_of, self._params, self._structure, hidden, uniforms),
            "nucleus_sample": lambda: called(
                self._sample_of, self._params, self._structure, hidden, uniforms, *NUCLEUS
            ),
            "log_probs": lambda: called(self._log_probs_of, self._params, self._structure, hidden),
        }

        def begin() -> object:
            with precision(self.spec.dtype):
                return calls[job.work]()

        return begin

    def _wait(self, made: object) -> None:
        jax.block_until_ready(made)

    def _prepare_step(
        self, hidden: jax.Array, targets: jax.Array, extra: Tree, optimizer: Optimizer
    ) -> Callable[[], object]:
        gradient = jax.grad(self.native.loss_of_reach, argnums=(0, 2))

        def step(
            params: Tree, state: optimizers.State, structure: Tree, hidden: jax.Array, targets: jax.Array, extra: Tree
        ) -> tuple[Tree, optimizers.State, jax.Array]:
            reach = Reach({}, structure, targets, extra)
            if optimizer.row_sparse:
                reach = self.native.reach(structure, targets, **extra)
                params, state = optimizers.make_up(optimizer, params, state, reach.rows)
            tables = sparse_rows.tables(params, reach.rows)
            grads, dhidden = gradient(tables, reach, hidden)
            return *optimizers.update(optimizer, params, grads, state, rows=reach.rows), dhidden

        compiled = jax.jit(step, donate_argnums=(0, 1))
        make_up = jax.jit(partial(optimizers.make_up, optimizer), donate_argnums=(0, 1))
        with precision(self.spec.dtype):
            # The step donates its buffers, so it needs copies of its own.
            self._held = jax.tree.map(jnp.copy, self._params)
            state = optimizers.init(optimizer, self._held, self.native.FEW_ROWS if optimizer.row_sparse else ())

        def catch_up() -> None:
            nonlocal state
            self._catch_up = None
            with precision(self.spec.dtype):
                self._held, state = make_up(self._held, state)

        def begin() -> object:
            nonlocal state
            with precision(self.spec.dtype):
                self._held, state, dhidden = called(
                    compiled, self._held, state, self._structure, hidden, targets, extra
                )
            self._catch_up = catch_up if state.seen else None
            return self._held, dhidden

        return begin

    def reaches_few_rows(self) -> bool:
        return bool(self.native.FEW_ROWS)

    def formulation(self) -> str:
        return self.native.formulation()
