"""Self-organized hierarchical softmax in JAX. See `impls/on_numpy/methods/sohsm.py` for the definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_jax.device import put
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.ops.arrays import Array, Tree, pick, product, wide
from vocabench.impls.on_jax.two_level import cluster_softmax, expand
from vocabench.impls.on_numpy.methods import sohsm
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import clusters
from vocabench.impls.structures.statistics import BatchWeights, statistics_dtype


class SelfOrganizedHierarchicalSoftmax(OutputLayer):
    """Self-organized hierarchical softmax (Shen et al. 2017).

    log P(w | h) = log softmax(U_c h_c)[c(w)] + log softmax over the words of c(w) of (U_w h_w)[w].

    Parameters: `cluster_projection` and `word_projection` (D, D), depending on the option `projection`;
    `cluster_weight` (C, D); `word_weight` (C, S, D), word vectors by cluster and slot, with zeros in empty slots; with
    the option `bias` also `cluster_bias` (C,) and `word_bias` (C, S).

    Structure: `cluster` and `slot` (V,) of each word; `word` (C, S) of each slot, -1 where it is empty.

    Call `observe` in each training step. At regular intervals, take a new structure from `reorganized`, and convert the
    parameters and the optimizer's slots with `moved`.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.limits = sohsm.limits(spec.counts, spec.options)
        self.width = clusters.slab_width(self.limits.words)

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return cluster_softmax.forms(spec.dtype, spec.dim)

    def structure(self) -> Tree:
        return self._structure_of(self.spec.structure["cluster"])

    def _structure_of(self, cluster_V: NDArray[np.int64]) -> Tree:
        slot_V = clusters.slots(cluster_V, self.limits.clusters)
        word_CS = clusters.words_by_slot(cluster_V, slot_V, self.limits.clusters, self.width, empty=-1)
        arrays = {"cluster": cluster_V, "slot": slot_V, "word": word_CS}
        return {name: put(array, jnp.int32) for name, array in arrays.items()}

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        cluster_nll_N, word_nll_N = self._nll_parts(params, structure, hidden_ND, targets_N)
        return cluster_nll_N + word_nll_N

    def _nll_parts(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> tuple[Array, Array]:
        """Return the (N,) negative log-likelihoods of clusters, and of targets given their cluster (equations 5, 6)."""
        return self._parts(params, structure, hidden_ND, targets_N)[:2]

    def observed_loss(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> tuple[Array, Array]:
        cluster_nll_N, word_nll_N, log_cluster_NC = self._parts(params, structure, hidden_ND, targets_N)
        return (cluster_nll_N + word_nll_N).mean(), log_cluster_NC

    def _parts(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> tuple[Array, Array, Array]:
        """Return the results of `nll_parts`, and (N, C) log P(c | h)."""
        cluster_N, slot_N = structure["cluster"][targets_N], structure["slot"][targets_N]
        log_cluster_NC = self.cluster_log_probs(params, hidden_ND)
        word_nll_N = cluster_softmax.in_cluster_nll(
            self._project(params, hidden_ND, "word_projection"),
            params["word_weight"],
            params.get("word_bias"),
            structure["word"],
            cluster_N,
            slot_N,
            self.form,
        )
        return -pick(log_cluster_NC, cluster_N), word_nll_N, log_cluster_NC

    def cluster_log_probs(self, params: Tree, hidden_ND: Array) -> Array:
        """Return (N, C) log P(c | h)."""
        projected_ND = self._project(params, hidden_ND, "cluster_projection")
        logits_NC = self._product(projected_ND, params["cluster_weight"])
        if "cluster_bias" in params:
            logits_NC = logits_NC + params["cluster_bias"]
        return jax.nn.log_softmax(logits_NC, axis=1)

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        log_cluster_NC = self.cluster_log_probs(params, hidden_ND)
        slab_CSD = params["word_weight"]
        word_hidden_ND = self._project(params, hidden_ND, "word_projection").astype(slab_CSD.dtype)
        scores_NCS = jnp.einsum("nd,csd->ncs", word_hidden_ND, slab_CSD, preferred_element_type=wide(slab_CSD.dtype))
        if "word_bias" in params:
            scores_NCS = scores_NCS + params["word_bias"]
        scores_NCS = jnp.where(structure["word"] < 0, -jnp.inf, scores_NCS)
        # Infinite in empty clusters, whose entries no word reads.
        shift_NC = log_cluster_NC - jax.nn.logsumexp(scores_NCS, axis=2)
        joint_NCS = scores_NCS + shift_NC[:, :, None]
        place_V = structure["cluster"] * self.width + structure["slot"]
        return joint_NCS.reshape(len(hidden_ND), -1)[:, place_V]

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        """Return the values and ids (N, K) of the k likeliest words, and (N,) the share of clusters expanded."""
        words = self._words(params, structure)
        if words.form == CPP and cpp.projects_fastest(len(hidden_ND)):
            upper = [params.get(name) for name in sohsm.UPPER_LEVEL]
            projected = sohsm.projected(str(self.spec.options["projection"]))
            return cpp_kernels.likeliest_of_hidden(
                hidden_ND.astype(words.slab_CSD.dtype), projected, upper, *words[:3], k
            )
        return expand.search(*self._levels(params, hidden_ND), words, k)

    def _beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> tuple[Array, Array]:
        """Return the values and ids (N, K) of the k likeliest words of the `width` likeliest clusters."""
        return expand.beam(*self._levels(params, hidden_ND), self._words(params, structure), k, width)

    def _sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """Draw (N,) words: a cluster with the first uniform number, one of its words with the second."""
        return expand.sample(*self._levels(params, hidden_ND), self._words(params, structure), uniforms_NU)

    def _levels(self, params: Tree, hidden_ND: Array) -> tuple[Array, Array]:
        """Return the (N, D) vectors that words are multiplied with, and (N, C) log P(c | h)."""
        return self._project(params, hidden_ND, "word_projection"), self.cluster_log_probs(params, hidden_ND)

    def _words(self, params: Tree, structure: Tree) -> expand.WordsByCluster:
        return expand.WordsByCluster(params["word_weight"], params.get("word_bias"), structure["word"], self.form)

    def _project(self, params: Tree, hidden_ND: Array, name: str) -> Array:
        if name not in params:
            return hidden_ND
        projected_ND = self._product(hidden_ND, params[name]).astype(params[name].dtype)
        if self.spec.options["projection"] == "linear":
            return projected_ND
        rectified_ND = jax.nn.relu(projected_ND)
        if self.spec.options["projection"] == "relu":
            return rectified_ND
        return hidden_ND + rectified_ND * sohsm.RECTIFIED

    def _product(self, left: Array, right: Array) -> Array:
        return cpp_kernels.linear(left, right) if self.form == CPP else product(left, right)

    # Parameters that are stored by slot in the layer, and in vocabulary order in the canonical form.
    _BY_SLOT = ("word_weight", "word_bias")

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        place = (structure["cluster"], structure["slot"])
        return {name: value[place] if name in self._BY_SLOT else value for name, value in tree.items()}

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        return {
            name: self._to_slots(structure, value) if name in self._BY_SLOT else value for name, value in tree.items()
        }

    def _to_slots(self, structure: Tree, by_word_V: Array) -> Array:
        slab = jnp.zeros((self.limits.clusters, self.width, *by_word_V.shape[1:]), by_word_V.dtype)
        return slab.at[structure["cluster"], structure["slot"]].set(by_word_V, unique_indices=True)

    @property
    def reorganizes(self) -> bool:
        return int(str(self.spec.options["interval"])) > 0

    def blank_statistics(self) -> Array | None:
        """Return q(w, c) of equation 9 before the first batch: (V, C) zeros."""
        if not self.reorganizes:
            return None
        size = (self.spec.vocab, self.limits.clusters)
        return jnp.zeros(size, statistics_dtype(*size))

    def observe(self, statistics_VC: Array, log_cluster_NC: Array, weights: BatchWeights) -> Array:
        """Return the statistics after one more batch, whose weights come from `StatisticsWeights` on the host."""
        log2_NC = log_cluster_NC.astype(jnp.float32) / jnp.float32(np.log(2))
        sums_NC = jax.ops.segment_sum(log2_NC, weights.segment, num_segments=len(weights.segment))
        # Entries without a word point beyond the array: they read 0, and are dropped when written.
        old_NC = statistics_VC.at[weights.words].get(mode="fill", fill_value=0).astype(jnp.float32)
        new_NC = weights.keep[:, None] * old_NC + weights.share[:, None] * sums_NC
        return statistics_VC.at[weights.words].set(new_NC.astype(statistics_VC.dtype), mode="drop")

    def reorganized(
        self, structure: Tree, statistics_VC: Array, rng: np.random.Generator
    ) -> tuple[Tree, NDArray[np.int64], NDArray[np.int64]]:
        """Return a new structure by algorithm 1, and the cluster of each word (V,) before and after."""
        before_V = np.asarray(structure["cluster"], dtype=np.int64)
        scores_VC = np.asarray(statistics_VC, dtype=np.float32)
        after_V = clusters.organize(scores_VC, self.spec.counts, self.limits, rng)
        return self._structure_of(after_V), before_V, after_V


LAYER = SelfOrganizedHierarchicalSoftmax
