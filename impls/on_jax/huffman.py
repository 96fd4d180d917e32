"""Huffman hierarchical softmax in JAX. See `impls/on_numpy/huffman.py` for the definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from impls.on_jax import _descend
from impls.on_jax._best import settle, top_k
from impls.on_jax._layer import Array, OutputLayer, Tree, product, wide
from impls.spec import LayerSpec
from impls.structures import huffman

# The inner nodes nearest the root, which most paths share, are scored for all tokens by one dense product.
_SHARED_NODES = 256
# The rest of the paths are (token, node) pairs, taken so many at a time that their vectors stay in cache.
_PAIRS_AT_ONCE = 256
# Decoding: how many subtrees a row follows at a time; first a few, then, for the rows that these do not settle, many.
_BEAMS = (16, 64)


def _cold_pairs(index_NL: Array, cold_NL: Array) -> tuple[Array, Array, Array]:
    """(token, node, place in the path) of the pairs off the shared nodes, moved to the front of (N L,) arrays, as one
    (P, 3) array padded with zeros, and how many there are."""
    tokens, depth = index_NL.shape
    flat = cold_NL.ravel()
    room = -(-tokens * depth // _PAIRS_AT_ONCE) * _PAIRS_AT_ONCE
    place = jnp.where(flat, jnp.cumsum(flat) - 1, room)
    which = jnp.zeros(room, jnp.int32).at[place].set(jnp.arange(tokens * depth, dtype=jnp.int32), mode="drop")
    return which // depth, jnp.zeros(room, jnp.int32).at[:].set(index_NL.ravel()[which]), flat.sum()


@jax.custom_vjp
def _path_nll(hidden_ND: Array, node_weight: Array, index_NL: Array, sign_NL: Array) -> Array:
    """(N,) sum over each token's path of -log sigma(sign x r.h), with the gradient written out."""
    return _forward(hidden_ND, node_weight, index_NL, sign_NL)[0]


def _forward(hidden_ND, node_weight, index_NL, sign_NL):  # type: ignore[no-untyped-def]
    first = max(
        0, node_weight.shape[0] - _SHARED_NODES
    )  # nodes are in order of creation: the last are nearest the root
    tokens, depth = index_NL.shape
    kind = wide(node_weight.dtype)
    hidden_cast_ND = hidden_ND.astype(node_weight.dtype)
    on_path_NL, near_NL = sign_NL != 0, index_NL >= first
    near_scores_NH = product(hidden_cast_ND, node_weight[first:])
    near_place_NL = jnp.maximum(index_NL - first, 0)
    near_scores_NL = jnp.take_along_axis(near_scores_NH, near_place_NL, axis=1)

    cold_NL = on_path_NL & ~near_NL
    token_P, node_P, count = _cold_pairs(index_NL, cold_NL)
    steps = (count + _PAIRS_AT_ONCE - 1) // _PAIRS_AT_ONCE

    def score(step: Array, scores_P: Array) -> Array:
        start = step * _PAIRS_AT_ONCE
        rows, nodes = (lax.dynamic_slice_in_dim(a, start, _PAIRS_AT_ONCE) for a in (token_P, node_P))
        products = node_weight[nodes].astype(kind) * hidden_cast_ND[rows].astype(kind)
        return lax.dynamic_update_slice_in_dim(scores_P, products.sum(axis=1), start, 0)

    cold_scores_P = lax.fori_loop(0, steps, score, jnp.zeros(token_P.shape, kind))
    place_NL = jnp.where(cold_NL, jnp.cumsum(cold_NL.ravel()).reshape(tokens, depth) - 1, 0)
    scores_NL = jnp.where(near_NL, near_scores_NL, cold_scores_P[place_NL])

    signs_NL = sign_NL.astype(kind)
    turns_NL = signs_NL * scores_NL
    nll_N = -jnp.where(on_path_NL, jax.nn.log_sigmoid(turns_NL), 0).sum(axis=1)
    # d/dx of -log sigma(s x) is -s sigma(-s x); the sign is 0 beyond the path's end.
    dscores_NL = -signs_NL * jax.nn.sigmoid(-turns_NL)
    kept = (hidden_ND, node_weight, dscores_NL, on_path_NL & near_NL, near_place_NL, cold_NL, token_P, node_P, steps)
    return nll_N, kept


