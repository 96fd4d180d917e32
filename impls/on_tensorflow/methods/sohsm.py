"""Self-organized hierarchical softmax in TensorFlow. See `impls/on_numpy/methods/sohsm.py` for the definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_numpy.methods import sohsm
from vocabench.impls.on_tensorflow import objectives
from vocabench.impls.on_tensorflow.inputs import Targets
from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32, cross_entropy, in_xla, product
from vocabench.impls.on_tensorflow.training.optimizers import Updates, state_of
from vocabench.impls.on_tensorflow.two_level import cluster_softmax, expand, statistics
from vocabench.impls.spec import LayerSpec, Shapes
from vocabench.impls.structures import clusters
from vocabench.impls.structures.statistics import statistics_dtype

# The logits of clusters that a loss has computed, while a batch is being recorded.
_recorded: ContextVar[list[Tensor] | None] = ContextVar("recorded", default=None)


class SelfOrganizedHierarchicalSoftmax(OutputLayer):
    """log P(w | h) = log softmax(U_c h_c)[c(w)] + log softmax over the words of c(w) of (U_w h_w)[w] (Shen et al.
    2017).

    Weights: `cluster_projection`, `word_projection` (D, D), if the option `projection` has them; `cluster_weight`
    (C, D); `word_weight` (C, S, D), words by cluster and slot with zeros in empty slots; with `bias` also
    `cluster_bias` (C,) and `word_bias` (C, S). Variables that are not trained: `cluster`, `slot` (V,) of each word,
    and `word` (C, S) of each slot, -1 where it is empty.

    A layer that reorganizes also has `statistics` (V, C), `seen` (V,), how often each word was a target, and
    `reorganizations` (). Training calls `training_loss` for each batch, or `observe` with the batch's cluster
    log-probabilities, and `reorganize` now and then: it gives each word a new cluster and moves the word's vector,
    bias and optimizer state.
    """

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        self.limits = sohsm.limits(spec.counts, spec.options)
        self.width = clusters.slab_width(self.limits.words)
        super().__init__(spec, **keyword)
        # As weights, they are saved by Keras.
        self.cluster, self.slot, self.word = (
            self.add_weight(name=name, shape=shape, initializer="zeros", dtype="int32", trainable=False).value
            for name, shape in (
                ("cluster", (spec.vocab,)), ("slot", (spec.vocab,)), ("word", (self.limits.clusters, self.width)),
            )
        )  # fmt: skip
        if self.reorganizes:
            sizes = {
                "statistics": ((spec.vocab, self.limits.clusters), statistics_dtype(spec.vocab, self.limits.clusters)),
                "seen": ((spec.vocab,), np.dtype(np.int64)),
                "reorganizations": ((), np.dtype(np.int64)),
            }
            self.statistics, self.seen, self.reorganizations = (
                self.add_weight(shape, "zeros", dtype.name, trainable=False, autocast=False, name=name).value
                for name, (shape, dtype) in sizes.items()
            )
            self._frequency_V = tf.constant(np.maximum(spec.counts, 1), tf.float32)
        self._place(spec.structure["cluster"])
        self._search_of_few: Callable[..., tuple[Tensor, Tensor, Tensor]] | None = None
        if self.form == CPP:
            # Created here, where a weight's value is its variable. Where Keras casts, it is a tensor of a single call.
            upper = [self.value_of(name) for name in sohsm.UPPER_LEVEL]
            words = self.value_of("word_weight"), self.value_of("word_bias"), self.word
            projected = sohsm.projected(str(spec.options["projection"]))
            self._search_of_few = cpp_kernels.search_of_hidden(projected, upper, *words)

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return cluster_softmax.forms(spec.dtype)

    @property
    def one_operation(self) -> tuple[str, ...]:
        return ("search",) if self.form == CPP else ()

    @property
    def reorganizes(self) -> bool:
        return int(str(self.spec.options["interval"])) > 0

    def inner_shapes(self) -> Shapes:
        shapes = self.spec.parameter_shapes()
        shapes["word_weight"] = (self.limits.clusters, self.width, self.spec.dim)
        if "word_bias" in shapes:
            shapes["word_bias"] = (self.limits.clusters, self.width)
        return shapes

    def _word_slots(self) -> Tensors:
        return {"word_weight": self.word}

    def tie(self, embedding: keras.layers.Embedding) -> None:
        super().tie(embedding)
        self._search_of_few = None  # reads the weight that the embedding has replaced

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        if in_xla():
            return self._nll_of_all_words(hidden_ND, targets_N)
        cluster_nll_N, word_nll_N = self._nll_parts(hidden_ND, targets_N)
        return cluster_nll_N + word_nll_N

    def _nll_parts(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (N,) negative log-likelihoods of clusters, and of targets given their cluster (equations 5, 6)."""
        cluster_N, slot_N = tf.gather(self.cluster, targets_N), tf.gather(self.slot, targets_N)
        word_nll_N = cluster_softmax.in_cluster_nll(
            self._project(hidden_ND, "word_projection"),
            self.value_of("word_weight"),
            self.value_of("word_bias"),
            self.word,
            cluster_N,
            slot_N,
            self.form,
        )
        return cross_entropy(self._cluster_logits(hidden_ND), cluster_N), word_nll_N

    def cluster_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return (N, C) log P(c | h)."""
        return tf.nn.log_softmax(self._cluster_logits(hidden_ND))

    def _scores(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N, C, S) scores of all words within their clusters, very low in empty slots."""
        return cluster_softmax.all_scores(self._project(hidden_ND, "word_projection"), *self._words()[:3])

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        scores_NCS = self._scores(hidden_ND)
        shift_NC = self.cluster_log_probs(hidden_ND) - tf.reduce_logsumexp(scores_NCS, axis=2)
        joint_NCS = scores_NCS + shift_NC[:, :, None]
        joint = tf.reshape(joint_NCS, [-1, self.limits.clusters * self.width])
        return tf.gather(joint, self.cluster * self.width + self.slot, axis=1)

    def _entropy(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        """Return the (N,) entropies: that of the clusters, and the mean of those of the words within a cluster."""
        log_cluster_NC = self.cluster_log_probs(hidden_ND)
        within_NC = objectives.entropy_within(self._scores(hidden_ND))
        return tf.reduce_sum(tf.exp(log_cluster_NC) * (within_NC - log_cluster_NC), axis=1)

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of clusters expanded."""
        if in_xla():
            return super()._search(hidden_ND, k)
        if self._search_of_few and self.form == CPP and cpp.projects_fastest(hidden_ND.shape[0]):
            return self._search_of_few(hidden_ND, k)
        return expand.search(*self._levels(hidden_ND), self._words(), k)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words of the `width` likeliest clusters."""
        if in_xla():
            return super()._beam(hidden_ND, k, width)
        return expand.beam(*self._levels(hidden_ND), self._words(), k, width)

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words: the first uniform number draws a cluster, the second one of its words."""
        if in_xla():
            return super()._sample(hidden_ND, uniforms_NU)
        return expand.sample(*self._levels(hidden_ND), self._words(), uniforms_NU)

    def _levels(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (N, D) factors of the products with word vectors, and (N, C) log P(c | h)."""
        return self._project(hidden_ND, "word_projection"), self.cluster_log_probs(hidden_ND)

    def _words(self) -> expand.WordsByCluster:
        bias_CS = self.value_of("word_bias")
        # Tensors: a graph that is traced for variables fails for another layer, once these have been deleted.
        slab_CSD, word_CS = tf.convert_to_tensor(self.value_of("word_weight")), tf.convert_to_tensor(self.word)
        return expand.WordsByCluster(
            slab_CSD, None if bias_CS is None else tf.convert_to_tensor(bias_CS), word_CS, self.form
        )

    def _project(self, hidden_ND: Tensor, name: str) -> Tensor:
        weight_DD = self.value_of(name)
        if weight_DD is None:
            return hidden_ND
        projected_ND = self._product(hidden_ND, weight_DD)
        if self.spec.options["projection"] == "linear":
            return projected_ND
        rectified_ND = tf.nn.relu(projected_ND)
        if self.spec.options["projection"] == "relu":
            return rectified_ND
        return tf.cast(hidden_ND, rectified_ND.dtype) + rectified_ND * sohsm.RECTIFIED

    def _cluster_logits(self, hidden_ND: Tensor) -> Tensor:
        projected_ND = self._project(hidden_ND, "cluster_projection")
        logits_NC = self._product(projected_ND, self.value_of("cluster_weight"))
        if self.value_of("cluster_bias") is not None:
            logits_NC += self.value_of("cluster_bias")
        logits_NC = at_least_float32(logits_NC)
        if (recorded := _recorded.get()) is not None:
            recorded.append(tf.stop_gradient(logits_NC))
        return logits_NC

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return cpp_kernels.linear(left, right) if self.form == CPP else product(left, right)

    # Stored by slot; their canonical form is in vocabulary order.
    _BY_SLOT = ("word_weight", "word_bias")

    def to_canonical(self, tensors: Tensors) -> Tensors:
        place_V2 = self._place_V2()
        return {
            name: tf.gather_nd(value, place_V2) if name in self._BY_SLOT else value for name, value in tensors.items()
        }

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return {name: self._to_slots(value) if name in self._BY_SLOT else value for name, value in tensors.items()}

    def _to_slots(self, by_word_V: Tensor) -> Tensor:
        shape = [self.limits.clusters, self.width, *by_word_V.shape[1:]]
        return tf.scatter_nd(self._place_V2(), by_word_V, shape)

    def _place_V2(self) -> Tensor:
        """Return the (V, 2) cluster and slot of each word."""
        return tf.stack([self.cluster, self.slot], axis=1)

    def _place(self, cluster_V: NDArray[np.int64]) -> None:
        """Assign words to these clusters."""
        slot_V = clusters.slots(cluster_V, self.limits.clusters)
        word_CS = clusters.words_by_slot(cluster_V, slot_V, self.limits.clusters, self.width, empty=-1)
        for variable, array in ((self.cluster, cluster_V), (self.slot, slot_V), (self.word, word_CS)):
            variable.assign(array.astype(np.int32))

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Assign saved weights, and the clusters that they belong to.

        Raises:
            BadInput: The names or shapes are others, or the clusters have no place for their words.
        """
        super().load_own_variables(store)
        self._place(self.cluster.numpy().astype(np.int64))

    def _refusal(self, digest: bytes, saved: Tensors) -> str | None:
        cluster_V = np.asarray(saved["cluster"])
        sizes_C = np.bincount(cluster_V) if cluster_V.min() >= 0 else np.zeros(1)
        if 0 < sizes_C.max() <= self.width and len(sizes_C) <= self.limits.clusters:
            return None
        return f"other clusters: allowed: up to {self.limits.clusters} clusters of up to {self.width} words"

    def _observed(self, loss: Callable[[], Tensor], batch: Targets) -> Tensor:
        token = _recorded.set(recorded := [])
        try:
            made = loss()
        finally:
            _recorded.reset(token)
        targets_N = batch.words_N
        for known_N in (batch.real_N, None if batch.outside_N is None else ~batch.outside_N):
            if known_N is not None:
                targets_N = tf.where(known_N, targets_N, -tf.ones_like(targets_N))
        logits_NC = recorded[0] if recorded else tf.zeros([0, self.limits.clusters])
        self.observe(tf.nn.log_softmax(logits_NC), targets_N)
        return made

    def observe(self, log_cluster_NC: Tensor, targets_N: Tensor) -> None:
        """Update the statistics (equation 9) with one batch; with those of all replicas of a `tf.distribute.Strategy`.

        Args:
            log_cluster_NC: The result of `cluster_log_probs` for the batch's hidden vectors.
            targets_N: The targets; those outside the vocabulary change nothing.

        Raises:
            BadInput: The layer does not reorganize.
        """
        if not self.reorganizes:
            raise self._no_clusters("observe")
        batch = statistics.joined(tf.stop_gradient(log_cluster_NC), tf.cast(targets_N, tf.int32))
        kind = str(self.spec.options["smoothing"])
        statistics.update(self.statistics, self.seen, *batch, self._frequency_V, kind)

    def reorganize(
        self, optimizer: keras.optimizers.Optimizer | Updates | None = None, *, seed: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Organize the words into new clusters by algorithm 1, from the statistics.

        Word vectors and biases move with their words, and so do the variables of `optimizer` that have their shape.
        """
        if not self.reorganizes:
            return super().reorganize(optimizer, seed=seed)
        weights = {name: getattr(self, name) for name in self._BY_SLOT if hasattr(self, name)}
        moved = {
            name: [weight.value, *([] if optimizer is None else state_of(optimizer, weight))]
            for name, weight in weights.items()
        }
        before_V = self.cluster.numpy().astype(np.int64)
        self.reorganizations.assign_add(1)
        if not self.seen.numpy().any():
            return before_V, before_V
        rng = np.random.default_rng([self.spec.seed if seed is None else seed, 3, int(self.reorganizations.numpy())])
        after_V = clusters.organize(self.statistics.numpy(), self.spec.counts, self.limits, rng)
        variables = [variable for states in moved.values() for variable in states]
        place_V2 = self._place_V2()
        by_word = [tf.gather_nd(tf.convert_to_tensor(variable), place_V2) for variable in variables]
        self._place(after_V)
        for variable, by_word_V in zip(variables, by_word, strict=True):
            variable.assign(self._to_slots(by_word_V))
        return before_V, after_V

    def present_spec(self) -> LayerSpec:
        return replace(self.spec, structure={**self.spec.structure, "cluster": self.cluster.numpy().astype(np.int64)})

    def resize(self, counts: ArrayLike, **options: object) -> Self:
        """Return a layer for another vocabulary, which starts from the present clusters without statistics."""
        return super().resize(counts, **{"interval": self.spec.options["interval"], **options})


LAYER = SelfOrganizedHierarchicalSoftmax
