"""Softmax over a tree of any arity in JAX. See `impls/on_numpy/methods/multiway_tree.py` for the definition."""

from __future__ import annotations

import jax.numpy as jnp

from vocabench.impls.forms import Form
from vocabench.impls.on_jax.device import put
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.ops.arrays import Array, Tree, wide
from vocabench.impls.on_jax.ops.topk import best_by_id, top_k
from vocabench.impls.on_jax.two_level import cluster_softmax
from vocabench.impls.on_jax.two_level.levels import Level, followed
from vocabench.impls.on_numpy.methods import multiway_tree
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures.multiway import Split


class MultiwayTreeSoftmax(OutputLayer):
    """log P(w | h) = sum over the nodes on the way to w of their log softmax among their siblings.

    Parameters: those of two `Level`s, the `upper` and the `lower` part of the tree as in `multiway.Split`. A tree of a
    single level has no upper part. Structure: that of the levels, and the arrays of `Split` that losses and decoding
    read.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self._kinds = ("weight", "bias") if spec.has_bias else ("weight",)
        self._split = Split.of(multiway_tree.tree_of(spec))
        upper, lower = self._split.shelves(spec.counts)
        self.lower = Level("lower", lower, self.form)
        self.upper = None if upper is None else Level("upper", upper, self.form)
        self.levels = [level for level in (self.upper, self.lower) if level is not None]

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return cluster_softmax.forms(spec.dtype, spec.dim)

    def placement(self) -> Tree:
        split = self._split
        single_words, single_columns = split.single_words
        own = {
            "above": split.upper_above_A,
            "upper_below": split.upper_group_X,
            "lower_below": split.lower_group_X,
            "upper_word": split.upper_word_A,
            "lower_word": split.lower_word_B,
            "lower_parent": split.lower_parent_H,
            "depth": split.depth_X,
            "way": split.way_VL,
            "member_of_word": split.lower_V,
            "word_column": split.word_column_V,
            "single_word": single_words,
            "single_column": single_columns,
            "member_of_row": split.member_of_row,
            "upper_row": split.parameter_rows[0],
            "lower_row": split.parameter_rows[1],
        }
        placed = {f"tree_{name}": put(array, jnp.int32) for name, array in own.items()}
        return placed | {key: array for level in self.levels for key, array in level.structure().items()}

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        lower_N = structure["tree_member_of_word"][targets_N]
        total_N = self.lower.nll(params, structure, hidden_ND, lower_N, lower_N >= 0)
        if self.upper is None:
            return total_N
        # One pair for each token and each step of the longest way.
        way_NL = structure["tree_way"][targets_N]
        hidden_PD, member_P = jnp.repeat(hidden_ND, way_NL.shape[1], axis=0), way_NL.ravel()
        nll_P = self.upper.nll(params, structure, hidden_PD, member_P, member_P >= 0)
        return total_N + nll_P.reshape(way_NL.shape).sum(axis=1)

    def _joint(self, params: Tree, structure: Tree, hidden_ND: Array, width: int | None = None) -> Array:
        """Return (N, X) log P of the root and each upper member.

        With `width`, only so many inner nodes of each depth are followed, and others have -inf.
        """
        above_NM = jnp.zeros_like(hidden_ND, wide(hidden_ND.dtype), shape=(hidden_ND.shape[0], 1))
        if self.upper is None:
            return above_NM
        within_NA, parts = self.upper.log_within(params, structure, hidden_ND), [above_NM]
        for start, first_word, end in self._split.levels:
            log_NM = above_NM[:, structure["tree_above"][start:end]] + within_NA[:, start:end]
            above_NM, words_NW = log_NM[:, : first_word - start], log_NM[:, first_word - start :]
            if width is not None and first_word > start:
                above_NM = followed(above_NM, width)
            parts += [above_NM, words_NW]
        return jnp.concatenate(parts, axis=1)

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        log_NX = self._joint(params, structure, hidden_ND)
        parent_B = structure["tree_lower_parent"][self.lower.group(structure)]
        log_NB = log_NX[:, parent_B] + self.lower.log_within(params, structure, hidden_ND)
        return jnp.concatenate([log_NB, log_NX], axis=1)[:, structure["tree_word_column"]]

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of inner nodes expanded."""
        return self._found_below(params, structure, hidden_ND, self._joint(params, structure, hidden_ND), k)

    def _beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> tuple[Array, Array]:
        """Return values and ids (N, K) of the k likeliest words below the `width` likeliest nodes of each depth."""
        log_NX = self._joint(params, structure, hidden_ND, width)
        return self._found_below(params, structure, hidden_ND, log_NX, k)[:2]

    def _found_below(
        self, params: Tree, structure: Tree, hidden_ND: Array, log_NX: Array, k: int
    ) -> tuple[Array, Array, Array]:
        log_NH, words = log_NX[:, structure["tree_lower_parent"]], structure["tree_lower_word"]
        values_NK, member_NK, share_N = self.lower.search(params, structure, hidden_ND, log_NH, min(k, len(words)))
        lower, upper = log_NH.shape[1], self._split.upper_groups
        ids_NK, share_N = words[member_NK], (upper + lower * share_N) / (upper + lower)
        single = len(structure["tree_single_word"])
        if not single:
            return values_NK, ids_NK, share_N
        single_NK, place_NK = top_k(log_NX[:, structure["tree_single_column"]], min(k, single))
        values_NX = jnp.concatenate([values_NK, single_NK], axis=1)
        ids_NX = jnp.concatenate([ids_NK, structure["tree_single_word"][place_NK]], axis=1)
        return *best_by_id(values_NX, ids_NX, k), share_N

    def _sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """Draw (N,) words, with one uniform number for each choice on the way down."""
        at_N = jnp.zeros_like(hidden_ND, jnp.int32, shape=hidden_ND.shape[:1])  # position among the X
        for depth in range(len(self._split.levels)):
            assert self.upper is not None
            group_N = structure["tree_upper_below"][at_N]
            member_N = self.upper.sample(params, structure, hidden_ND, group_N, uniforms_NU[:, depth])
            at_N = jnp.where(group_N >= 0, 1 + member_N, at_N)
        group_N = structure["tree_lower_below"][at_N]
        depth_N = jnp.minimum(structure["tree_depth"][at_N], uniforms_NU.shape[1] - 1)
        uniforms_N = jnp.take_along_axis(uniforms_NU, depth_N[:, None], axis=1)[:, 0]
        lower_N = structure["tree_lower_word"][self.lower.sample(params, structure, hidden_ND, group_N, uniforms_N)]
        if self.upper is None:
            return lower_N
        return jnp.where(group_N >= 0, lower_N, structure["tree_upper_word"][jnp.maximum(at_N - 1, 0)])

    def formulation(self) -> str:
        slabs = sum(len(level.shelves) for level in self.levels)
        return f"{self.form}, on {slabs} slabs of nodes with about as many children"

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        canonical: Tree = {}
        for kind in self._kinds:
            by_member = jnp.concatenate([level.to_canonical(structure, tree, kind) for level in self.levels])
            by_row = by_member[structure["tree_member_of_row"]]
            canonical[f"node_{kind}"] = by_row[: self._split.nodes]
            canonical[f"leaf_{kind}"] = by_row[self._split.nodes :]
        return canonical

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        params: Tree = {}
        for kind in self._kinds:
            by_row = jnp.concatenate([jnp.asarray(tree[f"{owner}_{kind}"]) for owner in ("node", "leaf")])
            for level in self.levels:
                params |= level.from_canonical(structure, by_row[structure[f"tree_{level.name}_row"]], kind)
        return params


LAYER = MultiwayTreeSoftmax
