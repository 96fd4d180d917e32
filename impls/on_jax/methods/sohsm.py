"""Self-organized hierarchical softmax in JAX. See `impls/on_numpy/methods/sohsm.py` for the definition."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP
from vocabench.impls.errors import BadInput
from vocabench.impls.forms import Form
from vocabench.impls.on_jax import inputs, objectives
from vocabench.impls.on_jax.canonical import moved, slots_of
from vocabench.impls.on_jax.device import put
from vocabench.impls.on_jax.layer import AxisName, OutputLayer
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.ops.arrays import Array, Given, Leaves, Tree, pick, product
from vocabench.impls.on_jax.two_level import cluster_softmax, expand, statistics
from vocabench.impls.on_numpy.methods import sohsm
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import clusters

_OF_BATCH = "log_cluster"  # where `training_loss` gives the loss the log-probabilities of clusters that it has computed


class SelfOrganizedHierarchicalSoftmax(OutputLayer):
    """Self-organized hierarchical softmax (Shen et al. 2017).

    log P(w | h) = log softmax(U_c h_c)[c(w)] + log softmax over the words of c(w) of (U_w h_w)[w].

    Parameters: `cluster_projection` and `word_projection` (D, D), depending on the option `projection`;
    `cluster_weight` (C, D); `word_weight` (C, S, D), word vectors by cluster and slot, with zeros in empty slots; with
    the option `bias` also `cluster_bias` (C,) and `word_bias` (C, S).

    Structure: `cluster` and `slot` (V,) of each word; `word` (C, S) of each slot, -1 where it is empty; in a layer that
    reorganizes also the entries of `statistics.blank`.

    Training calls `training_loss` for each batch, or `observe` with the batch's log-probabilities of clusters, and
    `reorganize` now and then: it gives each word a new cluster and moves the word's vector, bias and optimizer slots.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.limits = sohsm.limits(spec.counts, spec.options)
        self.width = clusters.slab_width(self.limits.words)

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return cluster_softmax.forms(spec.dtype, spec.dim)

    def placement(self) -> Tree:
        return self._structure_of(self.spec.structure["cluster"])

    def structure(self) -> Tree:
        recorded = statistics.blank(self.spec, self.limits.clusters) if self.reorganizes else {}
        return {**self.placement(), **recorded}

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
        cluster_N, slot_N = structure["cluster"][targets_N], structure["slot"][targets_N]
        log_cluster_NC = structure.get(_OF_BATCH)
        if log_cluster_NC is None:
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
        return -pick(log_cluster_NC, cluster_N), word_nll_N

    def _observed_loss(
        self, params: Tree, structure: Tree, hidden: Given, targets: Given, axis_name: AxisName | None, **options: Any
    ) -> tuple[Array, Tree]:
        """Return the training loss, and the structure after `observe`; padding changes no statistics."""
        hidden_ND, leading = inputs.flat_hidden(hidden, self.spec.dim)
        ignored = options.get("ignore_index", -100)
        inputs.check_ignore_index(ignored)
        batch = inputs.read_targets(targets, leading, self.spec.vocab, ignored)
        hidden_ND = inputs.without_padding(hidden_ND, batch.real_N)
        log_cluster_NC = self._opened(params, structure)[0].cluster_log_probs(params, hidden_ND)
        loss = self.loss(params, {**structure, _OF_BATCH: log_cluster_NC}, hidden, batch, **options)
        return loss, self.observe(structure, log_cluster_NC, batch.observed_N, axis_name=axis_name)

    def observe(
        self, structure: Tree, log_cluster_NC: Array, targets_N: Array, *, axis_name: AxisName | None = None
    ) -> Tree:
        """Return the structure with the statistics (equation 9) after one more batch.

        Args:
            structure: Structure.
            log_cluster_NC: The result of `cluster_log_probs` for the batch's hidden vectors.
            targets_N: The targets; those outside the vocabulary change nothing.
            axis_name: As in `training_loss`.
        """
        if "statistics" not in structure:
            raise BadInput("structure has no 'statistics': allowed: the one of init() of a layer with an interval")
        log_cluster_NC = jax.lax.stop_gradient(log_cluster_NC)
        if axis_name is not None:
            gathered = partial(jax.lax.all_gather, axis_name=axis_name, tiled=True, to="invarying")
            log_cluster_NC, targets_N = gathered(log_cluster_NC), gathered(targets_N)
        return statistics.updated(structure, log_cluster_NC, targets_N, str(self.spec.options["smoothing"]))

    def cluster_log_probs(self, params: Tree, hidden_ND: Array) -> Array:
        """Return (N, C) log P(c | h)."""
        projected_ND = self._project(params, hidden_ND, "cluster_projection")
        logits_NC = self._product(projected_ND, params["cluster_weight"])
        if "cluster_bias" in params:
            logits_NC = logits_NC + params["cluster_bias"]
        return jax.nn.log_softmax(logits_NC, axis=1)

    def _scores(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        """Return the (N, C, S) scores of all words within their clusters, -inf in empty slots."""
        return self._words(params, structure).scores(self._project(params, hidden_ND, "word_projection"))

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        log_cluster_NC, scores_NCS = (
            self.cluster_log_probs(params, hidden_ND),
            self._scores(params, structure, hidden_ND),
        )
        # Infinite in empty clusters, whose entries no word reads.
        shift_NC = log_cluster_NC - jax.nn.logsumexp(scores_NCS, axis=2)
        joint_NCS = scores_NCS + shift_NC[:, :, None]
        place_V = structure["cluster"] * self.width + structure["slot"]
        return joint_NCS.reshape(hidden_ND.shape[0], -1)[:, place_V]

    def _entropy(self, params: Tree, structure: Tree, hidden_ND: Array, softcap: float | None) -> Array:
        """Return the (N,) entropies: that of the clusters, and the mean of those of the words within a cluster."""
        log_cluster_NC = self.cluster_log_probs(params, hidden_ND)
        within_NC = objectives.entropy_within(self._scores(params, structure, hidden_ND))
        return (jnp.exp(log_cluster_NC) * (within_NC - log_cluster_NC)).sum(axis=1)

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        """Return the values and ids (N, K) of the k likeliest words, and (N,) the share of clusters expanded."""
        words = self._words(params, structure)
        if words.form == CPP and cpp.projects_fastest(hidden_ND.shape[0]):
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

    def present_spec(self, structure: Leaves) -> LayerSpec:
        cluster_V = np.asarray(structure["cluster"], np.int64)
        return replace(self.spec, structure={**self.spec.structure, "cluster": cluster_V})

    def resize(
        self, params: Leaves, structure: Leaves, counts: ArrayLike, **options: object
    ) -> tuple[Self, Tree, Tree]:
        """Return a layer for another vocabulary, which starts from the present clusters without statistics."""
        return super().resize(params, structure, counts, **{"interval": self.spec.options["interval"], **options})

    def reorganize(
        self, params: Leaves, structure: Leaves, opt_state: Any = None, *, seed: int | None = None
    ) -> tuple[Tree, Tree, Any]:
        """Organize the words into new clusters by algorithm 1, from the statistics."""
        if not self.reorganizes:
            return super().reorganize(params, structure, opt_state, seed=seed)
        params, structure = self._checked(params, structure)
        count = int(structure["reorganizations"]) + 1
        after = {**structure, "reorganizations": _like(structure["reorganizations"], np.int32(count))}
        if not np.asarray(structure["seen"]).any():
            return params, after, opt_state
        self._check_state(params, opt_state)
        rng = np.random.default_rng([self.spec.seed if seed is None else seed, 3, count])
        cluster_V = clusters.organize(np.asarray(structure["statistics"]), self.spec.counts, self.limits, rng)
        after |= {name: _like(structure[name], array) for name, array in self._structure_of(cluster_V).items()}

        def move(tree: Tree) -> Tree:
            made = self.from_canonical(after, self.to_canonical(structure, tree))
            return {name: _like(tree[name], value) for name, value in made.items()}

        return move(params), after, moved(opt_state, params, move)

    def _check_state(self, params: Tree, opt_state: Any) -> None:
        """Refuse the state of an optimizer that cannot move with its words."""
        for node in slots_of(opt_state, params):
            for name in self._BY_SLOT:
                if name in params and hasattr(node[name], "shape"):
                    clusters.moves_along(name, np.shape(node[name]), np.shape(params[name]))


def _like(before: Array, after: Array | np.generic) -> Array:
    """Return an array where another one is placed."""
    return jax.device_put(after, before.sharding if isinstance(before, jax.Array) else None)


LAYER = SelfOrganizedHierarchicalSoftmax
