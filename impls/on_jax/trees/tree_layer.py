"""A binary tree over words as an output layer in JAX. See `impls/on_numpy/tree.py` for the definition."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vocabench.impls.cpp import CPP, Paths
from vocabench.impls.forms import Form
from vocabench.impls.on_jax import objectives
from vocabench.impls.on_jax.device import put
from vocabench.impls.on_jax.hooks import Reach
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.ops.arrays import Array, Tree, product, reversed_once, varying_as, wide
from vocabench.impls.on_jax.ops.sparse_rows import distinct
from vocabench.impls.on_jax.ops.topk import settle, top_k
from vocabench.impls.on_jax.pallas import support
from vocabench.impls.on_jax.pallas.support import KERNELS
from vocabench.impls.on_jax.trees import descend
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import huffman, path_blocks, trees

# The inner nodes visited most are shared by most paths: one dense product scores them for all tokens.
_SHARED_NODES = 256
# The rest of the paths are (token, node) pairs, which each form takes so many at a time. On a CPU the vectors of a few
# pairs stay in the cache; a GPU is faster with many. Our own kernels need no such size: those of `cpp_kernels.py` on a
# CPU with a compiler, and those of `tree_kernels.py` on a GPU.
_FORMS = tuple(
    Form(f"pairs_{pairs}", f"{pairs:,} pairs of a token and a node at a time", size=pairs) for pairs in (256, 2**14)
)
# Decoding: subtrees that a row follows at a time. Rows that the first number does not settle use the second.
_BEAMS = (16, 64)
_AT_ONCE_ON_GPU = 2**27  # scores of nodes of all rows: a GPU computes these while the host waits for a decision


def _cold_pairs(index_NL: Array, cold_NL: Array, at_once: int) -> tuple[Array, Array, Array]:
    """Return the tokens and nodes (P,) of the pairs without a shared node, and the number of these pairs.

    The arrays have room for all N L pairs. The pairs are moved to the front.
    """
    tokens, depth = index_NL.shape
    flat = cold_NL.ravel()
    room = -(-tokens * depth // at_once) * at_once
    place = jnp.where(flat, jnp.cumsum(flat) - 1, room)
    pair_P = jnp.zeros(room, jnp.int32).at[place].set(jnp.arange(tokens * depth, dtype=jnp.int32), mode="drop")
    return pair_P // depth, index_NL.ravel()[pair_P], flat.sum()


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _path_nll(hidden_ND: Array, node_weight: Array, index_NL: Array, sign_NL: Array, form: Form | None) -> Array:
    """Return the (N,) sums over each token's path of -log sigma(sign x r.h). The gradient is written by hand."""
    return _forward(hidden_ND, node_weight, index_NL, sign_NL, form)[0]


def _forward(hidden_ND, node_weight, index_NL, sign_NL, form):  # type: ignore[no-untyped-def]
    # Parents come after their children, so the nodes visited most are the last ones.
    first = max(0, node_weight.shape[0] - _SHARED_NODES)
    tokens, depth = index_NL.shape
    kind = wide(node_weight.dtype)
    hidden_cast_ND = hidden_ND.astype(node_weight.dtype)
    on_path_NL, near_NL = sign_NL != 0, index_NL >= first
    near_scores_NH = product(hidden_cast_ND, node_weight[first:])
    near_place_NL = jnp.maximum(index_NL - first, 0)
    near_scores_NL = jnp.take_along_axis(near_scores_NH, near_place_NL, axis=1)

    cold_NL = on_path_NL & ~near_NL
    at_once = (form or _FORMS[0]).size
    token_P, node_P, count = _cold_pairs(index_NL, cold_NL, at_once)
    steps = (count + at_once - 1) // at_once

    def score(step: Array, scores_P: Array) -> Array:
        start = step * at_once
        rows, nodes = (lax.dynamic_slice_in_dim(array, start, at_once) for array in (token_P, node_P))
        products = node_weight[nodes].astype(kind) * hidden_cast_ND[rows].astype(kind)
        return lax.dynamic_update_slice_in_dim(scores_P, products.sum(axis=1), start, 0)

    zeros_P = varying_as(hidden_ND, jnp.zeros(token_P.shape, kind))
    cold_scores_P = lax.fori_loop(0, steps, score, zeros_P)
    place_NL = jnp.where(cold_NL, jnp.cumsum(cold_NL.ravel()).reshape(tokens, depth) - 1, 0)
    scores_NL = jnp.where(near_NL, near_scores_NL, cold_scores_P[place_NL])

    signs_NL = sign_NL.astype(kind)
    turns_NL = signs_NL * scores_NL
    nll_N = -jnp.where(on_path_NL, jax.nn.log_sigmoid(turns_NL), 0).sum(axis=1)
    # d/dx of -log sigma(s x) is -s sigma(-s x). The sign is 0 beyond the end of the path.
    dscores_NL = -signs_NL * jax.nn.sigmoid(-turns_NL)
    kept = (hidden_ND, node_weight, dscores_NL, on_path_NL & near_NL, near_place_NL, cold_NL, token_P, node_P, steps)
    return nll_N, kept


