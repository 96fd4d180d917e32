"""Huffman hierarchical softmax (Mikolov et al. 2013; Liu et al. 2022, arXiv 2204.03855).

Words are the leaves of a Huffman tree with V-1 inner vectors r. On its way from the root, a word turns left at an inner
node with probability sigma(r.h) and right with sigma(-r.h) (equation 1, algorithm 3), so that

    log P(w | h) = sum over the inner nodes of w's path of log sigma(sign . r.h)

and the leaves' probabilities sum to one without any normaliser. A target costs 2 D x (length of its code) FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from impls.on_numpy._oracle import OracleLayer, best, log_sigmoid
from impls.spec import Arrays, Definition, LayerSpec, Shapes
from impls.structures import huffman


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    tree = huffman.build(counts_V)
    return {"code_length": tree.code_length, "index": tree.index, "sign": tree.sign, "children": tree.children}


def shapes(spec: LayerSpec) -> Shapes:
    return {"node_weight": (spec.vocab - 1, spec.dim)}


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    bound = 1 / np.sqrt(spec.dim)
    return {"node_weight": rng.uniform(-bound, bound, (spec.vocab - 1, spec.dim))}


DEFINITION = Definition(
    name="huffman",
    paper="Liu et al., Hierarchical Softmax for End-to-End Low-resource Multilingual ASR, arXiv 2204.03855, 2022",
    options={},
    structure=structure,
    shapes=shapes,
    initial=initial,
    draws=lambda spec: spec.structure["index"].shape[1],
)


class HuffmanSoftmax(OracleLayer):
    DEFINITION = DEFINITION

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.index_VL = spec.structure["index"]
        self.sign_VL = spec.structure["sign"].astype(np.float64)
        self.levels = huffman.levels(spec.structure["children"])

    def _log_probs(self, hidden_ND: NDArray) -> NDArray:
        # Level by level: a child's prefix is its parent's plus one turn. O(V D) a token, never (N, V, L).
        vocab = self.spec.vocab
        children = self.spec.structure["children"]
        scores_NM = hidden_ND.astype(np.float64) @ self.params["node_weight"].T  # M = V-1 inner nodes
        prefix = np.zeros((len(hidden_ND), 2 * vocab - 1))  # words, then inner nodes, as `children` counts them
        for nodes in self.levels:
            left, right = children[nodes, 0], children[nodes, 1]
            prefix[:, left] = prefix[:, vocab + nodes] + log_sigmoid(scores_NM[:, nodes])
            prefix[:, right] = prefix[:, vocab + nodes] + log_sigmoid(-scores_NM[:, nodes])
        return prefix[:, :vocab]

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        # Level by level: children of the prefixes followed, and words reached before, compete for `width` places.
        vocab, children = self.spec.vocab, self.spec.structure["children"]
        scores_NM = hidden_ND.astype(np.float64) @ self.params["node_weight"].T
        value_NW, node_NW = np.zeros((len(hidden_ND), 1)), np.full((len(hidden_ND), 1), 2 * vocab - 2)  # the root
        while (inner_NW := (node_NW >= vocab) & np.isfinite(value_NW)).any():
            at_NW = np.where(inner_NW, node_NW - vocab, 0)
            score_NW = np.take_along_axis(scores_NM, at_NW, axis=1)
            values = (
                np.where(inner_NW, -np.inf, value_NW),
                np.where(inner_NW, value_NW + log_sigmoid(score_NW), -np.inf),
                np.where(inner_NW, value_NW + log_sigmoid(-score_NW), -np.inf),
            )
            nodes = (node_NW, children[at_NW, 0], children[at_NW, 1])
            value_NW, place_NW = best(np.concatenate(values, axis=1), width)
            node_NW = np.take_along_axis(np.concatenate(nodes, axis=1), place_NW, axis=1)
        by_id_NW = np.argsort(node_NW, axis=1)
        value_NK, place_NK = best(np.take_along_axis(value_NW, by_id_NW, axis=1), k)
        return value_NK, np.take_along_axis(np.take_along_axis(node_NW, by_id_NW, axis=1), place_NK, axis=1)

    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        vocab, children = self.spec.vocab, self.spec.structure["children"]
        node_N = np.full(len(hidden_ND), 2 * vocab - 2)
        for turn in range(uniforms_NU.shape[1]):
            inner_N = node_N >= vocab
            at_N = np.where(inner_N, node_N - vocab, 0)
            score_N = np.einsum("nd,nd->n", hidden_ND, self.params["node_weight"][at_N])
            right_N = uniforms_NU[:, turn] >= np.exp(log_sigmoid(score_N))
            node_N = np.where(inner_N, children[at_N, right_N.astype(np.int64)], node_N)
        return node_N

    def _path(self, hidden_ND: NDArray, targets_N: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        index_NL, sign_NL = self.index_VL[targets_N], self.sign_VL[targets_N]
        scores_NL = np.einsum("nd,nld->nl", hidden_ND, self.params["node_weight"][index_NL])
        return index_NL, sign_NL, scores_NL

    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray:
        _, sign_NL, scores_NL = self._path(hidden_ND.astype(np.float64), targets_N)
        return (np.abs(sign_NL) * log_sigmoid(sign_NL * scores_NL)).sum(axis=1)

    def _loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        hidden_ND = hidden_ND.astype(np.float64)
        index_NL, sign_NL, scores_NL = self._path(hidden_ND, targets_N)
        log_turn_NL = log_sigmoid(sign_NL * scores_NL)
        loss = -(np.abs(sign_NL) * log_turn_NL).sum() / len(targets_N)
        # d/dx of -log sigma(sx) = -s (1 - sigma(sx)); the sign is 0 beyond the code's end.
        dscores_NL = -sign_NL * -np.expm1(log_turn_NL) / len(targets_N)
        dhidden_ND = np.einsum("nl,nld->nd", dscores_NL, self.params["node_weight"][index_NL])
        dnode = np.zeros_like(self.params["node_weight"])
        np.add.at(dnode, index_NL, dscores_NL[:, :, None] * hidden_ND[:, None, :])
        return float(loss), dhidden_ND, {"node_weight": dnode}


LAYER = HuffmanSoftmax
