"""Softmax over a tree of any arity in TensorFlow. See `impls/on_numpy/methods/multiway_tree.py` for the definition."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from vocabench.impls.forms import Form
from vocabench.impls.on_numpy.methods import multiway_tree
from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32, best_by_id, in_xla
from vocabench.impls.on_tensorflow.two_level import cluster_softmax
from vocabench.impls.on_tensorflow.two_level.levels import Level, followed
from vocabench.impls.spec import LayerSpec, Shapes
from vocabench.impls.structures.multiway import Split


class MultiwayTreeSoftmax(OutputLayer):
    """log P(w | h) = sum over the nodes on the way to w of their log softmax among their siblings.

    Weights: those of two `Level`s, the `upper` and the `lower` part of the tree as in `multiway.Split`. A tree of a
    single level has no upper part.
    """

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        split = Split.of(multiway_tree.tree_of(spec))
        self._kinds = ("weight", "bias") if spec.has_bias else ("weight",)
        levels = [
            None if shelves is None else Level(name, shelves, self.value_of, lambda: self.form, self._kinds)
            for name, shelves in zip(("upper", "lower"), split.shelves(spec.counts), strict=True)
        ]
        self._inner_shapes: Shapes = {}
        for level in levels:
            if level is not None:
                self._inner_shapes |= level.inner_shapes(spec.dim)
        super().__init__(spec, **keyword)
        upper, lower = levels
        assert lower is not None
        self.upper, self.lower, self._split = upper, lower, split

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return cluster_softmax.forms(spec.dtype)

    def inner_shapes(self) -> Shapes:
        return self._inner_shapes

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        if in_xla():
            return self._nll_of_all_words(hidden_ND, targets_N)
        lower_N = tf.gather(tf.constant(self._split.lower_V, tf.int32), targets_N)
        # `dynamic_partition` has dense gradients, where those of `gather` are sparse.
        is_lower_N = tf.cast(lower_N >= 0, tf.int32)
        hidden_RD = tf.dynamic_partition(hidden_ND, is_lower_N, 2)[1]
        nll_R = self.lower.nll(hidden_RD, tf.dynamic_partition(lower_N, is_lower_N, 2)[1])
        total_N = tf.scatter_nd(tf.where(lower_N >= 0), nll_R, tf.shape(lower_N, tf.int64))
        if self.upper is None:
            return total_N
        # One pair for each token and each upper member on its way.
        way_NL = tf.gather(tf.constant(self._split.way_VL, tf.int32), targets_N)
        member_P, on_way_P = tf.reshape(way_NL, [-1]), tf.cast(tf.reshape(way_NL >= 0, [-1]), tf.int32)
        shape = [tf.shape(way_NL)[0], way_NL.shape[1], hidden_ND.shape[1]]
        hidden_PD = tf.reshape(tf.broadcast_to(hidden_ND[:, None], shape), [-1, hidden_ND.shape[1]])
        hidden_RD = tf.dynamic_partition(hidden_PD, on_way_P, 2)[1]
        nll_R = self.upper.nll(hidden_RD, tf.dynamic_partition(member_P, on_way_P, 2)[1])
        return total_N + tf.reduce_sum(tf.scatter_nd(tf.where(way_NL >= 0), nll_R, tf.shape(way_NL, tf.int64)), axis=1)

    def _joint(self, hidden_ND: Tensor, width: int | None = None) -> Tensor:
        """Return (N, X) log P of the root and each upper member.

        With `width`, only so many inner nodes of each depth are followed, and others have -inf.
        """
        above_NM = tf.zeros([tf.shape(hidden_ND)[0], 1], at_least_float32(hidden_ND[:0]).dtype)
        if self.upper is None:
            return above_NM
        within_NA, parts = self.upper.log_within(hidden_ND), [above_NM]
        for start, first_word, end in self._split.levels:
            log_NM = tf.gather(above_NM, self._split.upper_above_A[start:end], axis=1) + within_NA[:, start:end]
            above_NM, words_NW = log_NM[:, : first_word - start], log_NM[:, first_word - start :]
            if width is not None and first_word > start:
                above_NM = followed(above_NM, width)
            parts += [above_NM, words_NW]
        return tf.concat(parts, axis=1)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        split, log_NX = self._split, self._joint(hidden_ND)
        parent_B = split.lower_parent_H[split.lower_group_B]
        log_NB = tf.gather(log_NX, parent_B, axis=1) + self.lower.log_within(hidden_ND)
        return tf.gather(tf.concat([log_NB, log_NX], axis=1), split.word_column_V, axis=1)

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of inner nodes expanded."""
        if in_xla():
            return super()._search(hidden_ND, k)
        return self._found_below(hidden_ND, self._joint(hidden_ND), k)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words below the `width` likeliest nodes of each depth."""
        if in_xla():
            return super()._beam(hidden_ND, k, width)
        return self._found_below(hidden_ND, self._joint(hidden_ND, width), k)[:2]

    def _found_below(self, hidden_ND: Tensor, log_NX: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        split = self._split
        log_NH = tf.gather(log_NX, split.lower_parent_H, axis=1)
        values_NK, member_NK, share_N = self.lower.search(hidden_ND, log_NH, min(k, len(split.lower_word_B)))
        ids_NK = tf.gather(tf.constant(split.lower_word_B, tf.int32), member_NK)
        lower, upper = len(split.lower_parent_H), split.upper_groups
        share_N = (upper + lower * share_N) / (upper + lower)
        words, columns = split.single_words
        if not len(words):
            return values_NK, ids_NK, share_N
        single_NS = tf.gather(log_NX, columns, axis=1)
        single_NK, place_NK = tf.math.top_k(single_NS, min(k, len(words)))  # ties by lower place, which is a lower id
        values_NX = tf.concat([values_NK, single_NK], axis=1)
        ids_NX = tf.concat([ids_NK, tf.gather(tf.constant(words, tf.int32), place_NK)], axis=1)
        return *best_by_id(values_NX, ids_NX, k), share_N

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words. Each uniform number draws one choice on the way down."""
        if in_xla():
            return super()._sample(hidden_ND, uniforms_NU)
        split = self._split
        at_N = tf.zeros(tf.shape(hidden_ND)[:1], tf.int32)  # position among the X
        for depth in range(len(split.levels)):
            assert self.upper is not None
            group_N = tf.gather(tf.constant(split.upper_group_X, tf.int32), at_N)
            member_N = self.upper.sample(hidden_ND, group_N, uniforms_NU[:, depth])
            at_N = tf.where(group_N >= 0, 1 + member_N, at_N)
        group_N = tf.gather(tf.constant(split.lower_group_X, tf.int32), at_N)
        depth_N = tf.minimum(tf.gather(tf.constant(split.depth_X, tf.int32), at_N), self.spec.draws - 1)
        member_N = self.lower.sample(hidden_ND, group_N, tf.gather(uniforms_NU, depth_N, batch_dims=1))
        lower_N = tf.gather(tf.constant(split.lower_word_B, tf.int32), member_N)
        if self.upper is None:
            return lower_N
        upper_N = tf.gather(tf.constant(split.upper_word_A, tf.int32), tf.maximum(at_N - 1, 0))
        return tf.where(group_N >= 0, lower_N, upper_N)

    def formulation(self) -> str:
        slabs = sum(len(level.shelves) for level in (self.upper, self.lower) if level is not None)
        return f"{self.form}, on {slabs} slabs of nodes with about as many children"

    def to_canonical(self, tensors: Tensors) -> Tensors:
        canonical: Tensors = {}
        for kind in self._kinds:
            levels = [level for level in (self.upper, self.lower) if level is not None]
            by_member = [level.to_canonical(tensors)[f"{level.name}_{kind}"] for level in levels]
            by_row = tf.gather(tf.concat(by_member, axis=0), self._split.member_of_row)
            canonical[f"node_{kind}"] = by_row[: self._split.nodes]
            canonical[f"leaf_{kind}"] = by_row[self._split.nodes :]
        return canonical

    def from_canonical(self, tensors: Tensors) -> Tensors:
        stored: Tensors = {}
        by_row = {kind: tf.concat([tensors[f"node_{kind}"], tensors[f"leaf_{kind}"]], axis=0) for kind in self._kinds}
        for level, rows in zip((self.upper, self.lower), self._split.parameter_rows, strict=True):
            if level is not None:
                by_member = {f"{level.name}_{kind}": tf.gather(value, rows) for kind, value in by_row.items()}
                stored |= level.from_canonical(by_member)
        return stored


LAYER = MultiwayTreeSoftmax