def _backward(form, kept, dnll_N):  # type: ignore[no-untyped-def]
    hidden_ND, node_weight, dscores_NL, near_NL, near_place_NL, cold_NL, token_P, node_P, steps = kept
    first, at_once = max(0, node_weight.shape[0] - _SHARED_NODES), (form or _FORMS[0]).size
    tokens, kind = hidden_ND.shape[0], wide(node_weight.dtype)
    hidden_cast_ND = hidden_ND.astype(node_weight.dtype)
    dscores_NL = dscores_NL * dnll_N[:, None]

    shared = node_weight.shape[0] - first
    dnear_NH = jnp.zeros((tokens, shared), kind)
    rows_N1 = jnp.arange(tokens)[:, None]
    dnear_NH = dnear_NH.at[rows_N1, near_place_NL].add(jnp.where(near_NL, dscores_NL, 0)).astype(node_weight.dtype)
    dhidden_ND = jnp.matmul(dnear_NH, node_weight[first:], preferred_element_type=kind)
    dnear_HD = jnp.matmul(dnear_NH.T, hidden_cast_ND, preferred_element_type=kind)
    dnode = jnp.zeros(node_weight.shape, kind)
    dnode = lax.dynamic_update_slice_in_dim(dnode, dnear_HD, first, 0)

    flat = cold_NL.ravel()
    place = jnp.where(flat, jnp.cumsum(flat) - 1, token_P.shape[0])
    dscores_P = jnp.zeros(token_P.shape, kind).at[place].set(dscores_NL.ravel(), mode="drop")

    def add(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        dhidden_ND, dnode = carry
        start = step * at_once
        rows, nodes, ds = (lax.dynamic_slice_in_dim(array, start, at_once) for array in (token_P, node_P, dscores_P))
        # Entries beyond the last pair have a gradient of zero.
        dhidden_ND = dhidden_ND.at[rows].add(ds[:, None] * node_weight[nodes].astype(kind))
        return dhidden_ND, dnode.at[nodes].add(ds[:, None] * hidden_cast_ND[rows].astype(kind))

    dhidden_ND, dnode = lax.fori_loop(0, steps, add, varying_as(hidden_ND, (dhidden_ND, dnode)))
    gradients = dhidden_ND.astype(hidden_ND.dtype), dnode.astype(node_weight.dtype)
    return *reversed_once(gradients), None, None


_path_nll.defvjp(_forward, _backward)


@jax.custom_vjp
def _nll_by_kernels(hidden_ND: Array, node_weight: Array, paths: Paths) -> Array:
    """Return the same as `_path_nll`, computed by our C++ kernels."""
    return _forward_by_kernels(hidden_ND, node_weight, paths)[0]


def _forward_by_kernels(hidden_ND, node_weight, paths):  # type: ignore[no-untyped-def]
    nll_N, dscores_NL, unscaled_ND = cpp_kernels.path_losses(hidden_ND.astype(node_weight.dtype), node_weight, paths)
    return nll_N, (hidden_ND, node_weight, paths, dscores_NL, unscaled_ND)


def _backward_by_kernels(kept, dnll_N):  # type: ignore[no-untyped-def]
    hidden_ND, node_weight, paths, dscores_NL, unscaled_ND = kept
    dnll_N1 = dnll_N[:, None]
    dnode = cpp_kernels.path_gradients(dscores_NL * dnll_N1, hidden_ND.astype(node_weight.dtype), node_weight, paths)
    return (unscaled_ND * dnll_N1).astype(hidden_ND.dtype), dnode, None


_nll_by_kernels.defvjp(_forward_by_kernels, _backward_by_kernels)


def node_scores(node_weight: Array, hidden_ND: Array) -> Array:
    """Return the (nodes, N) scores r.h of all inner nodes."""
    cast_ND = hidden_ND.astype(node_weight.dtype)
    return jnp.matmul(node_weight, cast_ND.T, preferred_element_type=wide(node_weight.dtype))


def sum_of_turns(scores_MN: Array, below_2M: Array) -> Array:
    """Return the (N,) sums over words of the log-probabilities of their turns at these nodes.

    Args:
        scores_MN: Scores of the nodes.
        below_2M: Number of words to the left and to the right of each node.
    """
    # log sigma(-x) = log sigma(x) - x
    both_M, right_M = (count_M.astype(scores_MN.dtype) for count_M in (below_2M.sum(axis=0), below_2M[1]))
    return both_M @ jax.nn.log_sigmoid(scores_MN) - right_M @ scores_MN


class TreeSoftmax(OutputLayer):
    """log P(w | h) = logsumexp over w's codes of the sum over the code's inner nodes of log sigma(sign . (r.h + b)).

    Parameters: `node_weight` (nodes, D). If the method has biases, it is (nodes, D + 1) with the biases in the last
    column, and every hidden vector is extended by a 1.

    Structure: `index` and `sign` (leaves, L) of each leaf's path; `place` (leaves,) of each leaf from left to right;
    `leaf` (V, M) of each word, padded with -1; `leaf_word` (leaves,), the word of each leaf; `children`, `exits` and
    `turns` as in `descend.Tree`.
    """

    FEW_ROWS: ClassVar = ("node_weight",)

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self._children = spec.structure["children"].astype(np.int32)
        self._levels = huffman.levels(spec.structure["children"])
        self._leaf_word = trees.words_of_leaves(spec.structure, spec.vocab)
        self._leaf_VM = trees.leaves_of_words(self._leaf_word)
        self._single = self._leaf_VM.shape[1] == 1  # each word is the leaf of the same number
        self._biased = "node_bias" in spec.parameter_shapes()
        self._shared = min(_SHARED_NODES, len(self._children))
        self._first_shared = len(self._children) - self._shared
        off_shared = (spec.structure["sign"] != 0) & (spec.structure["index"] < self._first_shared)
        self._longest_off = int(off_shared.sum(axis=1).max())

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        on_cpu = (CPP,) if cpp_kernels.known(spec.dtype) else ()
        on_gpu = (KERNELS,) if support.known(spec.dtype, spec.dim) else ()
        return (*on_gpu, *on_cpu, *_FORMS)

    def placement(self) -> Tree:
        near = huffman.near_root(self.spec.structure["children"], descend.NEAR_NODES)
        whole = {name: self.spec.structure[name] for name in ("index", "sign", "children")}
        whole |= {"place": huffman.places(self.spec.structure["children"])}
        whole |= {"exits": near.exits, "leaf": self._leaf_VM, "leaf_word": self._leaf_word}
        if self.form == KERNELS:
            whole |= {"leaf_at": np.argsort(whole["place"]), "length": (whole["sign"] != 0).sum(axis=1)}
        arrays = {name: put(array, jnp.int32) for name, array in whole.items()}
        return arrays | {"turns": put(near.turns)}

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        hidden_ND = self._with_one(hidden_ND)
        if self._single:
            return self._leaf_nll(params, structure, hidden_ND, targets_N)
        # Each code of a target is a separate path with the same hidden vector.
        leaf_NM = structure["leaf"][targets_N]
        hidden_PD = jnp.repeat(hidden_ND, leaf_NM.shape[1], axis=0)
        nll_P = self._leaf_nll(params, structure, hidden_PD, jnp.maximum(leaf_NM, 0).ravel())
        log_code_NM = jnp.where(leaf_NM < 0, -jnp.inf, -nll_P.reshape(leaf_NM.shape))
        return -jax.nn.logsumexp(log_code_NM, axis=1)

    def _leaf_nll(self, params: Tree, structure: Tree, hidden_ND: Array, leaf_N: Array) -> Array:
        paths = Paths(*(structure[name][leaf_N] for name in ("index", "sign", "place")))
        return self.path_nll(hidden_ND, params["node_weight"], paths)

    def path_nll(self, hidden_ND: Array, node_weight: Array, paths: Paths) -> Array:
        """Return the (N,) sums over paths of -log sigma(sign x r.h), for the nodes of any tree or forest.

        The nodes visited most are the last ones. Tokens without a path have a loss of 0.
        """
        if self.form == CPP:
            return _nll_by_kernels(hidden_ND, node_weight, paths)
        if self.form == KERNELS:
            # Imported here because not every JAX has Pallas' Triton backend.
            from vocabench.impls.on_jax.pallas import tree_kernels

            return tree_kernels.path_nll(hidden_ND, node_weight, paths, min(self._shared, len(node_weight)))
        return _path_nll(hidden_ND, node_weight, paths.index_NL, paths.sign_NL, self.form)

    def reach(self, structure: Tree, targets_N: Array) -> Reach:  # type: ignore[override]
        nodes, first = len(self._children), self._first_shared
        leaf_NM = structure["leaf"][targets_N]
        real_NM, leaf_P = leaf_NM >= 0, jnp.maximum(leaf_NM, 0).ravel()
        index_PL = structure["index"][leaf_P]
        sign_PL = jnp.where(real_NM.reshape(-1, 1), structure["sign"][leaf_P], 0)
        cold_PL = (sign_PL != 0) & (index_PL < first)
        room = min(leaf_P.shape[0] * self._longest_off, first)
        rows_U, place_R = distinct(jnp.where(cold_PL, index_PL, nodes).ravel(), nodes, room)
        # A batch reads most of the shared nodes. They stay the last rows of the table.
        rows_U = jnp.concatenate([rows_U, jnp.arange(first, nodes, dtype=jnp.int32)])
        paths = {
            "index": jnp.where(cold_PL, place_R.reshape(cold_PL.shape), index_PL - first + room),
            "sign": sign_PL,
            "place": structure["place"][leaf_P],
            "leaf": jnp.where(real_NM, jnp.arange(leaf_NM.size).reshape(leaf_NM.shape), -1),
        }
        return Reach({"node_weight": rows_U}, paths, jnp.arange(targets_N.shape[0]), {})

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        log_leaf_NF = self._leaf_log_probs(params, self._with_one(hidden_ND))
        if self._single:
            return log_leaf_NF
        log_code_NVM = jnp.where(structure["leaf"] < 0, -jnp.inf, log_leaf_NF[:, structure["leaf"]])
        return jax.nn.logsumexp(log_code_NVM, axis=2)

    def _mean_log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        """Return the (N,) means: each node's turns count as often as there are words on either side."""
        if not self._single:
            return super()._mean_log_probs(params, structure, hidden_ND)
        paths = self.spec.structure["index"], self.spec.structure["sign"]
        below_2M = jnp.asarray(huffman.words_below(*paths, len(self._children)), jnp.int32)

        def of_block(hidden_BD: Array) -> Array:
            scores_MB = node_scores(params["node_weight"], self._with_one(hidden_BD))
            return sum_of_turns(scores_MB, below_2M) / self.spec.vocab

        return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND)

    def _leaf_log_probs(self, params: Tree, hidden_ND: Array) -> Array:
        # Level by level in O(V D + V) for each token. Nodes are rows, so that a level reads and writes whole rows.
        scores_MN = node_scores(params["node_weight"], hidden_ND)
        leaves = len(self._children) + 1
        prefix = jnp.zeros((2 * leaves - 1, hidden_ND.shape[0]), scores_MN.dtype)  # leaves, then inner nodes
        for nodes in self._levels:
            here, scores = prefix[leaves + nodes], scores_MN[nodes]
            prefix = prefix.at[self._children[nodes, 0]].set(here + jax.nn.log_sigmoid(scores), unique_indices=True)
            prefix = prefix.at[self._children[nodes, 1]].set(here + jax.nn.log_sigmoid(-scores), unique_indices=True)
        return prefix[:leaves].T

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of inner nodes scored.

        All nodes are scored if words have several codes, because no prefix is then a bound for a word.
        """
        if not self._single:
            return super()._search(params, structure, hidden_ND, k)
        if self.form == CPP:
            return cpp_kernels.likeliest_leaves(
                self._cast(params, hidden_ND), params["node_weight"], structure["children"], k
            )
        if self._searches_by_kernels(hidden_ND.shape[0], k):
            return *self._likeliest(params, structure, hidden_ND, k), jnp.ones(hidden_ND.shape[0], jnp.float32)
        nodes, tree, cast_ND = len(self._children), self._tree(params, structure), self._cast(params, hidden_ND)

        def solve(rows_R: Array, beams: tuple[int, ...]) -> tuple[Array, Array, Array]:
            hidden_RD = cast_ND[rows_R]
            if not beams:
                values_RK, ids_RK = top_k(self._leaf_log_probs(params, hidden_RD), k)
                return values_RK, ids_RK.astype(jnp.int32), jnp.full(rows_R.shape[0], nodes, jnp.int32)
            followed = descend.follow(hidden_RD, tree, k, beams[0])
            best = followed.values_NJ[:, :k], followed.ids_NJ[:, :k], followed.nodes_N
            return settle(best, followed.open(k), lambda open_O: solve(rows_R[open_O], beams[1:]))

        values_NK, ids_NK, nodes_N = solve(jnp.arange(hidden_ND.shape[0]), _BEAMS)
        return values_NK, ids_NK, nodes_N.astype(jnp.float32) / nodes

    def _searches_by_kernels(self, rows: int, k: int) -> bool:
        """Return whether a GPU scores all leaves faster than the host can control a search by bounds."""
        if self.form != KERNELS or rows * len(self._children) > _AT_ONCE_ON_GPU:
            return False
        # Imported here because not every JAX has Pallas' Triton backend.
        from vocabench.impls.on_jax.pallas import topk_kernels

        return topk_kernels.takes(-(-len(self._leaf_word) // topk_kernels.WIDTH), topk_kernels.WIDTH, k)

    def _likeliest(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array]:
        """Return the values and ids (N, K) of the k likeliest words, with all nodes scored."""
        from vocabench.impls.on_jax.pallas import topk_kernels, tree_kernels

        scores_MN = product(params["node_weight"], self._cast(params, hidden_ND))
        index_FL, sign_FL, length_F, leaf_F = (structure[name] for name in ("index", "sign", "length", "leaf_at"))
        log_leaf_NX = tree_kernels.log_leaves(scores_MN, index_FL, sign_FL, length_F, leaf_F, width=topk_kernels.WIDTH)
        # A group holds adjacent leaves. Each leaf is the word of the same number.
        word_X = jnp.pad(leaf_F, (0, log_leaf_NX.shape[1] - len(leaf_F)), constant_values=-1)
        return topk_kernels.best_of_groups(log_leaf_NX, word_X.reshape(-1, topk_kernels.WIDTH), k)

    def _beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> tuple[Array, Array]:
        """Return values and ids (N, K) of k likely words, keeping the `width` likeliest prefixes of each level.

        The result is exact if words have several codes.
        """
        if not self._single:
            return self._search(params, structure, hidden_ND, k)[:2]
        if self.form == CPP:
            tree = params["node_weight"], structure["children"]
            return cpp_kernels.leaves_of_beam(self._cast(params, hidden_ND), *tree, k, width)[:2]
        return descend.beam(self._cast(params, hidden_ND), self._tree(params, structure), k, width)

    def _path_beam(
        self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int, levels: int
    ) -> tuple[Array, Array]:
        if levels == 1 or not self._single:
            return self._beam(params, structure, hidden_ND, k, width)
        blocks = path_blocks.blocks(self.spec.structure["children"], levels)
        node_BJ, exit_BP = (jnp.asarray(array, jnp.int32) for array in (blocks.node_BJ, blocks.exit_BP))
        tree = self._tree(params, structure)
        return descend.path_beam(self._cast(params, hidden_ND), tree, node_BJ, exit_BP, k, width)

    def _sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """Draw (N,) words, with one uniform number for each turn."""
        leaf_N = descend.sample(self._cast(params, hidden_ND), self._tree(params, structure), uniforms_NU)
        return structure["leaf_word"][leaf_N]

    def _tree(self, params: Tree, structure: Tree) -> descend.Tree:
        return descend.Tree(params["node_weight"], *(structure[name] for name in ("children", "exits", "turns")))

    def _with_one(self, hidden_ND: Array) -> Array:
        return jnp.pad(hidden_ND, ((0, 0), (0, 1)), constant_values=1) if self._biased else hidden_ND

    def _cast(self, params: Tree, hidden_ND: Array) -> Array:
        return self._with_one(hidden_ND).astype(params["node_weight"].dtype)

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        if not self._biased:
            return dict(tree)
        return {"node_weight": tree["node_weight"][:, :-1], "node_bias": tree["node_weight"][:, -1]}

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        if not self._biased:
            return dict(tree)
        return {"node_weight": jnp.concatenate([tree["node_weight"], tree["node_bias"][:, None]], axis=1)}

    def formulation(self) -> str:
        if self.form == CPP:
            return CPP.label
        if self.form == KERNELS:
            return f"{KERNELS.label}, dense product for the gradient of the {self._shared} nodes visited most"
        return f"dense product of the {self._shared} nodes visited most, {self.form} for the rest"
