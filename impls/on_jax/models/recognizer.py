"""The speech recognizer in JAX. See `impls/on_numpy/models/recognizer.py` for the definition.

Each shape of a batch is compiled separately, so callers pad utterances and transcripts to few lengths.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.models import stacks
from vocabench.impls.models.decoding import PathSearch
from vocabench.impls.models.recognizer import PADDING, Recognizer, RecognizerConfig, frames_after
from vocabench.impls.on_jax.device import JAX_DTYPES, Device, extra_on, precision, put, to_numpy
from vocabench.impls.on_jax.models import _blocks, _conformer, _output, _transformer
from vocabench.impls.on_jax.models._ctc import ctc_nll
from vocabench.impls.on_jax.models._output import output_of
from vocabench.impls.on_jax.models._packing import pack, packed_extra
from vocabench.impls.on_jax.models._transformer import Cache, Memory
from vocabench.impls.on_jax.native import native
from vocabench.impls.on_jax.ops.arrays import Array, Tree, pick
from vocabench.impls.on_jax.training import optimizers
from vocabench.impls.spec import Arrays, LayerSpec


class Batch(NamedTuple):
    """Utterances and transcripts for the compiled functions.

    Attributes:
        features_BFM: Features of the frames.
        frames_B: Number of real frames after the convolutions.
        inputs_BT: Units that the decoder reads.
        labels_BT: Units of the transcripts; any units beyond the last one.
        labels_B: Number of units of each transcript, without the end.
        places_N: Places among B * T whose hidden vectors the output layer scores.
        targets_N: Targets at these places.
    """

    features_BFM: Array
    frames_B: Array
    inputs_BT: Array
    labels_BT: Array
    labels_B: Array
    places_N: Array
    targets_N: Array


class Decoding(NamedTuple):
    """The state of decoding.

    Attributes:
        memory: Keys and values of the encoded utterances.
        cache: Keys and values of the units so far.
        units: Number of units so far of each row.
    """

    memory: Memory
    cache: Cache
    units: int


class JaxRecognizer(Recognizer):
    """The recognizer with a compiled training step, whose parameters are updated in place."""

    def __init__(self, spec: LayerSpec, config: RecognizerConfig, device: Device) -> None:
        super().__init__(spec, config)
        self.device, self.dtype = device, JAX_DTYPES[spec.dtype]
        self.output = native(spec, device)
        with precision(spec.dtype), jax.default_device(device):
            self.structure = self.output.structure()
        self._step = jax.jit(self._step_of, donate_argnums=(0, 1))
        self._evaluate = jax.jit(self._evaluate_of)
        self._listen = jax.jit(self._listen_of)
        self._kept = jax.jit(Cache.at)
        self._next = jax.jit(self._next_of, static_argnums=(6, 7), donate_argnums=3)
        self._load(self.initial_parameters())

    def _load(self, params: Arrays) -> None:
        with precision(self.spec.dtype), jax.default_device(self.device):
            self.params = _output.from_canonical(self.output, self.structure, stacks.stack(params), self.dtype)
            self.optimizer = optimizers.init(self.config.optimizer, self.params)
        self.steps = 0
        self.heard: tuple[Memory, int] | None = None
        self.decoding: Decoding | None = None

    def parameters(self) -> Arrays:
        with precision(self.spec.dtype):
            return stacks.unstack(_output.to_canonical(self.output, self.structure, self.params))

    def _encode(self, params: Tree, features_BFM: Array, frames_B: Array) -> tuple[Array, Array]:
        """Return the encoded frames (B, S, D), and the mask (B, S) of real frames."""
        real_BS = jnp.arange(int(frames_after(features_BFM.shape[1]))) < frames_B[:, None]
        return _conformer.encode(params, self.config, features_BFM.astype(self.dtype), real_BS), real_BS

    def _hidden_of(self, params: Tree, frames_BSD: Array, real_BS: Array, batch: Batch) -> Array:
        """Return the hidden vectors (N, D) of the output layer's targets."""
        memory = _transformer.remember(params, frames_BSD, real_BS)
        hidden_BTD = _transformer.decode(params, self.config, memory, batch.inputs_BT)
        return hidden_BTD.reshape(-1, self.config.dim)[batch.places_N]

    def _step_of(
        self,
        params: Tree,
        optimizer: optimizers.State,
        structure: Tree,
        batch: Batch,
        extra: dict[str, Any],
        rate: Array,
    ) -> tuple[Tree, optimizers.State, Array]:
        weight = self.config.ctc_weight

        def loss_of(params: Tree) -> Array:
            frames_BSD, real_BS = self._encode(params, batch.features_BFM, batch.frames_B)
            hidden_ND = self._hidden_of(params, frames_BSD, real_BS, batch)
            losses_N = self._unit_losses(
                output_of(params), structure, hidden_ND, jnp.maximum(batch.targets_N, 0), extra
            )
            real_N = batch.targets_N != PADDING
            loss = jnp.where(real_N, losses_N, 0).sum() / real_N.sum()
            if not weight:
                return loss
            logits_BSU = _blocks.linear(params, "ctc", frames_BSD)
            nll_B = ctc_nll(logits_BSU, batch.frames_B, batch.labels_BT, batch.labels_B)
            return (1 - weight) * loss + weight * nll_B.sum() / real_N.sum()

        loss, grads = jax.value_and_grad(loss_of)(params)
        return *optimizers.update(self.config.optimizer, params, grads, optimizer, rate), loss

    def _unit_losses(
        self, output: Tree, structure: Tree, hidden_ND: Array, targets_N: Array, extra: dict[str, Any]
    ) -> Array:
        """Return the (N,) losses with label smoothing."""
        smoothing = self.config.smoothing
        if not smoothing:
            return self.output.loss(output, structure, hidden_ND, targets_N, reduction="none", **extra)
        log_probs_NV = self.output.log_probs(output, structure, hidden_ND)
        if self.spec.definition.train_only_loss:
            losses_N = self.output.loss(output, structure, hidden_ND, targets_N, reduction="none", **extra)
        else:
            losses_N = -pick(log_probs_NV, targets_N)  # the same loss, from values that smoothing needs anyway
        return (1 - smoothing) * losses_N - smoothing * log_probs_NV.mean(axis=1)

    def _evaluate_of(self, params: Tree, structure: Tree, batch: Batch) -> Array:
        hidden_ND = self._hidden_of(params, *self._encode(params, batch.features_BFM, batch.frames_B), batch)
        real_N = batch.targets_N != PADDING
        targets_N = jnp.where(real_N, batch.targets_N, 0)
        log_probs_N = self.output.target_log_probs(output_of(params), structure, hidden_ND, targets_N)
        return -jnp.where(real_N, log_probs_N, 0).sum()

    def _batch(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> Batch:
        arrays = (
            features_BFM,
            frames_after(frames_B).astype(np.int32),
            self.inputs_of(targets_BT),
            np.maximum(targets_BT, 0).astype(np.int32),
            ((targets_BT != PADDING).sum(axis=1) - 1).astype(np.int32),
            *pack(targets_BT, PADDING, sizes=1),  # the vocabulary is small: scoring padding is cheaper than compiling
        )
        return Batch(*map(put, arrays))

    def step(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> Array:
        with precision(self.spec.dtype), jax.default_device(self.device):
            self.steps += 1
            batch = self._batch(features_BFM, frames_B, targets_BT)
            extra = packed_extra(self.spec, self.next_extra_for(targets_BT), len(batch.targets_N))
            self.params, self.optimizer, loss = self._step(
                self.params,
                self.optimizer,
                self.structure,
                batch,
                extra_on(self.device, extra),
                self.config.rate_at(self.steps),
            )
            return loss

    def evaluate(self, features_BFM: NDArray, frames_B: NDArray, targets_BT: NDArray) -> float:
        with precision(self.spec.dtype), jax.default_device(self.device):
            return float(self._evaluate(self.params, self.structure, self._batch(features_BFM, frames_B, targets_BT)))

    def listen(self, features_BFM: NDArray, frames_B: NDArray, longest: int) -> None:
        with precision(self.spec.dtype), jax.default_device(self.device):
            memory = self._listen(self.params, features_BFM, frames_after(frames_B).astype(np.int32))
        self.heard, self.decoding = (memory, longest), None

    def _listen_of(self, params: Tree, features_BFM: Array, frames_B: Array) -> Memory:
        return _transformer.remember(params, *self._encode(params, features_BFM, frames_B))

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.heard is not None
        memory, longest = self.heard
        with precision(self.spec.dtype), jax.default_device(self.device):
            cache = Cache.empty(self.config, len(prompts_BT), longest, self.dtype)
            return self._next_units(Decoding(memory, cache, 0), prompts_BT[:, 0], k)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decoding is not None
        with precision(self.spec.dtype), jax.default_device(self.device):
            # Compiled separately: the next step would otherwise be compiled for each number of kept states.
            cache = self._kept(self.decoding.cache, rows_R.astype(np.int32))
            return self._next_units(self.decoding._replace(cache=cache), ids_R, k)

    def _next_units(self, decoding: Decoding, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        memory, cache, units = decoding
        longest = cache.key_LRXD.shape[2]
        if units == longest:
            raise BadInput(f"a unit after {units}: allowed: up to the {longest} that `listen` was told of")
        inputs_R = ids_R.astype(np.int32)
        values, ids, cache = self._next(self.params, self.structure, memory, cache, inputs_R, units, k, self.paths)
        self.decoding = Decoding(memory, cache, units + 1)
        return to_numpy(values), to_numpy(ids)

    def _next_of(
        self,
        params: Tree,
        structure: Tree,
        memory: Memory,
        cache: Cache,
        ids_R: Array,
        position: Array,
        k: int,
        paths: PathSearch | None,
    ) -> tuple[Array, Array, Cache]:
        hidden_RD, cache = _transformer.decode_next(params, self.config, memory, cache, ids_R, position)
        output = output_of(params)
        if paths is None:
            return *self.output.topk(output, structure, hidden_RD, k), cache
        return *self.output.beam(output, structure, hidden_RD, k, paths.width, paths.levels), cache

    def synchronize(self) -> None:
        jax.block_until_ready(self.params)


NETWORK = JaxRecognizer
