"""Adaptive softmax in TensorFlow. See `impls/on_numpy/methods/adaptive_softmax.py` for the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP
from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, at_least_float32, cross_entropy, draw, product
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures.cutoffs import Bands


class AdaptiveSoftmax(OutputLayer):
    """log P(w | h) = log softmax(H h)[w or its tail i] + log softmax(W_i P_i h)[w] if w is in tail i (Grave et al.
    2017).

    Weights: `head_weight` (head + tails, D), and for each tail `tail{i}_projection` (D / 4^(i + 1), D) and
    `tail{i}_weight` (words, D / 4^(i + 1)), words by id within the head and each tail. Constants: `band` (V,), 0 for
    words of the head and i + 1 for tail i; `place` (V,), the position of each word in its band.
    """

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(spec, **keyword)
        self._bands = bands = Bands.of(spec.structure["order"], spec.structure["cutoffs"])
        self.head, self.tails = bands.head, bands.tails
        self.band, self.place = tf.constant(bands.band, tf.int32), tf.constant(bands.place, tf.int32)
        self._words = [tf.constant(words, tf.int32) for words in bands.words]

    def formulation(self) -> str:
        return cpp.formulation(CPP) if cpp_kernels.multiplies(self.spec.dtype) else ""

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        band_N, place_N = tf.gather(self.band, targets_N), tf.gather(self.place, targets_N)
        entry_N = tf.where(tf.equal(band_N, 0), place_N, self.head - 1 + band_N)
        nll_N = cross_entropy(self._head_scores(hidden_ND), entry_N)
        if not self.tails:
            return nll_N
        # Distribute the tokens over the bands, and collect the results. This needs no scatter in either pass.
        count = self.tails + 1
        hidden, place = (tf.dynamic_partition(array, band_N, count) for array in (hidden_ND, place_N))
        rows = tf.dynamic_partition(tf.range(tf.size(band_N)), band_N, count)
        parts = [tf.zeros_like(rows[0], nll_N.dtype)]
        for tail in range(self.tails):
            parts.append(cross_entropy(self._tail_scores(hidden[tail + 1], tail), place[tail + 1]))
        return nll_N + tf.dynamic_stitch(rows, parts)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        head = tf.nn.log_softmax(self._head_scores(hidden_ND))
        parts = [head[:, : self.head]]
        for tail in range(self.tails):
            parts.append(self._joint(hidden_ND, head[:, self.head + tail], tail))
        return tf.gather(tf.concat(parts, axis=1), tf.argsort(tf.concat(self._words, axis=0)), axis=1)

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of words scored.

        No word of a tail is likelier than the tail. A tail is therefore expanded only for the rows in which it is as
        likely as the k-th best word so far.
        """
        return self._expanded(hidden_ND, k, lambda log_tail_NT, tail, lowest_N: log_tail_NT[:, tail] >= lowest_N)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words of the head and the `width` likeliest tails."""
        if width >= self.tails:
            return self._search(hidden_ND, k)[:2]

        def is_followed(log_tail_NT: Tensor, tail: int, lowest_N: Tensor) -> Tensor:
            return tf.reduce_any(tf.equal(tf.math.top_k(log_tail_NT, width).indices, tail), axis=1)

        return self._expanded(hidden_ND, k, is_followed)[:2]

    def _expanded(
        self, hidden_ND: Tensor, k: int, expands: Callable[[Tensor, int, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the best words of the head and the expanded tails, and the (N,) share of
        words scored.

        Args:
            hidden_ND: (N, D).
            k: Number of words.
            expands: Returns (N,) whether a row expands a tail, from log P of the tails (N, tails), the number of the
                tail, and the k-th best value so far (N,).
        """
        head = tf.nn.log_softmax(self._head_scores(hidden_ND))
        values, place = tf.math.top_k(head[:, : self.head], tf.minimum(k, self.head))
        missing = [[0, 0], [0, tf.maximum(k - self.head, 0)]]
        values_NK = tf.pad(values, missing, constant_values=tf.cast(-float("inf"), values.dtype))
        ids_NK = tf.pad(tf.gather(self._words[0], place), missing, constant_values=self.spec.vocab)
        scored_N = tf.fill(tf.shape(hidden_ND)[:1], float(self.head))
        for tail in range(self.tails):
            words_S, size = self._words[tail + 1], len(self._bands.words[tail + 1])
            expanded_N = expands(head[:, self.head :], tail, values_NK[:, -1])
            scored_N += tf.where(expanded_N, float(size), 0.0)
            rows_R1 = tf.where(expanded_N)
            rows_R = rows_R1[:, 0]
            joint_RS = self._joint(tf.gather(hidden_ND, rows_R), tf.gather(head[:, self.head + tail], rows_R), tail)
            values, place = tf.math.top_k(joint_RS, tf.minimum(k, size))
            values = tf.concat([tf.gather(values_NK, rows_R), values], axis=1)
            ids = tf.concat([tf.gather(ids_NK, rows_R), tf.gather(words_S, place)], axis=1)
            # `top_k` prefers the first of equal values, so candidates are sorted by id.
            by_id = tf.argsort(ids, axis=1)
            values, ids = (tf.gather(array, by_id, batch_dims=1) for array in (values, ids))
            values, place = tf.math.top_k(values, k)
            values_NK = tf.tensor_scatter_nd_update(values_NK, rows_R1, values)
            ids_NK = tf.tensor_scatter_nd_update(ids_NK, rows_R1, tf.gather(ids, place, batch_dims=1))
        return values_NK, ids_NK, scored_N / self.spec.vocab

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words: the first uniform number draws a head word or a tail, the second a word of the tail."""
        entry_N = draw(tf.nn.softmax(self._head_scores(hidden_ND)), uniforms_NU[:, 0])
        word_N = tf.gather(self._words[0], tf.minimum(entry_N, self.head - 1))
        for tail in range(self.tails):
            rows_R1 = tf.where(tf.equal(entry_N, self.head + tail))
            rows_R = rows_R1[:, 0]
            inside_RS = tf.nn.softmax(self._tail_scores(tf.gather(hidden_ND, rows_R), tail))
            drawn_R = draw(inside_RS, tf.gather(uniforms_NU[:, 1], rows_R))
            word_N = tf.tensor_scatter_nd_update(word_N, rows_R1, tf.gather(self._words[tail + 1], drawn_R))
        return word_N

    def _head_scores(self, hidden_ND: Tensor) -> Tensor:
        """Return (N, head + tails) scores of the words of the head and of each tail."""
        return at_least_float32(cpp_kernels.linear(hidden_ND, self.value_of("head_weight")))

    def _tail_scores(self, hidden_RD: Tensor, tail: int) -> Tensor:
        projected = product(hidden_RD, self.value_of(f"tail{tail}_projection"))
        return at_least_float32(product(projected, self.value_of(f"tail{tail}_weight")))

    def _joint(self, hidden_RD: Tensor, log_tail_R: Tensor, tail: int) -> Tensor:
        """Return (R, S) log P(tail, w | h) of the words of a tail."""
        return tf.nn.log_softmax(self._tail_scores(hidden_RD, tail)) + log_tail_R[:, None]

    # Words are stored by id within each band; their canonical order is by falling count.
    def to_canonical(self, tensors: Tensors) -> Tensors:
        return {name: self._reordered(name, value, to_canonical=True) for name, value in tensors.items()}

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return {name: self._reordered(name, value, to_canonical=False) for name, value in tensors.items()}

    def _reordered(self, name: str, value: Tensor, *, to_canonical: bool) -> Tensor:
        rows = self._bands.rows(name)
        return value if rows is None else tf.gather(value, rows.argsort() if to_canonical else rows)


LAYER = AdaptiveSoftmax