def _backward(kept, dnll_N):  # type: ignore[no-untyped-def]
    hidden_ND, node_weight, dscores_NL, near_NL, near_place_NL, cold_NL, token_P, node_P, steps = kept
    first = max(0, node_weight.shape[0] - _SHARED_NODES)
    tokens, kind = len(hidden_ND), wide(node_weight.dtype)
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
    place = jnp.where(flat, jnp.cumsum(flat) - 1, len(token_P))
    dscores_P = jnp.zeros(token_P.shape, kind).at[place].set(dscores_NL.ravel(), mode="drop")

    def add(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        dhidden_ND, dnode = carry
        start = step * _PAIRS_AT_ONCE
        rows, nodes, ds = (lax.dynamic_slice_in_dim(a, start, _PAIRS_AT_ONCE) for a in (token_P, node_P, dscores_P))
        # Entries beyond the last pair have a gradient of zero.
        dhidden_ND = dhidden_ND.at[rows].add(ds[:, None] * node_weight[nodes].astype(kind))
        return dhidden_ND, dnode.at[nodes].add(ds[:, None] * hidden_cast_ND[rows].astype(kind))

    dhidden_ND, dnode = lax.fori_loop(0, steps, add, (dhidden_ND, dnode))
    return dhidden_ND.astype(hidden_ND.dtype), dnode.astype(node_weight.dtype), None, None


_path_nll.defvjp(_forward, _backward)


class HuffmanSoftmax(OutputLayer):
    """log P(w | h) = sum over the inner nodes of w's path of log sigma(sign . r.h) (Mikolov et al. 2013; Liu et al.
    2022).

    Parameters: `node_weight` (V-1, D), inner nodes in order of creation. Structure: `index`, `sign` (V, L) of each
    word's path; `children`, `exits` and `turns` as in `_descend.Tree`.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self._children = spec.structure["children"].astype(np.int32)
        self._levels = huffman.levels(spec.structure["children"])

    def structure(self) -> Tree:
        near = huffman.near_root(self.spec.structure["children"], _descend.NEAR_NODES)
        exits = np.concatenate([near.words, near.subtrees + self.spec.vocab])
        whole = {name: self.spec.structure[name] for name in ("index", "sign", "children")} | {"exits": exits}
        arrays = {name: jnp.asarray(array, dtype=jnp.int32) for name, array in whole.items()}
        return arrays | {"turns": jnp.asarray(near.turns)}

    def nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        return _path_nll(hidden_ND, params["node_weight"], structure["index"][targets_N], structure["sign"][targets_N])

    def log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        # Level by level, nodes as rows so that a level is read and written in whole rows: O(V D + V) a token.
        node_weight = params["node_weight"]
        hidden_cast_ND = hidden_ND.astype(node_weight.dtype)
        scores_MN = jnp.matmul(node_weight, hidden_cast_ND.T, preferred_element_type=wide(node_weight.dtype))
        vocab = self.spec.vocab
        prefix = jnp.zeros((2 * vocab - 1, len(hidden_ND)), scores_MN.dtype)  # words, then inner nodes
        for nodes in self._levels:
            here, scores = prefix[vocab + nodes], scores_MN[nodes]
            prefix = prefix.at[self._children[nodes, 0]].set(here + jax.nn.log_sigmoid(scores), unique_indices=True)
            prefix = prefix.at[self._children[nodes, 1]].set(here + jax.nn.log_sigmoid(-scores), unique_indices=True)
        return prefix[:vocab].T

    def search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        """Values and ids (N, K) of the k likeliest words by bounds, and (N,) the share of the inner nodes scored."""
        nodes = self.spec.vocab - 1
        tree, cast_ND = self._tree(params, structure), hidden_ND.astype(params["node_weight"].dtype)

        def solve(rows_R: Array, beams: tuple[int, ...]) -> tuple[Array, Array, Array]:
            hidden_RD = cast_ND[rows_R]
            if not beams:
                values_RK, ids_RK = top_k(self.log_probs(params, structure, hidden_RD), k)
                return values_RK, ids_RK.astype(jnp.int32), jnp.full(len(rows_R), nodes, jnp.int32)
            found = _descend.follow(hidden_RD, tree, k, beams[0])
            first = found.values_NJ[:, :k], found.ids_NJ[:, :k], found.nodes_N
            return settle(first, found.open(k), lambda some: solve(rows_R[some], beams[1:]))

        values_NK, ids_NK, nodes_N = solve(jnp.arange(len(hidden_ND)), _BEAMS)
        return values_NK, ids_NK, nodes_N.astype(jnp.float32) / nodes

    def beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> tuple[Array, Array]:
        """Values and ids (N, K) of k likely words, keeping the `width` likeliest prefixes of each level."""
        cast_ND = hidden_ND.astype(params["node_weight"].dtype)
        return _descend.beam(cast_ND, self._tree(params, structure), k, width)

    def sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """(N,) words, one number for each turn."""
        cast_ND = hidden_ND.astype(params["node_weight"].dtype)
        return _descend.sample(cast_ND, self._tree(params, structure), uniforms_NU)

    def _tree(self, params: Tree, structure: Tree) -> _descend.Tree:
        return _descend.Tree(params["node_weight"], *(structure[name] for name in ("children", "exits", "turns")))

    def formulation(self) -> str:
        shared = min(_SHARED_NODES, self.spec.vocab - 1)
        return f"dense product of the {shared} nodes nearest the root, pairs for the rest"


LAYER = HuffmanSoftmax
