"""Decoding of a binary tree without the whole vocabulary: exact top-k, beam and sample.

No word is likelier than the turns that lead to its subtree. Top-k scores the nodes nearest the root with one dense
product. Below them each row follows its likeliest subtrees, until none is as likely as the k-th best word so far. A row
is solved again with more subtrees at a time if it had to drop a subtree that is as likely as that word, or if its best
words contain ties.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls.on_jax.ops.arrays import Array, product, varying_as, wide
from vocabench.impls.on_jax.ops.topk import best_by_id, top_k

NEAR_NODES = 512


class Tree(NamedTuple):
    """A tree and its vectors.

    Attributes:
        node_weight: (V-1, D) vectors of the inner nodes, in order of creation.
        children: (V-1, 2) children of each inner node: a word by its id, inner node j as V + j.
        exits_E: The words and inner nodes directly below the nodes nearest the root, numbered as in `children`.
        turns_2ME: The turns that lead to each exit, as in `vocabench.impls.structures.huffman.NearRoot`.
    """

    node_weight: Array
    children: Array
    exits_E: Array
    turns_2ME: Array

    @property
    def vocab(self) -> int:
        """The number of words."""
        return len(self.node_weight) + 1

    def scores(self, hidden_ND: Array, node_NB: Array) -> Array:
        """Return (N, B) r.h of B inner nodes of each row."""
        return products(self.node_weight[node_NB], hidden_ND)


class Descended(Protocol):
    """What `sample` needs of a tree, with children and scores as in `Tree`."""

    @property
    def children(self) -> Array: ...

    @property
    def vocab(self) -> int: ...

    def scores(self, hidden_ND: Array, node_NB: Array) -> Array: ...


def products(node_NBD: Array, hidden_ND: Array) -> Array:
    """Return (N, B) products of the vectors of nodes of each row with its hidden vector, at least in float32."""
    return jnp.einsum("nbd,nd->nb", node_NBD, hidden_ND, preferred_element_type=wide(node_NBD.dtype))


class Followed(NamedTuple):
    """The result of following `beam` subtrees of each row at a time.

    Attributes:
        values_NJ: Log-probabilities of the k + 1 best words that were reached.
        ids_NJ: Ids of these words.
        lost_N: Log-probability of the likeliest subtree that was dropped.
        nodes_N: Number of nodes that were scored.
    """

    values_NJ: Array
    ids_NJ: Array
    lost_N: Array
    nodes_N: Array

    def open(self, k: int) -> Array:
        """Return (N,) True where the first k words may not be the best, or ties may be in the wrong order."""
        tied_N = (self.values_NJ[:, 1:] == self.values_NJ[:, :-1]).any(axis=1)
        return tied_N | (self.lost_N >= self.values_NJ[:, k - 1])


def follow(hidden_ND: Array, tree: Tree, k: int, beam: int) -> Followed:
    """Search for the best words below the likeliest subtrees, and follow at most `beam` of these at a time."""
    rows, vocab, near = hidden_ND.shape[0], tree.vocab, len(tree.turns_2ME) // 2
    scores_NM = product(hidden_ND, tree.node_weight[vocab - 1 - near :])
    turns_N2M = jnp.concatenate([jax.nn.log_sigmoid(scores_NM), jax.nn.log_sigmoid(-scores_NM)], axis=1)
    exits_NE = turns_N2M @ tree.turns_2ME.astype(turns_N2M.dtype)

    def split(prefix: Array, child: Array, values_NJ: Array, ids_NJ: Array) -> tuple[Array, ...]:
        """Return the best words so far, the likeliest subtrees among these children, and the next likeliest one."""
        is_word = child < vocab
        values = jnp.concatenate([values_NJ, jnp.where(is_word, prefix, -jnp.inf)], axis=1)
        values_NJ, place = top_k(values, k + 1)
        ids_NJ = jnp.take_along_axis(jnp.concatenate([ids_NJ, child], axis=1), place, axis=1)
        inner_NB, at = top_k(jnp.where(is_word, -jnp.inf, prefix), beam + 1)
        node_NB = jnp.maximum(jnp.take_along_axis(child, at, axis=1) - vocab, 0)
        return values_NJ, ids_NJ, inner_NB[:, :-1], node_NB[:, :-1], inner_NB[:, -1]

    def reaching(values_NJ: Array, prefix_NB: Array) -> Array:
        return (prefix_NB >= values_NJ[:, k - 1 : k]) & (prefix_NB > -jnp.inf)

    def going(state: tuple[Array, ...]) -> Array:
        values_NJ, _, prefix_NB, *_ = state
        return reaching(values_NJ, prefix_NB).any()

    def descend(state: tuple[Array, ...]) -> tuple[Array, ...]:
        values_NJ, ids_NJ, prefix_NB, node_NB, lost_N, nodes_N = state
        nodes_N += reaching(values_NJ, prefix_NB).sum(axis=1, dtype=jnp.int32)
        scores_NB = tree.scores(hidden_ND, node_NB)
        sides = [prefix_NB + jax.nn.log_sigmoid(signed_NB) for signed_NB in (scores_NB, -scores_NB)]
        below = tree.children[node_NB].reshape(rows, 2 * beam)
        prefix = jnp.stack(sides, axis=2).reshape(rows, 2 * beam)
        values_NJ, ids_NJ, prefix_NB, node_NB, lower_N = split(prefix, below, values_NJ, ids_NJ)
        return values_NJ, ids_NJ, prefix_NB, node_NB, jnp.maximum(lost_N, lower_N), nodes_N

    # Padding makes room for k + 1 words and `beam` + 1 subtrees, even if there are fewer exits.
    exits_NE = jnp.pad(exits_NE, ((0, 0), (0, beam + 1)), constant_values=-jnp.inf)
    child_NE = jnp.broadcast_to(jnp.pad(tree.exits_E, (0, beam + 1)), exits_NE.shape)
    blank = jnp.full((rows, k + 1), -jnp.inf, exits_NE.dtype), jnp.zeros((rows, k + 1), tree.exits_E.dtype)
    start = *split(exits_NE, child_NE, *blank), jnp.full(rows, near, jnp.int32)
    values_NJ, ids_NJ, _, _, lost_N, nodes_N = lax.while_loop(going, descend, varying_as(hidden_ND, start))
    return Followed(values_NJ, ids_NJ, lost_N, nodes_N)


def beam(hidden_ND: Array, tree: Tree, k: int, width: int) -> tuple[Array, Array]:
    """Return values and ids (N, K) of k likely words, keeping the `width` likeliest prefixes of each level."""
    rows, vocab, kind = hidden_ND.shape[0], tree.vocab, wide(tree.node_weight.dtype)

    def is_inner(state: tuple[Array, Array]) -> Array:
        value_NW, node_NW = state
        return (node_NW >= vocab) & (value_NW > -jnp.inf)

    def descend(state: tuple[Array, Array]) -> tuple[Array, Array]:
        value_NW, node_NW = state
        inner_NW, at_NW = is_inner(state), jnp.maximum(node_NW - vocab, 0)
        score_NW = tree.scores(hidden_ND, at_NW)
        sides = [
            jnp.where(inner_NW, value_NW + jax.nn.log_sigmoid(signed_NW), -jnp.inf)
            for signed_NW in (score_NW, -score_NW)
        ]
        values = jnp.concatenate([jnp.where(inner_NW, -jnp.inf, value_NW), *sides], axis=1)
        nodes = jnp.concatenate([node_NW, tree.children[at_NW, 0], tree.children[at_NW, 1]], axis=1)
        value_NW, place_NW = top_k(values, width)
        return value_NW, jnp.take_along_axis(nodes, place_NW, axis=1)

    value_NW = jnp.full((rows, width), -jnp.inf, kind).at[:, 0].set(0)
    root_NW = jnp.full((rows, width), 2 * vocab - 2, tree.children.dtype)
    start = varying_as(hidden_ND, (value_NW, root_NW))
    value_NW, node_NW = lax.while_loop(lambda state: is_inner(state).any(), descend, start)
    return best_by_id(value_NW, node_NW, k)


def path_beam(hidden_ND: Array, tree: Tree, node_BJ: Array, exit_BP: Array, k: int, width: int) -> tuple[Array, Array]:
    """Like `beam`, with a selection after each block of the tree.

    Args:
        hidden_ND, tree, k, width: As for `beam`.
        node_BJ, exit_BP: The blocks, as in `vocabench.impls.structures.path_blocks.PathBlocks`.
    """
    rows, vocab, kind = hidden_ND.shape[0], tree.vocab, wide(tree.node_weight.dtype)

    def is_open(state: tuple[Array, Array]) -> Array:
        value_NW, at_NW = state
        return (at_NW >= vocab) & (value_NW > -jnp.inf)

    def descend(state: tuple[Array, Array]) -> tuple[Array, Array]:
        value_NW, at_NW = state
        open_NW = is_open(state)
        block_NW = jnp.where(open_NW, at_NW - vocab, 0)
        node_NWJ = node_BJ[block_NW]
        score_NWJ = tree.scores(hidden_ND, jnp.maximum(node_NWJ, 0).reshape(rows, -1)).reshape(node_NWJ.shape)
        left_NWJ = jnp.where(node_NWJ < 0, 0, jax.nn.log_sigmoid(score_NWJ))
        right_NWJ = jnp.where(node_NWJ < 0, -jnp.inf, jax.nn.log_sigmoid(-score_NWJ))
        path_NWP, first = jnp.where(open_NW, value_NW, -jnp.inf)[:, :, None], 0
        while (end := 2 * first + 1) <= node_BJ.shape[1]:  # one level after the other
            sides = [path_NWP + turn_NWJ[:, :, first:end] for turn_NWJ in (left_NWJ, right_NWJ)]
            path_NWP, first = jnp.stack(sides, axis=3).reshape(rows, width, -1), end
        values = jnp.concatenate([jnp.where(open_NW, -jnp.inf, value_NW), path_NWP.reshape(rows, -1)], axis=1)
        exits = jnp.concatenate([at_NW, exit_BP[block_NW].reshape(rows, -1)], axis=1)
        value_NW, place_NW = top_k(values, width)
        return value_NW, jnp.take_along_axis(exits, place_NW, axis=1)

    value_NW = jnp.full((rows, width), -jnp.inf, kind).at[:, 0].set(0)
    start = varying_as(hidden_ND, (value_NW, jnp.full((rows, width), vocab, exit_BP.dtype)))  # block 0
    value_NW, at_NW = lax.while_loop(lambda state: is_open(state).any(), descend, start)
    return best_by_id(value_NW, at_NW, k)


def sample(hidden_ND: Array, tree: Descended, uniforms_NL: Array) -> Array:
    """Return (N,) words: from the root down, turn left if the uniform number is below sigma(r.h)."""
    vocab = tree.vocab

    def descend(turn: Array, node_N: Array) -> Array:
        at_N = jnp.maximum(node_N - vocab, 0)
        score_N = tree.scores(hidden_ND, at_N[:, None])[:, 0]
        right_N = lax.dynamic_index_in_dim(uniforms_NL, turn, axis=1, keepdims=False) >= jax.nn.sigmoid(score_N)
        return jnp.where(node_N >= vocab, tree.children[at_N, right_N.astype(jnp.int32)], node_N)

    root_N = jnp.full(hidden_ND.shape[0], 2 * vocab - 2, tree.children.dtype)
    return lax.fori_loop(0, uniforms_NL.shape[1], descend, varying_as(hidden_ND, root_N))
