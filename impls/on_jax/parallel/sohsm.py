"""Self-organized hierarchical softmax with fixed clusters, whole clusters to a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from vocabench.impls.errors import BadInput
from vocabench.impls.on_jax.methods.sohsm import SelfOrganizedHierarchicalSoftmax
from vocabench.impls.on_jax.ops.arrays import Array, Tree, aligned, draw, pick, product, wide
from vocabench.impls.on_jax.ops.topk import best_by_id
from vocabench.impls.on_jax.parallel.layer import ParallelLayer
from vocabench.impls.on_jax.parallel.split import EVERYWHERE, LOWEST, Split
from vocabench.impls.on_jax.sampling import drawn_part
from vocabench.impls.on_jax.two_level import cluster_softmax
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import clusters

_BY_SLOT = ("word_weight", "word_bias")


class ParallelClusters(ParallelLayer):
    """SOHSM with fixed clusters, of which each device has a range.

    Parameters: as in SOHSM, with the number of clusters C rounded up to a multiple of the devices; every device has the
    projections. Decoding scores all words of a device.
    """

    def __init__(self, spec: LayerSpec, split: Split) -> None:
        if spec.options["interval"]:
            raise BadInput(
                f"option interval={spec.options['interval']} with a mesh: allowed: 0, clusters that stay in place"
            )
        super().__init__(spec, split)
        self._of_clusters = SelfOrganizedHierarchicalSoftmax(spec)  # whose functions take the clusters of one device
        self._count = int(spec.structure["cluster_count"])
        self._rows = split.padded(self._count) // split.parts

    def placement(self) -> Tree:
        cluster_V, width = self.spec.structure["cluster"], self._of_clusters.width
        slot_V = clusters.slots(cluster_V, self._count)
        word_CS = clusters.words_by_slot(cluster_V, slot_V, self.split.padded(self._count), width, empty=-1)
        placed = {"cluster": self.split.copied(cluster_V.astype(np.int32))}
        placed["slot"] = self.split.copied(slot_V.astype(np.int32))
        return {**placed, "word": self.split.placed(word_CS.astype(np.int32))}

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        place = structure["cluster"], structure["slot"]

        def canonical(name: str, value: Array) -> Array:
            if name in _BY_SLOT:
                return value[place]
            return value[: self._count] if name in ("cluster_weight", "cluster_bias") else value

        return {name: canonical(name, value) for name, value in tree.items()}

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        def placed(name: str, value: Any) -> Array:
            if name in _BY_SLOT:
                return self.split.placed(self._by_slot(structure, value))
            return self.split.placed(value) if name in ("cluster_weight", "cluster_bias") else self.split.copied(value)

        return {name: placed(name, value) for name, value in tree.items()}

    def _by_slot(self, structure: Tree, by_word_V: Any) -> Any:
        shape = self._count, self._of_clusters.width, *by_word_V.shape[1:]
        if not isinstance(by_word_V, np.ndarray):
            return jnp.zeros(shape, by_word_V.dtype).at[structure["cluster"], structure["slot"]].set(by_word_V)
        slab = np.zeros(shape, by_word_V.dtype)  # on the host, so that no device holds all words
        slab[np.asarray(structure["cluster"]), np.asarray(structure["slot"])] = by_word_V
        return slab

    def _over(
        self, compute: Callable[..., Any], params: Tree, structure: Tree, *by_token: Array, out: Any = EVERYWHERE
    ) -> Any:
        """Return `compute(params, word_CS, *by_token)` on every device, with the clusters of the device."""
        rows = P(self.split.axis)
        specs = {name: EVERYWHERE if name.endswith("_projection") else rows for name in params}

        def of_device(*inputs: Any) -> Any:
            return compute(*aligned(inputs))

        return self.split.over(of_device, (specs, rows, *[EVERYWHERE] * len(by_token)), out)(
            params, structure["word"], *by_token
        )

    def _cluster_logits(self, params: Tree, hidden_ND: Array) -> Array:
        """Return (N, C_r) logits of this device's clusters."""
        logits_NC = product(
            self._of_clusters._project(params, hidden_ND, "cluster_projection"), params["cluster_weight"]
        )
        if "cluster_bias" in params:
            logits_NC = logits_NC + params["cluster_bias"]
        is_real_C = self.split.first(self._rows) + jnp.arange(self._rows) < self._count
        return jnp.where(is_real_C, logits_NC, LOWEST)

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        def compute(params: Tree, word_CS: Array, hidden_ND: Array, cluster_N: Array, slot_N: Array) -> Array:
            own_N = cluster_N - self.split.first(self._rows)
            is_own_N = (own_N >= 0) & (own_N < self._rows)
            logits_NC = self._cluster_logits(params, hidden_ND)
            target_N = jnp.where(is_own_N, pick(logits_NC, jnp.where(is_own_N, own_N, 0)), 0)
            word_nll_N = cluster_softmax.in_cluster_nll(
                self._of_clusters._project(params, hidden_ND, "word_projection"),
                params["word_weight"],
                params.get("word_bias"),
                word_CS,
                jnp.where(is_own_N, own_N, self._rows),
                slot_N,
                self.form,
                1 / self.split.parts,
            )
            # Both levels in the sum that carries the targets' logits.
            own_N = target_N - jnp.where(is_own_N, word_nll_N, 0)
            log_sum_N, target_N = self.split.joined(jax.nn.logsumexp(logits_NC, axis=1), own_N)
            return log_sum_N - target_N

        cluster_N, slot_N = structure["cluster"][targets_N], structure["slot"][targets_N]
        return self._over(compute, params, structure, hidden_ND, cluster_N, slot_N)

    def _own_log_probs(self, params: Tree, word_CS: Array, hidden_ND: Array) -> Array:
        """Return the (N, C_r S) log-probabilities of this device's words by slot, -inf in empty slots."""
        logits_NC, slab_CSD = self._cluster_logits(params, hidden_ND), params["word_weight"]
        log_sum_N = jax.nn.logsumexp(logits_NC, axis=1)
        joined_N, _ = self.split.joined(log_sum_N, jnp.zeros_like(log_sum_N))
        word_hidden_ND = self._of_clusters._project(params, hidden_ND, "word_projection").astype(slab_CSD.dtype)
        scores_NCS = jnp.einsum("nd,csd->ncs", word_hidden_ND, slab_CSD, preferred_element_type=wide(slab_CSD.dtype))
        if "word_bias" in params:
            scores_NCS = scores_NCS + params["word_bias"]
        scores_NCS = jnp.where(word_CS < 0, LOWEST, scores_NCS)
        shift_NC = logits_NC - joined_N[:, None] - jax.nn.logsumexp(scores_NCS, axis=2)
        return jnp.where(word_CS < 0, -jnp.inf, scores_NCS + shift_NC[:, :, None]).reshape(hidden_ND.shape[0], -1)

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        joint_NF = self._over(self._own_log_probs, params, structure, hidden_ND, out=P(None, self.split.axis))
        return joint_NF[:, structure["cluster"] * self._of_clusters.width + structure["slot"]]

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        def compute(params: Tree, word_CS: Array, hidden_ND: Array) -> tuple[Array, Array]:
            joint_NF = self._own_log_probs(params, word_CS, hidden_ND)
            ids_NF = jnp.broadcast_to(word_CS.reshape(-1), joint_NF.shape)
            values_NJ, ids_NJ = best_by_id(joint_NF, ids_NF, min(k, joint_NF.shape[1]))
            return best_by_id(self.split.gathered(values_NJ), self.split.gathered(ids_NJ), k)

        found = self._over(compute, params, structure, hidden_ND, out=(EVERYWHERE, EVERYWHERE))
        return *found, jnp.ones(hidden_ND.shape[0], jnp.float32)

    def _sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """Draw (N,) words: the first uniform draws a device and one of its clusters, the second a word."""

        def compute(params: Tree, word_CS: Array, hidden_ND: Array, uniforms_NU: Array) -> Array:
            logits_NC = self._cluster_logits(params, hidden_ND)
            log_sum_NP = self.split.gathered(jax.nn.logsumexp(logits_NC, axis=1)[:, None])
            part_N, left_N = drawn_part(*aligned((log_sum_NP, uniforms_NU[:, 0])))
            cluster_N = draw(jax.nn.softmax(logits_NC, axis=1), left_N)
            word_hidden_ND = self._of_clusters._project(params, hidden_ND, "word_projection")
            words = params["word_weight"], params.get("word_bias"), word_CS
            rows = jnp.arange(hidden_ND.shape[0])
            scores_NS = cluster_softmax.pair_scores(word_hidden_ND, *words, *aligned((rows, cluster_N)), self.form)
            word_N = word_CS[cluster_N, draw(jax.nn.softmax(scores_NS, axis=1), uniforms_NU[:, 1])]
            is_own_N = part_N == lax.axis_index(self.split.axis)
            return lax.psum(jnp.where(is_own_N, word_N, 0).astype(jnp.int32), self.split.axis)

        return self._over(compute, params, structure, hidden_ND, uniforms_NU)


LAYER = ParallelClusters
