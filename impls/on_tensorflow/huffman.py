"""Huffman hierarchical softmax in TensorFlow. See `impls/on_numpy/huffman.py` for the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from impls.on_tensorflow._layer import OutputLayer, Tensor, at_least_float32
from impls.spec import LayerSpec
from impls.structures import huffman

# The inner nodes nearest the root, which most paths share, are scored for all tokens by one dense product.
_SHARED_NODES = 256


def _path_nll(hidden_ND: Tensor, node_weight: Tensor, index_NL: Tensor, sign_NL: Tensor) -> Tensor:
    """(N,) sum over each token's path of -log sigma(sign x r.h), with the gradient written out.

    A gather of every path's vectors would copy each near-root vector once a token and let their gradients collide;
    here the shared nodes are a dense product, and what remains are (token, node) pairs.
    """
    nodes = node_weight.shape[0]
    first = max(0, nodes - _SHARED_NODES)  # nodes are in order of creation, so the last ones are nearest the root
    on_path_NL, near_NL = tf.not_equal(sign_NL, 0), index_NL >= first
    near_place_NL = tf.maximum(index_NL - first, 0)
    cold_P2 = tf.where(on_path_NL & ~near_NL)  # (token, step) of each pair
    token_P = tf.cast(cold_P2[:, 0], tf.int32)
    node_P = tf.gather_nd(index_NL, cold_P2)
    near_NL = near_NL & on_path_NL

    @tf.custom_gradient
    def nll(hidden_ND: Tensor, node_weight: Tensor) -> tuple[Tensor, object]:
        cast_ND = tf.cast(hidden_ND, node_weight.dtype)
        near_HD = node_weight[first:]
        near_scores_NH = at_least_float32(tf.matmul(cast_ND, near_HD, transpose_b=True))
        kind = near_scores_NH.dtype
        scores_NL = tf.gather(near_scores_NH, near_place_NL, batch_dims=1)
        nodes_PD, tokens_PD = tf.gather(node_weight, node_P), tf.gather(cast_ND, token_P)
        cold_scores_P = tf.reduce_sum(tf.cast(nodes_PD, kind) * tf.cast(tokens_PD, kind), axis=1)
        scores_NL = tf.tensor_scatter_nd_update(scores_NL, cold_P2, cold_scores_P)

        signs_NL = tf.cast(sign_NL, kind)
        turns_NL = signs_NL * scores_NL
        nll_N = -tf.reduce_sum(tf.where(on_path_NL, tf.math.log_sigmoid(turns_NL), tf.zeros_like(turns_NL)), axis=1)

        def gradient(dnll_N: Tensor) -> tuple[Tensor, Tensor]:
            # d/dx of -log sigma(s x) is -s sigma(-s x); the sign is 0 beyond the path's end.
            dscores_NL = -signs_NL * tf.sigmoid(-turns_NL) * dnll_N[:, None]
            dnear_NL = tf.where(near_NL, dscores_NL, tf.zeros_like(dscores_NL))
            rows_NL = tf.broadcast_to(tf.range(tf.shape(index_NL)[0])[:, None], tf.shape(index_NL))
            places = tf.stack([rows_NL, near_place_NL], axis=2)
            dnear_NH = tf.cast(tf.scatter_nd(places, dnear_NL, tf.shape(near_scores_NH)), node_weight.dtype)
            dcold_P = tf.cast(tf.gather_nd(dscores_NL, cold_P2), node_weight.dtype)[:, None]
            dhidden_ND = tf.matmul(dnear_NH, near_HD)
            # Pairs come in order of tokens; of nodes, the sums are wanted as rows of a dense gradient.
            by_token_ND = tf.math.unsorted_segment_sum(dcold_P * nodes_PD, token_P, tf.shape(hidden_ND)[0])
            by_node = tf.math.unsorted_segment_sum(dcold_P * tokens_PD, node_P, first)
            dnode = tf.concat([by_node, tf.matmul(dnear_NH, cast_ND, transpose_a=True)], axis=0)
            return tf.cast(dhidden_ND + by_token_ND, hidden_ND.dtype), dnode

        return nll_N, gradient

    return nll(hidden_ND, tf.convert_to_tensor(node_weight))


class HuffmanSoftmax(OutputLayer):
    """log P(w | h) = sum over the inner nodes of w's path of log sigma(sign . r.h) (Mikolov et al. 2013; Liu et al.
    2022).

    Weights: `node_weight` (V-1, D), inner nodes in order of creation.
    """

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(spec, **keyword)
        self.index = tf.constant(spec.structure["index"], tf.int32)
        self.sign = tf.constant(spec.structure["sign"], tf.int32)
        children = spec.structure["children"]
        self._levels = [(nodes, children[nodes, 0], children[nodes, 1]) for nodes in huffman.levels(children)]
        # Where each word and inner node stands when prefixes are stacked level by level, the root first.
        order = np.concatenate([[2 * spec.vocab - 2], *(side for _, *sides in self._levels for side in sides)])
        self._stacked = np.argsort(order)

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        index_NL, sign_NL = tf.gather(self.index, targets_N), tf.gather(self.sign, targets_N)
        return _path_nll(hidden_ND, self.value_of("node_weight"), index_NL, sign_NL)

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        # Level by level, nodes as rows so that a level is read and written in whole rows: O(V D + V) a token.
        node_weight, vocab = tf.convert_to_tensor(self.value_of("node_weight")), self.spec.vocab
        cast_ND = tf.cast(hidden_ND, node_weight.dtype)
        scores_MN = at_least_float32(tf.matmul(node_weight, cast_ND, transpose_b=True))
        level = tf.zeros([1, tf.shape(hidden_ND)[0]], scores_MN.dtype)
        ids, levels = np.array([2 * vocab - 2]), [level]
        for nodes, left, right in self._levels:
            here = tf.gather(level, _places(ids, vocab + nodes))
            scores = tf.gather(scores_MN, nodes)
            level = tf.concat([here + tf.math.log_sigmoid(scores), here + tf.math.log_sigmoid(-scores)], axis=0)
            ids = np.concatenate([left, right])
            levels.append(level)
        return tf.transpose(tf.gather(tf.concat(levels, axis=0), self._stacked[:vocab]))

    def formulation(self) -> str:
        shared = min(_SHARED_NODES, self.spec.vocab - 1)
        return f"dense product of the {shared} nodes nearest the root, pairs for the rest"


def _places(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where each of `wanted` stands in `ids`."""
    order = np.argsort(ids)
    return order[np.searchsorted(ids[order], wanted)]


LAYER = HuffmanSoftmax
