"""Hierarchical softmax over a tree of any arity and depth (Goodman 2001; Mnih and Hinton 2009, for any arity).

The words are the leaves of a tree. At each inner node, one softmax chooses among its children, which are inner nodes or
words, each with a vector u and a bias b. With a(1), ..., a(m) = w the nodes on the way from the root to the word w,

    log P(w | h) = sum over i of (u_a(i).h + b_a(i) - logsumexp over the siblings s of a(i) of (u_s.h + b_s))

A tree in which every inner node has two children is that of `binary_tree`, with the difference of the two vectors as
the vector of the inner node. A tree of two levels is that of `class_hsm`.

The option `tree` has the tree as nested lists: a list is an inner node, and anything else in it is a word, as its id or
its spelling (option `words`). The lists may be nested to any depth, and different depths may meet at one node. Without
this option, it is Huffman's tree with `arity` children at every inner node, except perhaps the deepest (Huffman 1952).

A target costs 2 D x (siblings on its way, itself included) FLOPs in the forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.methods.class_hsm import log_softmax_by_group
from vocabench.impls.on_numpy.oracle import OracleLayer, best, draw
from vocabench.impls.options import NestedLists, Number, Words, read_nested, read_words
from vocabench.impls.spec import BIAS, Arrays, Definition, LayerSpec, LeastWork, Shapes
from vocabench.impls.structures import multiway
from vocabench.impls.structures.multiway import MultiwayTree
from vocabench.impls.uniform import uniform

OPTIONS = {
    "tree": NestedLists("nested lists of words and word ids, or a JSON file of them; Huffman's tree if left out"),
    "arity": Number(16, 2, 2**16, "children of an inner node of Huffman's tree"),
    "words": Words("V words, for a tree that spells them, or a text file of them; a task over text supplies its own"),
    "bias": BIAS,
}


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    nested, words = read_nested("tree", options["tree"]), read_words("words", options["words"])
    if words is not None and len(words) != len(counts_V):
        raise BadInput(f"option words has {len(words)} words: allowed: {len(counts_V)}, one for each count")
    if nested is None:
        tree = multiway.huffman(counts_V, int(options["arity"]))  # type: ignore[call-overload]
    else:
        tree = multiway.from_nested(nested, len(counts_V), words)
    return {"node_parent": tree.node_parent, "word_parent": tree.word_parent}


def tree_of(spec: LayerSpec) -> MultiwayTree:
    return MultiwayTree(spec.structure["node_parent"], spec.structure["word_parent"])


def shapes(spec: LayerSpec) -> Shapes:
    """Return the shapes. Every inner node but the root is scored as a child of its parent, and so has parameters."""
    nodes = len(spec.structure["node_parent"]) - 1
    return {
        "node_weight": (nodes, spec.dim),
        "node_bias": (nodes,),
        "leaf_weight": (spec.vocab, spec.dim),
        "leaf_bias": (spec.vocab,),
    }


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    """Draw vectors uniform in +-1/sqrt(D), and set biases to the log frequencies among siblings.

    Training therefore starts from the unigram distribution.
    """
    tree, parameter_shapes, bound = tree_of(spec), shapes(spec), 1 / np.sqrt(spec.dim)
    mass_V = spec.counts + 1.0  # a word of count zero has a finite logarithm
    mass_I = multiway.masses(tree, mass_V)
    return {
        "node_weight": uniform(rng, bound, parameter_shapes["node_weight"]),
        "node_bias": np.log(mass_I[1:] / mass_I[tree.node_parent[1:]]),
        "leaf_weight": uniform(rng, bound, parameter_shapes["leaf_weight"]),
        "leaf_bias": np.log(mass_V / mass_I[tree.word_parent]),
    }


def least_work(spec: LayerSpec, targets_N: NDArray[np.int64]) -> LeastWork:
    """Count the siblings on the way to each target."""
    parent_M, nodes = parents(spec), len(spec.structure["node_parent"]) - 1
    steps, here = [], targets_N + nodes
    while len(here):
        steps.append(here)
        here = parent_M[here] - 1
        here = here[here >= 0]
    tokens_G, sizes_G = cost.groups_reached(parent_M, np.concatenate(steps))
    values = int(sizes_G.sum()) * (spec.dim + spec.has_bias)
    return cost.least(spec, len(targets_N), multiply_adds=float(tokens_G @ sizes_G) * spec.dim, parameters=values)


def parents(spec: LayerSpec) -> NDArray[np.int64]:
    """Return the parent of each inner node except the root, followed by that of each word."""
    return np.concatenate([spec.structure["node_parent"][1:], spec.structure["word_parent"]])


DEFINITION = Definition(
    name="multiway_tree",
    paper="Goodman, Classes for Fast Maximum Entropy Training, arXiv cs/0108006, 2001, with a tree of any depth",
    options=OPTIONS,
    structure=structure,
    shapes=shapes,
    initial=initial,
    draws=lambda spec: int(multiway.word_depths(tree_of(spec)).max()),
    least_work=least_work,
    variants=({"arity": 3}, {"bias": False}),
    biases=("node_bias", "leaf_bias"),
)


class MultiwayTreeSoftmax(OracleLayer):
    """Softmax at each inner node of a tree. A child is an inner node except the root, or a word, in this order."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.parent_M = parents(spec)
        self.nodes = len(self.parent_M) - spec.vocab  # without the root
        depth_I = multiway.node_depths(spec.structure["node_parent"])
        # The inner nodes of each depth below the root, as children.
        self.levels = [np.flatnonzero(depth_I == depth) - 1 for depth in range(1, depth_I.max() + 1)]

    def _by_child(self, kind: str) -> NDArray:
        return np.concatenate([self.params[f"node_{kind}"], self.params[f"leaf_{kind}"]])

    def _within(self, hidden_ND: NDArray) -> NDArray:
        """Return log P (N, M) of each child given its parent."""
        scores_NM = hidden_ND.astype(np.float64) @ self._by_child("weight").T
        if self.spec.has_bias:
            scores_NM += self._by_child("bias")
        return log_softmax_by_group(scores_NM, self.parent_M)

    def _nodes_down(self, within_NM: NDArray, width: int | None = None) -> NDArray:
        """Return log P (N, I) of each inner node; -inf without one of the `width` likeliest of each depth above."""
        log_NI = np.zeros((len(within_NM), self.nodes + 1))
        for nodes in self.levels:
            log_NW = log_NI[:, self.parent_M[nodes]] + within_NM[:, nodes]
            if width is not None:
                values_NW, chosen_NW = best(log_NW, width)
                log_NW = np.full_like(log_NW, -np.inf)
                np.put_along_axis(log_NW, chosen_NW, values_NW, axis=1)
            log_NI[:, nodes + 1] = log_NW
        return log_NI

    def _plain_log_probs(self, hidden_ND: NDArray) -> NDArray:
        within_NM = self._within(hidden_ND)
        return self._nodes_down(within_NM)[:, self.spec.structure["word_parent"]] + within_NM[:, self.nodes :]

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        # At each depth, keep the most probable inner nodes below those kept so far, and all words below them.
        within_NM = self._within(hidden_ND)
        log_parent_NV = self._nodes_down(within_NM, width)[:, self.spec.structure["word_parent"]]
        return best(log_parent_NV + within_NM[:, self.nodes :], k)

    def _draw(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        probability_NM = np.exp(self._within(hidden_ND))
        child_N = np.full(len(hidden_ND), -1)  # the root
        for uniforms_N in uniforms_NU.T:
            inner_N = child_N < self.nodes
            inside_NM = self.parent_M == np.where(inner_N, child_N + 1, 0)[:, None]
            child_N = np.where(inner_N, draw(np.where(inside_NM, probability_NM, 0.0), uniforms_N), child_N)
        return child_N - self.nodes

    def _plain_loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        hidden_ND = hidden_ND.astype(np.float64)
        within_NM, loss = self._within(hidden_ND), 0.0
        dscores_NM = np.zeros_like(within_NM)
        rows_R, child_R = np.arange(len(targets_N)), targets_N + self.nodes
        while len(rows_R):  # one softmax for each child on the way up, over its siblings
            loss -= within_NM[rows_R, child_R].sum()
            siblings_RM = self.parent_M == self.parent_M[child_R][:, None]
            dscores_NM[rows_R] += np.where(siblings_RM, np.exp(within_NM[rows_R]), 0.0)
            dscores_NM[rows_R, child_R] -= 1
            above_R = self.parent_M[child_R] - 1
            rows_R, child_R = rows_R[above_R >= 0], above_R[above_R >= 0]
        dscores_NM /= len(targets_N)
        dweight_MD, dbias_M = dscores_NM.T @ hidden_ND, dscores_NM.sum(axis=0)
        grads = {
            "node_weight": dweight_MD[: self.nodes],
            "node_bias": dbias_M[: self.nodes],
            "leaf_weight": dweight_MD[self.nodes :],
            "leaf_bias": dbias_M[self.nodes :],
        }
        dhidden_ND = dscores_NM @ self._by_child("weight")
        return float(loss) / len(targets_N), dhidden_ND, {name: grads[name] for name in self.params}


LAYER = MultiwayTreeSoftmax
