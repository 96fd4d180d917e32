"""Softmax over a binary tree of words in float64, shared by Huffman trees and all other binary trees.

Each leaf is reached from the root by a sequence of turns. At an inner node with vector r and bias b, the probability of
turning left is sigma(r.h + b), and that of turning right is sigma(-r.h - b). Therefore

    log P(leaf | h) = sum over the inner nodes of its path of log sigma(sign . (r.h + b))

where sign is +1 for a left turn and -1 for a right turn. The probabilities of the leaves sum to one without a
normalizer. A word is one leaf, or several leaves whose probabilities are summed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.oracle import OracleLayer, best, log_sigmoid
from vocabench.impls.spec import Arrays, LayerSpec, LeastWork
from vocabench.impls.structures import huffman, path_blocks
from vocabench.impls.structures.trees import leaves_of_words, words_of_leaves


def least_work(spec: LayerSpec, targets_N: NDArray[np.int64]) -> LeastWork:
    """Count the inner nodes on the paths to each target; a node that several codes of a word share counts once."""
    words, tokens_W = np.unique(targets_N, return_counts=True)
    leaf_WM = leaves_of_words(words_of_leaves(spec.structure, spec.vocab))[words]
    on_way_WML = (spec.structure["sign"][leaf_WM] != 0) & (leaf_WM >= 0)[:, :, None]
    row_P = np.nonzero(on_way_WML)[0]
    visited_P2 = np.unique(np.stack([row_P, spec.structure["index"][leaf_WM][on_way_WML]], axis=1), axis=0)
    multiply_adds = float(tokens_W[visited_P2[:, 0]].sum()) * spec.dim
    node_values = sum(math.prod(shape[1:]) for shape in spec.parameter_shapes().values())
    nodes = len(np.unique(visited_P2[:, 1]))
    return cost.least(spec, len(targets_N), multiply_adds=multiply_adds, parameters=nodes * node_values)


class TreeSoftmax(OracleLayer):
    """Layer over a binary tree, with parameters `node_weight` (nodes, D) and, in some methods, `node_bias` (nodes,)."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.children = spec.structure["children"]
        self.leaves = len(self.children) + 1
        self.index_FL = spec.structure["index"]
        self.sign_FL = spec.structure["sign"].astype(np.float64)
        self.levels = huffman.levels(self.children)
        self.leaf_VM = leaves_of_words(words_of_leaves(spec.structure, spec.vocab))

    def _scores(self, hidden_ND: NDArray) -> NDArray:
        """Compute the scores (N, nodes) of the inner nodes."""
        return hidden_ND.astype(np.float64) @ self.params["node_weight"].T + self.params.get("node_bias", 0.0)

    def _leaf_log_probs(self, hidden_ND: NDArray) -> NDArray:
        # Level by level: the prefix of a child is that of its parent plus one turn. This takes O(V D) per token and
        # never allocates (N, V, L).
        leaves = self.leaves
        scores_NM = self._scores(hidden_ND)
        prefix = np.zeros((len(hidden_ND), 2 * leaves - 1))  # leaves, then inner nodes, numbered as in `children`
        for nodes in self.levels:
            left, right = self.children[nodes, 0], self.children[nodes, 1]
            prefix[:, left] = prefix[:, leaves + nodes] + log_sigmoid(scores_NM[:, nodes])
            prefix[:, right] = prefix[:, leaves + nodes] + log_sigmoid(-scores_NM[:, nodes])
        return prefix[:, :leaves]

    def _plain_log_probs(self, hidden_ND: NDArray) -> NDArray:
        log_leaf_NF = self._leaf_log_probs(hidden_ND)
        log_code_NVM = np.where(self.leaf_VM < 0, -np.inf, log_leaf_NF[:, self.leaf_VM])
        return np.logaddexp.reduce(log_code_NVM, axis=2)

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        if self.leaf_VM.shape[1] > 1:
            return self._topk(hidden_ND, k)  # a kept prefix need not hold all leaves of a word
        # Level by level: children of the kept prefixes compete with words reached before for `width` places.
        leaves = self.leaves
        scores_NM = self._scores(hidden_ND)
        value_NW, node_NW = np.zeros((len(hidden_ND), 1)), np.full((len(hidden_ND), 1), 2 * leaves - 2)  # the root
        while (inner_NW := (node_NW >= leaves) & np.isfinite(value_NW)).any():
            at_NW = np.where(inner_NW, node_NW - leaves, 0)
            score_NW = np.take_along_axis(scores_NM, at_NW, axis=1)
            values = (
                np.where(inner_NW, -np.inf, value_NW),
                np.where(inner_NW, value_NW + log_sigmoid(score_NW), -np.inf),
                np.where(inner_NW, value_NW + log_sigmoid(-score_NW), -np.inf),
            )
            nodes = (node_NW, self.children[at_NW, 0], self.children[at_NW, 1])
            value_NW, place_NW = best(np.concatenate(values, axis=1), width)
            node_NW = np.take_along_axis(np.concatenate(nodes, axis=1), place_NW, axis=1)
        return _best_by_id(value_NW, node_NW, k)

    def _path_beam(self, hidden_ND: NDArray, k: int, width: int, levels: int) -> tuple[NDArray, NDArray]:
        if self.leaf_VM.shape[1] > 1:
            return self._topk(hidden_ND, k)
        # As `_beam`, with several turns between two selections.
        leaves, blocks = self.leaves, path_blocks.blocks(self.children, levels)
        scores_NM = self._scores(hidden_ND)
        value_NW, at_NW = np.zeros((len(hidden_ND), 1)), np.full((len(hidden_ND), 1), leaves)  # block 0
        while (open_NW := (at_NW >= leaves) & np.isfinite(value_NW)).any():
            block_NW = np.where(open_NW, at_NW - leaves, 0)
            node_NWJ = blocks.node_BJ[block_NW]
            score_NWJ = np.take_along_axis(scores_NM[:, None], np.maximum(node_NWJ, 0), axis=2)
            left_NWJ = np.where(node_NWJ < 0, 0.0, log_sigmoid(score_NWJ))
            right_NWJ = np.where(node_NWJ < 0, -np.inf, log_sigmoid(-score_NWJ))
            path_NWP = np.where(open_NW, value_NW, -np.inf)[:, :, None]
            for level in range(levels):
                here = slice(2**level - 1, 2 ** (level + 1) - 1)
                both = np.stack([path_NWP + left_NWJ[:, :, here], path_NWP + right_NWJ[:, :, here]], axis=3)
                path_NWP = both.reshape(*both.shape[:2], -1)
            stay_NW = np.where(open_NW, -np.inf, value_NW)
            values_NX = np.concatenate([stay_NW, path_NWP.reshape(len(hidden_ND), -1)], axis=1)
            exits_NX = np.concatenate([at_NW, blocks.exit_BP[block_NW].reshape(len(hidden_ND), -1)], axis=1)
            value_NW, place_NW = best(values_NX, width)
            at_NW = np.take_along_axis(exits_NX, place_NW, axis=1)
        return _best_by_id(value_NW, at_NW, k)

    def _draw(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        leaves, scores_NM = self.leaves, self._scores(hidden_ND)
        node_N = np.full(len(hidden_ND), 2 * leaves - 2)
        for turn in range(uniforms_NU.shape[1]):
            inner_N = node_N >= leaves
            at_N = np.where(inner_N, node_N - leaves, 0)
            score_N = np.take_along_axis(scores_NM, at_N[:, None], axis=1)[:, 0]
            right_N = uniforms_NU[:, turn] >= np.exp(log_sigmoid(score_N))
            node_N = np.where(inner_N, self.children[at_N, right_N.astype(np.int64)], node_N)
        return words_of_leaves(self.spec.structure, self.spec.vocab)[node_N]

    def _codes(self, hidden_ND: NDArray, targets_N: NDArray) -> tuple[NDArray, NDArray, NDArray, NDArray]:
        """Return for each target's M codes: inner nodes, signs and log-probabilities of the turns, all (N, M, L), and
        log-probabilities of the codes (N, M)."""
        leaf_NM = self.leaf_VM[targets_N]
        index_NML, sign_NML = self.index_FL[leaf_NM], self.sign_FL[leaf_NM]
        scores_NML = np.einsum("nd,nmld->nml", hidden_ND, self.params["node_weight"][index_NML])
        if "node_bias" in self.params:
            scores_NML += self.params["node_bias"][index_NML]
        log_turn_NML = log_sigmoid(sign_NML * scores_NML)
        log_code_NM = np.where(leaf_NM < 0, -np.inf, (np.abs(sign_NML) * log_turn_NML).sum(axis=2))
        return index_NML, sign_NML, log_turn_NML, log_code_NM

    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray:
        return np.logaddexp.reduce(self._codes(hidden_ND.astype(np.float64), targets_N)[3], axis=1)

    def _plain_loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        hidden_ND = hidden_ND.astype(np.float64)
        index_NML, sign_NML, log_turn_NML, log_code_NM = self._codes(hidden_ND, targets_N)
        log_probs_N = np.logaddexp.reduce(log_code_NM, axis=1)
        share_NM = np.exp(log_code_NM - log_probs_N[:, None])  # share of each code in the word's probability
        # d/dx of -log sigma(sx) = -s (1 - sigma(sx)); the sign is 0 beyond the end of a code.
        dscores_NML = share_NM[:, :, None] * -sign_NML * -np.expm1(log_turn_NML) / len(targets_N)
        dhidden_ND = np.einsum("nml,nmld->nd", dscores_NML, self.params["node_weight"][index_NML])
        grads = {name: np.zeros_like(value) for name, value in self.params.items()}
        np.add.at(grads["node_weight"], index_NML, dscores_NML[..., None] * hidden_ND[:, None, None, :])
        if "node_bias" in grads:
            np.add.at(grads["node_bias"], index_NML, dscores_NML)
        return -float(log_probs_N.mean()), dhidden_ND, grads


def _best_by_id(value_NW: NDArray, word_NW: NDArray, k: int) -> tuple[NDArray, NDArray]:
    """Return the k best of the words (N, W) with their values. Ties are broken in favour of the lower word."""
    by_id_NW = np.argsort(word_NW, axis=1)
    value_NK, place_NK = best(np.take_along_axis(value_NW, by_id_NW, axis=1), k)
    return value_NK, np.take_along_axis(np.take_along_axis(word_NW, by_id_NW, axis=1), place_NK, axis=1)
