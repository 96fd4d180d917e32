"""A binary tree over words as an output layer in TensorFlow. See `impls/on_numpy/tree.py` for the definition."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from vocabench.impls.cpp import CPP, Paths
from vocabench.impls.forms import Form
from vocabench.impls.on_tensorflow import objectives
from vocabench.impls.on_tensorflow.hooks import Reach
from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.ops.tensors import (
    Tensor,
    Tensors,
    add_rows,
    at_least_float32,
    best_by_id,
    known_rows,
    on_gpu,
    traced,
)
from vocabench.impls.on_tensorflow.trees import descend
from vocabench.impls.spec import LayerSpec, Shapes
from vocabench.impls.structures import huffman, path_blocks, trees

_SHARED_NODES = 256  # the most visited inner nodes, which one dense product scores for all tokens
# Decoding: the nodes nearest the root that are scored for every row, and how many subtrees a row follows at a time:
# first a few, and then many for the rows that these do not settle.
_NEAR_NODES = 512
_BEAMS = (16, 64)

PAIRS = Form("pairs", "pairs of a token and a node")


class _Targets(NamedTuple):
    """The targets of a batch.

    Attributes:
        leaf_NM: The leaves of each target, -1 beyond its last one.
        paths: The N times M paths to these leaves.
    """

    leaf_NM: Tensor
    paths: Paths


def _path_nll(hidden_ND: Tensor, node_weight: Tensor, index_NL: Tensor, sign_NL: Tensor, shared: int) -> Tensor:
    """Return the (N,) sums over each token's path of -log sigma(sign x r.h), with the gradient written out.

    Gathering the vectors of all paths would copy a vector near the root once for each token, and their gradients would
    collide. The last `shared` nodes are therefore scored by a dense product for all tokens, and only the others in
    (token, node) pairs.
    """
    first = tf.shape(node_weight)[0] - shared  # parents follow their children, so the most visited nodes are the last
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
        dtype = near_scores_NH.dtype
        scores_NL = tf.gather(near_scores_NH, near_place_NL, batch_dims=1)
        nodes_PD, tokens_PD = tf.gather(node_weight, node_P), tf.gather(cast_ND, token_P)
        cold_scores_P = tf.reduce_sum(tf.cast(nodes_PD, dtype) * tf.cast(tokens_PD, dtype), axis=1)
        scores_NL = tf.tensor_scatter_nd_update(scores_NL, cold_P2, cold_scores_P)

        signs_NL = tf.cast(sign_NL, dtype)
        turns_NL = signs_NL * scores_NL
        nll_N = -tf.reduce_sum(tf.where(on_path_NL, tf.math.log_sigmoid(turns_NL), tf.zeros_like(turns_NL)), axis=1)

        def gradient(dnll_N: Tensor) -> tuple[Tensor, Tensor]:
            # d/dx of -log sigma(s x) is -s sigma(-s x); the sign is 0 beyond the end of the path.
            dscores_NL = -signs_NL * tf.sigmoid(-turns_NL) * dnll_N[:, None]
            dnear_NL = tf.where(near_NL, dscores_NL, tf.zeros_like(dscores_NL))
            rows_NL = tf.broadcast_to(tf.range(tf.shape(index_NL)[0])[:, None], tf.shape(index_NL))
            places = tf.stack([rows_NL, near_place_NL], axis=2)
            dnear_NH = tf.cast(tf.scatter_nd(places, dnear_NL, tf.shape(near_scores_NH)), node_weight.dtype)
            dcold_P = tf.cast(tf.gather_nd(dscores_NL, cold_P2), node_weight.dtype)[:, None]
            dhidden_ND = tf.matmul(dnear_NH, near_HD)
            dcold_ND = tf.math.unsorted_segment_sum(dcold_P * nodes_PD, token_P, tf.shape(hidden_ND)[0])
            # One array from the start, since joining two parts would copy a gradient as large as the weights.
            dcold = tf.scatter_nd(node_P[:, None], dcold_P * tokens_PD, tf.shape(node_weight))
            dnear_HD = tf.matmul(dnear_NH, cast_ND, transpose_a=True)
            dnode = add_rows(dcold, tf.range(first, first + shared), dnear_HD)
            return tf.cast(dhidden_ND + dcold_ND, hidden_ND.dtype), dnode

        return nll_N, gradient

    return nll(hidden_ND, tf.convert_to_tensor(node_weight))


def _nll_by_kernels(hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> Tensor:
    """Return the results of `_path_nll`, computed by the C++ kernels."""

    @tf.custom_gradient
    def nll(hidden_ND: Tensor, node_weight: Tensor) -> tuple[Tensor, object]:
        cast_ND = tf.cast(hidden_ND, node_weight.dtype)
        nll_N, dscores_NL, unscaled_ND = cpp_kernels.path_losses(cast_ND, node_weight, paths)

        def gradient(dnll_N: Tensor) -> tuple[Tensor, Tensor]:
            dnode = cpp_kernels.path_gradients(dscores_NL * dnll_N[:, None], cast_ND, node_weight, paths)
            return tf.cast(unscaled_ND * dnll_N[:, None], hidden_ND.dtype), dnode

        return nll_N, gradient

    return nll(hidden_ND, tf.convert_to_tensor(node_weight))


class TreeSoftmax(OutputLayer):
    """log P(w | h) = logsumexp over w's codes of the sum over the code's inner nodes of log sigma(sign . (r.h + b)).

    Weights: `node_weight` (nodes, D); if the method has biases (nodes, D + 1), with the biases in the last column. A 1
    is then appended to every hidden vector.
    """

    FEW_ROWS: ClassVar = ("node_weight",)

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        children = spec.structure["children"]
        biased = "node_bias" in spec.parameter_shapes()
        self._inner_shapes: Shapes = {"node_weight": (len(children), spec.dim + int(biased))}
        super().__init__(spec, **keyword)
        self.leaves, self._biased = len(children) + 1, biased
        self._shared = min(_SHARED_NODES, len(children))
        leaf_word = trees.words_of_leaves(spec.structure, spec.vocab)
        leaf_VM = trees.leaves_of_words(leaf_word)
        self._single = leaf_VM.shape[1] == 1  # each word is the leaf of the same number
        self._leaf_word, self._leaf_VM = tf.constant(leaf_word, tf.int32), tf.constant(leaf_VM, tf.int32)
        self._paths = spec.structure["index"], spec.structure["sign"]
        self.index = tf.constant(spec.structure["index"], tf.int32)
        self.sign = tf.constant(spec.structure["sign"], tf.int32)
        self.place = tf.constant(huffman.places(children), tf.int32)
        self._levels = [(nodes, children[nodes, 0], children[nodes, 1]) for nodes in huffman.levels(children)]
        # Position of each leaf and inner node when prefixes are stacked level by level, the root first.
        order = np.concatenate([[2 * self.leaves - 2], *(side for _, *sides in self._levels for side in sides)])
        self._stacked = np.argsort(order)
        self.children = tf.constant(children, tf.int32)
        self._blocks = path_blocks.Cuts(children)
        near = huffman.near_root(children, _NEAR_NODES)
        self._first_near, self._turns = near.first, near.turns
        # An iteration has a dozen small operations: XLA's program for one row takes a tenth less time.
        self._follow_one = traced(self._follow, jit_compile=True)
        self._exits = near.exits.astype(np.int32)

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return (CPP, PAIRS) if cpp_kernels.known(spec.dtype) else (PAIRS,)

    @property
    def one_operation(self) -> tuple[str, ...]:
        return ("search", "beam") if self.form == CPP and self._single else ()

    def inner_shapes(self) -> Shapes:
        return self._inner_shapes

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return self._nll_of_targets(hidden_ND, self._targets(targets_N), self.value_of("node_weight"))

    def reach(self, targets_N: Tensor) -> Reach:  # type: ignore[override]
        (leaf_NM, paths), nodes = self._targets(targets_N), self.leaves - 1
        cold_PL = tf.not_equal(paths.sign_NL, 0) & (paths.index_NL < nodes - self._shared)
        cold_U, place_R = tf.unique(tf.boolean_mask(paths.index_NL, cold_PL))
        # The shared nodes, most of which a batch reads, are the last of the table, too.
        shift = tf.size(cold_U) - (nodes - self._shared)
        index_PL = tf.tensor_scatter_nd_update(paths.index_NL + shift, tf.where(cold_PL), place_R)
        in_table = _Targets(leaf_NM, paths._replace(index_NL=index_PL))

        def loss(hidden_ND: Tensor, tables: Tensors) -> Tensor:
            return tf.reduce_mean(self._nll_of_targets(hidden_ND, in_table, tables["node_weight"]))

        return Reach({"node_weight": tf.concat([cold_U, tf.range(nodes - self._shared, nodes)], axis=0)}, loss)

    def _targets(self, targets_N: Tensor) -> _Targets:
        leaf_NM = tf.gather(self._leaf_VM, targets_N)
        leaf_P = tf.reshape(tf.maximum(leaf_NM, 0), [-1])
        return _Targets(leaf_NM, Paths(*(tf.gather(array, leaf_P) for array in (self.index, self.sign, self.place))))

    def _nll_of_targets(self, hidden_ND: Tensor, targets: _Targets, node_weight: Tensor) -> Tensor:
        hidden_ND = self._with_one(hidden_ND)
        if self._single:
            return self._nll_of_paths(hidden_ND, targets.paths, node_weight)
        # Each code of a target is a path of its own, for the same hidden vector.
        hidden_PD = tf.repeat(hidden_ND, targets.leaf_NM.shape[1], axis=0)
        nll_P = self._nll_of_paths(hidden_PD, targets.paths, node_weight)
        log_code_NM = tf.reshape(-nll_P, tf.shape(targets.leaf_NM))
        return -tf.reduce_logsumexp(_where_real(targets.leaf_NM, log_code_NM), axis=1)

    def _nll_of_paths(self, hidden_PD: Tensor, paths: Paths, node_weight: Tensor) -> Tensor:
        if self.form == CPP:
            return _nll_by_kernels(hidden_PD, node_weight, paths)
        return _path_nll(hidden_PD, node_weight, paths.index_NL, paths.sign_NL, self._shared)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        log_leaf_NF = self._leaf_log_probs(self._with_one(hidden_ND))
        if self._single:
            return log_leaf_NF
        log_code_NVM = tf.gather(log_leaf_NF, tf.maximum(self._leaf_VM, 0), axis=1)
        return tf.reduce_logsumexp(_where_real(self._leaf_VM, log_code_NVM), axis=2)

    def _mean_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N,) means: each node's turns count as often as there are words on either side."""
        if not self._single:
            return super()._mean_log_probs(hidden_ND)
        below_2M = huffman.words_below(*self._paths, self.leaves - 1) / self.spec.vocab

        def of_block(hidden_BD: Tensor) -> Tensor:
            scores_MB = self._scores(self._with_one(hidden_BD))
            # log sigma(-x) = log sigma(x) - x
            both_M, right_M = (tf.constant(share_M, scores_MB.dtype) for share_M in (below_2M.sum(axis=0), below_2M[1]))
            left_B = tf.linalg.matvec(tf.math.log_sigmoid(scores_MB), both_M, transpose_a=True)
            return left_B - tf.linalg.matvec(scores_MB, right_M, transpose_a=True)

        return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND)

    def _scores(self, hidden_ND: Tensor) -> Tensor:
        """Return the (nodes, N) scores of all inner nodes."""
        node_weight = tf.convert_to_tensor(self.value_of("node_weight"))
        cast_ND = tf.cast(hidden_ND, node_weight.dtype)
        return at_least_float32(tf.matmul(node_weight, cast_ND, transpose_b=True))

    def _leaf_log_probs(self, hidden_ND: Tensor) -> Tensor:
        # Nodes are rows, so that each level is read and written in whole rows: O(V D + V) per token.
        leaves, scores_MN = self.leaves, self._scores(hidden_ND)
        level = tf.zeros([1, tf.shape(hidden_ND)[0]], scores_MN.dtype)
        ids, levels = np.array([2 * leaves - 2]), [level]
        for nodes, left, right in self._levels:
            here = tf.gather(level, _places(ids, leaves + nodes))
            scores = tf.gather(scores_MN, nodes)
            level = tf.concat([here + tf.math.log_sigmoid(scores), here + tf.math.log_sigmoid(-scores)], axis=0)
            ids = np.concatenate([left, right])
            levels.append(level)
        stacked = tf.concat(levels, axis=0)
        return tf.transpose(known_rows(stacked, self._stacked[:leaves], 2 * leaves - 1))

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of inner nodes scored.

        No word is likelier than the prefix of its code. The nodes nearest the root are one dense product. Below them,
        each row follows its likeliest subtrees until none is as likely as the k-th best word so far. A row is scored
        whole if it had to drop a subtree as likely as that word, or if its best words contain ties. If words have
        several codes, all rows are scored whole, since no prefix bounds a word.
        """
        if not self._single:
            return super()._search(hidden_ND, k)
        if self.form == CPP:
            return cpp_kernels.likeliest_leaves(
                self._with_one(hidden_ND), self.value_of("node_weight"), self.children, k
            )
        values_NK, ids_NK, nodes_N = self._settle(self._with_one(hidden_ND), k, _BEAMS)
        return values_NK, ids_NK, tf.cast(nodes_N, tf.float32) / (self.leaves - 1)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of k likely words, keeping the `width` likeliest prefixes of each level.

        The result is exact if words have several codes.
        """
        if not self._single:
            return self._search(hidden_ND, k)[:2]
        if self.form == CPP:
            tree = self.value_of("node_weight"), self.children
            return cpp_kernels.leaves_of_beam(self._with_one(hidden_ND), *tree, k, width)[:2]
        (cast_ND, node_weight), leaves = self._cast(hidden_ND), self.leaves
        dtype = at_least_float32(node_weight[:0]).dtype
        none = tf.cast(-math.inf, dtype)

        def is_inner(value_NW: Tensor, node_NW: Tensor) -> Tensor:
            return (node_NW >= leaves) & (value_NW > none)

        def descend(value_NW: Tensor, node_NW: Tensor) -> tuple[Tensor, Tensor]:
            inner_NW, at_NW = is_inner(value_NW, node_NW), tf.maximum(node_NW - leaves, 0)
            score_NW = at_least_float32(tf.linalg.matvec(tf.gather(node_weight, at_NW), cast_ND))
            left_NW, right_NW = (value_NW + tf.math.log_sigmoid(turn_NW) for turn_NW in (score_NW, -score_NW))
            stay_NW = tf.where(inner_NW, none, value_NW)
            values = tf.concat([stay_NW, tf.where(inner_NW, left_NW, none), tf.where(inner_NW, right_NW, none)], axis=1)
            child_NW2 = tf.gather(self.children, at_NW)
            nodes = tf.concat([node_NW, child_NW2[:, :, 0], child_NW2[:, :, 1]], axis=1)
            value_NW, place_NW = tf.math.top_k(values, width)
            return value_NW, tf.gather(nodes, place_NW, batch_dims=1)

        rows = tf.shape(hidden_ND)[0]
        value_NW = tf.concat([tf.zeros([rows, 1], dtype), tf.fill([rows, width - 1], none)], axis=1)
        start = value_NW, tf.fill([rows, width], 2 * leaves - 2)  # the root
        value_NW, node_NW = tf.while_loop(lambda *state: tf.reduce_any(is_inner(*state)), descend, start)
        return best_by_id(value_NW, node_NW, k)

    def _path_beam(self, hidden_ND: Tensor, k: int, width: int, levels: int) -> tuple[Tensor, Tensor]:
        if levels == 1 or not self._single:
            return self._beam(hidden_ND, k, width)
        return descend.path_beam(*self._cast(hidden_ND), self._blocks.of(levels), self.leaves, k, width)

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words. Each uniform number decides one turn: left if it is below sigma(r.h + b)."""
        (cast_ND, node_weight), leaves = self._cast(hidden_ND), self.leaves

        def descend(turn: Tensor, node_N: Tensor) -> tuple[Tensor, Tensor]:
            at_N = tf.maximum(node_N - leaves, 0)
            score_N = at_least_float32(tf.reduce_sum(tf.gather(node_weight, at_N) * cast_ND, axis=1))
            right_N = tf.cast(tf.gather(uniforms_NU, turn, axis=1) >= tf.sigmoid(score_N), tf.int32)
            child_N = tf.gather_nd(self.children, tf.stack([at_N, right_N], axis=1))
            return turn + 1, tf.where(node_N >= leaves, child_N, node_N)

        start = 0, tf.fill(tf.shape(hidden_ND)[:1], 2 * leaves - 2)  # the root
        leaf_N = tf.while_loop(lambda turn, _: turn < uniforms_NU.shape[1], descend, start)[1]
        return tf.gather(self._leaf_word, leaf_N)

    def _settle(self, hidden_ND: Tensor, k: int, beams: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Search with the first of `beams`, and with the next one for the rows that it does not settle.

        Rows that no beam settles are scored whole.

        Returns:
            Values and ids (N, K), and the (N,) number of nodes scored.
        """
        if not beams:
            return *tf.math.top_k(self._leaf_log_probs(hidden_ND), k), tf.fill(tf.shape(hidden_ND)[:1], self.leaves - 1)
        follow = self._follow_one if hidden_ND.shape[0] == 1 and not on_gpu() else self._follow
        best_NJ, ids_NJ, lost_N1, nodes_N = follow(hidden_ND, k, beams[0])
        tied_N = tf.reduce_any(tf.equal(best_NJ[:, 1:], best_NJ[:, :-1]), axis=1)
        open_N = tied_N | (lost_N1[:, 0] >= best_NJ[:, k - 1])
        result = best_NJ[:, :k], ids_NJ[:, :k], nodes_N

        def with_next_beam() -> tuple[Tensor, ...]:
            rows = tf.where(open_N)
            settled = self._settle(tf.gather(hidden_ND, rows[:, 0]), k, beams[1:])
            return tuple(tf.tensor_scatter_nd_update(old, rows, new) for old, new in zip(result, settled, strict=True))

        return tf.cond(tf.reduce_any(open_N), with_next_beam, lambda: result)

    def _follow(self, hidden_ND: Tensor, k: int, beam: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Follow the `beam` likeliest subtrees of each row.

        Returns:
            Values and ids (N, J) of the k + 1 best words met, the (N, 1) log-probability of the likeliest subtree
            dropped, and the (N,) number of nodes scored.
        """
        node_weight, leaves = tf.convert_to_tensor(self.value_of("node_weight")), self.leaves
        cast_ND = tf.cast(hidden_ND, node_weight.dtype)
        scores_NH = at_least_float32(tf.matmul(cast_ND, node_weight[self._first_near :], transpose_b=True))
        log_turns = tf.concat([tf.math.log_sigmoid(scores_NH), tf.math.log_sigmoid(-scores_NH)], axis=1)
        exits_NE = tf.matmul(log_turns, tf.cast(self._turns, log_turns.dtype))
        none = -tf.cast(float("inf"), log_turns.dtype)
        rows = tf.shape(hidden_ND)[0]

        def split(prefix: Tensor, child: Tensor, *best: Tensor) -> tuple[Tensor, ...]:
            """Return the best words among the children and `best`, the likeliest inner nodes, and the next of these."""
            is_word = child < leaves
            words = tf.concat([*best[:1], tf.where(is_word, prefix, none)], axis=1)
            ids = tf.concat([*best[1:], child], axis=1)
            best_NJ, place = tf.math.top_k(words, k + 1)
            inner_NB, inner_place = tf.math.top_k(tf.where(is_word, none, prefix), beam + 1)
            node_NB = tf.maximum(tf.gather(child, inner_place, batch_dims=1) - leaves, 0)
            return (best_NJ, tf.gather(ids, place, batch_dims=1), inner_NB[:, :-1], node_NB[:, :-1], inner_NB[:, -1:])

        def continues(best_NJ: Tensor, ids: Tensor, prefix_NB: Tensor, *_: Tensor) -> Tensor:
            return tf.reduce_any((prefix_NB[:, 0] >= best_NJ[:, k - 1]) & (prefix_NB[:, 0] > none))

        def descend(
            best_NJ: Tensor, ids_NJ: Tensor, prefix_NB: Tensor, node_NB: Tensor, lost_N1: Tensor, nodes_N: Tensor
        ) -> tuple[Tensor, ...]:
            reach_NB = (prefix_NB >= best_NJ[:, k - 1 : k]) & (prefix_NB > none)
            nodes_N += tf.math.count_nonzero(reach_NB, axis=1, dtype=tf.int32)
            scores_NB = at_least_float32(tf.linalg.matvec(tf.gather(node_weight, node_NB), cast_ND))
            left_NB, right_NB = (prefix_NB + tf.math.log_sigmoid(turn_NB) for turn_NB in (scores_NB, -scores_NB))
            below = tf.reshape(tf.gather(self.children, node_NB), [rows, 2 * beam])
            prefix = tf.reshape(tf.stack([left_NB, right_NB], axis=2), [rows, 2 * beam])
            *state, lower_N1 = split(prefix, below, best_NJ, ids_NJ)
            return *state, tf.maximum(lost_N1, lower_N1), nodes_N

        # Padding, since there may be fewer than k + 1 words and `beam` + 1 subtrees below the near nodes.
        best = tf.fill([rows, k + 1], none), tf.zeros([rows, k + 1], tf.int32)
        exits_NE = tf.pad(exits_NE, [[0, 0], [0, beam + 1]], constant_values=none)
        child_NE = tf.broadcast_to(np.pad(self._exits, (0, beam + 1)), tf.shape(exits_NE))
        start = *split(exits_NE, child_NE, *best), tf.fill([rows], len(self._turns) // 2)
        best_NJ, ids_NJ, _, _, lost_N1, nodes_N = tf.while_loop(continues, descend, start)
        return best_NJ, ids_NJ, lost_N1, nodes_N

    def _cast(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (N, D) hidden vectors in the dtype of the nodes, and the nodes."""
        node_weight = tf.convert_to_tensor(self.value_of("node_weight"))
        return tf.cast(self._with_one(hidden_ND), node_weight.dtype), node_weight

    def _with_one(self, hidden_ND: Tensor) -> Tensor:
        return tf.pad(hidden_ND, [[0, 0], [0, 1]], constant_values=1) if self._biased else hidden_ND

    def to_canonical(self, tensors: Tensors) -> Tensors:
        if not self._biased:
            return dict(tensors)
        return {"node_weight": tensors["node_weight"][:, :-1], "node_bias": tensors["node_weight"][:, -1]}

    def from_canonical(self, tensors: Tensors) -> Tensors:
        if not self._biased:
            return dict(tensors)
        return {"node_weight": tf.concat([tensors["node_weight"], tensors["node_bias"][:, None]], axis=1)}

    def formulation(self) -> str:
        if self.form == CPP:
            return CPP.label
        return f"dense product of the {self._shared} nodes visited most, {PAIRS.label} for the rest"


def _where_real(leaf: Tensor, log_code: Tensor) -> Tensor:
    """Return `log_code` with -inf for the codes that a word does not have."""
    return tf.where(leaf < 0, -tf.cast(math.inf, log_code.dtype), log_code)


def _places(ids: np.ndarray, requested: np.ndarray) -> np.ndarray:
    """Return the positions of the requested ids in `ids`."""
    order = np.argsort(ids)
    return order[np.searchsorted(ids[order], requested)]
