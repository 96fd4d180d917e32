"""Full softmax, in any of its ways to keep memory, with the words split over devices (Shoeybi et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from vocabench.impls.calls import Objective
from vocabench.impls.on_jax import objectives
from vocabench.impls.on_jax.methods.full_softmax import FullSoftmax
from vocabench.impls.on_jax.native import layer_class
from vocabench.impls.on_jax.ops.arrays import Array, Tree, aligned, draw, pick, wide
from vocabench.impls.on_jax.ops.topk import top_k
from vocabench.impls.on_jax.parallel.layer import ParallelLayer
from vocabench.impls.on_jax.parallel.split import EVERYWHERE, LOWEST, Split
from vocabench.impls.on_jax.sampling import drawn_part
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import blocks

_NO_TARGET = -1


class ParallelSoftmax(ParallelLayer):
    """Full softmax whose words are split into ranges of ids, one for each device.

    Parameters: `weight` (V', D) and `bias` (V',), where V' is V rounded up to a multiple of the devices. The rows
    beyond V have no probability and no gradient.
    """

    def __init__(self, spec: LayerSpec, split: Split) -> None:
        super().__init__(spec, split)
        self._rows = split.padded(spec.vocab) // split.parts
        own = layer_class(spec.method)(spec)
        assert isinstance(own, FullSoftmax)
        self._of_words = own  # whose functions take the words of one device

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        return {name: value[: self.spec.vocab] for name, value in tree.items()}

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        return {name: self.split.placed(value) for name, value in tree.items()}

    def _over(
        self, compute: Callable[..., Any], params: Tree, hidden_ND: Array, *by_token: Array, out: Any = EVERYWHERE
    ) -> Any:
        """Return `compute(words, hidden_ND, *by_token)` on every device, where `words` are its weight and bias."""

        def of_device(params: Tree, *by_token: Array) -> Any:
            weight_RD = params["weight"]
            number_R = self.split.first(self._rows) + jnp.arange(self._rows)
            bias_R = params.get("bias", jnp.zeros(self._rows, weight_RD.dtype))
            words = {"weight": weight_RD, "bias": jnp.where(number_R < self.spec.vocab, bias_R, LOWEST)}
            return compute(*aligned((words, *by_token)))

        by_token = (hidden_ND, *by_token)
        specs = {name: P(self.split.axis) for name in params}, *[EVERYWHERE] * len(by_token)
        return self.split.over(of_device, specs, out)(params, *by_token)

    def _own(self, ids_N: Array) -> Array:
        """Return the number of each word among those of this device; -1 for the words of the others."""
        number_N = ids_N - self.split.first(self._rows)
        return jnp.where((number_N >= 0) & (number_N < self._rows), number_N, _NO_TARGET)

    # Losses.
    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        def compute(words: Tree, hidden_ND: Array, targets_N: Array) -> Array:
            sums = self._of_words.own_sums(words, hidden_ND, self._own(targets_N))
            log_sum_N, target_N = self.split.joined(*sums)
            return log_sum_N - target_N

        return self._over(compute, params, hidden_ND, targets_N)

    def _target_logits(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        def compute(words: Tree, hidden_ND: Array, targets_N: Array) -> Array:
            own_N = self._own(targets_N)
            target_N = self._of_words._target_logits(words, {}, hidden_ND, jnp.maximum(own_N, 0))
            return lax.psum(jnp.where(own_N >= 0, target_N, 0), self.split.axis)

        return self._over(compute, params, hidden_ND, targets_N)

    def _mean_logits(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        # Rows beyond the vocabulary are zeros, and so are their biases in the parameters.
        dtype = params["weight"].dtype
        total = {name: value.sum(axis=0, dtype=wide(dtype)) for name, value in params.items()}
        mean_N = hidden_ND.astype(dtype).astype(wide(dtype)) @ total["weight"] + total.get("bias", 0)
        return mean_N / self.spec.vocab

    def _objective_losses(
        self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array, objective: Objective, **extra: Array
    ) -> Array:
        if objective.softcap is None:
            return super()._objective_losses(params, structure, hidden_ND, targets_N, objective, **extra)
        softcap = objective.softcap

        def compute(words: Tree, hidden_ND: Array, targets_N: Array) -> Array:
            def of_block(hidden_BD: Array, own_B: Array) -> Array:
                logits_BR, real_R = self._capped(words, hidden_BD, softcap)
                target_B = jnp.where(own_B >= 0, pick(logits_BR, jnp.maximum(own_B, 0)), 0)
                sum_B = jnp.where(real_R, logits_BR, 0).sum(axis=1)
                return jnp.stack([jax.nn.logsumexp(logits_BR, axis=1), target_B, sum_B], axis=1)

            sums_N3 = objectives.in_blocks(of_block, self._rows, hidden_ND, self._own(targets_N))
            log_sum_N, target_N = self.split.joined(sums_N3[:, 0], sums_N3[:, 1])

            def mean_logits() -> Array:
                return lax.psum(sums_N3[:, 2], self.split.axis) / self.spec.vocab

            return objectives.losses_of_sums(log_sum_N, target_N, mean_logits, objective)

        return self._over(compute, params, hidden_ND, targets_N)

    # Decoding.
    def _capped(self, words: Tree, hidden_ND: Array, softcap: float | None) -> tuple[Array, Array]:
        """Return this device's (N, R) logits, and whether each row (R,) is a word."""
        real_R = self.split.first(self._rows) + jnp.arange(self._rows) < self.spec.vocab
        logits_NR = self._of_words._logits(words, {}, hidden_ND)
        if softcap is None:
            return logits_NR, real_R
        return jnp.where(real_R, objectives.capped(logits_NR, softcap), LOWEST), real_R

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        return self._capped_log_probs(params, structure, hidden_ND, None)

    def _capped_log_probs(self, params: Tree, structure: Tree, hidden_ND: Array, softcap: float | None) -> Array:
        def compute(words: Tree, hidden_ND: Array) -> Array:
            logits_NR, _ = self._capped(words, hidden_ND, softcap)
            log_sum_N = jax.nn.logsumexp(logits_NR, axis=1)
            joined_N, _ = self.split.joined(log_sum_N, jnp.zeros_like(log_sum_N))
            return logits_NR - joined_N[:, None]

        return self._over(compute, params, hidden_ND, out=P(None, self.split.axis))[:, : self.spec.vocab]

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        def compute(words: Tree, hidden_ND: Array) -> tuple[Array, Array]:
            logits_NR = self._of_words._logits(words, {}, hidden_ND)
            values_NJ, number_NJ = top_k(logits_NR, min(k, self._rows))
            log_sum_N = jax.nn.logsumexp(logits_NR, axis=1)
            joined_N, _ = self.split.joined(log_sum_N, jnp.zeros_like(log_sum_N))
            ids_NJ = (self.split.first(self._rows) + number_NJ).astype(jnp.int32)
            # Among equal values, lower ids come first on each device and from device to device.
            values_NK, place_NK = top_k(self.split.gathered(values_NJ - joined_N[:, None]), k)
            return values_NK, jnp.take_along_axis(self.split.gathered(ids_NJ), place_NK, axis=1)

        return *self._over(compute, params, hidden_ND, out=(EVERYWHERE, EVERYWHERE)), jnp.ones(
            hidden_ND.shape[0], jnp.float32
        )

    def _beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> tuple[Array, Array]:
        return self._search(params, structure, hidden_ND, k)[:2]

    def _sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """Draw (N,) words: a device by its share of the sum, which then draws one of its words."""

        def compute(words: Tree, hidden_ND: Array, uniforms_N: Array) -> Array:
            logits_NR = self._of_words._logits(words, {}, hidden_ND)
            log_sum_NP = self.split.gathered(jax.nn.logsumexp(logits_NR, axis=1)[:, None])
            part_N, left_N = drawn_part(*aligned((log_sum_NP, uniforms_N)))
            word_N = self.split.first(self._rows) + draw(jax.nn.softmax(logits_NR, axis=1), left_N)
            is_own_N = part_N == lax.axis_index(self.split.axis)
            return lax.psum(jnp.where(is_own_N, word_N, 0).astype(jnp.int32), self.split.axis)

        return self._over(compute, params, hidden_ND, uniforms_NU[:, 0])

    def formulation(self) -> str:
        label = f"{blocks.across_devices(self.form)}, " if self.form else ""
        return f"{label}words over {self.split.parts} devices"


LAYER = ParallelSoftmax
