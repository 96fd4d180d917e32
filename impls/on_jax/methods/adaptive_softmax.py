"""Adaptive softmax in JAX. See `impls/on_numpy/methods/adaptive_softmax.py` for the definition.

The number of tokens in a tail is known only at run time, but shapes must be static. The tokens of a tail are therefore
gathered to the front, and a loop visits only the tiles of T tokens that hold any, in training and in decoding. The
backward pass computes the scores of each tile again: keeping them would need room for every token in every tail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls import cpp
from vocabench.impls.on_jax.device import put
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.ops.arrays import Array, Tree, draw, pick, product, reversed_once, varying_as, wide
from vocabench.impls.on_jax.ops.topk import top_k
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures.cutoffs import Bands

_TRAINING_TILE = 128  # tokens; large, because each tile adds to the whole gradient of the tail's words
_DECODING_TILE = 16

Best = tuple[Array, Array]  # values and ids (N, K)
Carry = TypeVar("Carry")


def _front(chosen_N: Array, tile: int) -> tuple[Array, Array]:
    """Return the chosen rows first, then N up to a whole number of tiles, and the number of tiles that hold any row."""
    rows = chosen_N.shape[0]
    order_N = jnp.where(jnp.sort(~chosen_N), rows, jnp.argsort(~chosen_N, stable=True)).astype(jnp.int32)
    padding = jnp.full(-rows % tile, rows, jnp.int32)
    return jnp.concatenate([order_N, padding]), -(-chosen_N.sum() // tile)


def _rows(array_N: Array, rows_T: Array) -> Array:
    """Return the given rows, with zeros for row numbers beyond the last row."""
    return array_N.at[rows_T].get(mode="fill", fill_value=0)


def _scores(hidden_TD: Array, projection: Array, weight_SE: Array) -> tuple[Array, Array]:
    """Return (T, E) projected hidden vectors in the dtype of the weights, and (T, S) scores."""
    projected_TE = product(hidden_TD, projection).astype(weight_SE.dtype)
    return projected_TE, product(projected_TE, weight_SE)


@jax.custom_vjp
def tail_nll(hidden_ND: Array, projection: Array, weight_SE: Array, inside_N: Array, place_N: Array) -> Array:
    """Return the (N,) negative log-likelihoods of targets within a tail, in nats; 0 for targets outside of it.

    Args:
        hidden_ND: Hidden vectors.
        projection: Projection (E, D) of the tail.
        weight_SE: Word vectors of the tail.
        inside_N: Whether the target is in the tail.
        place_N: Place of the target in the tail.
    """
    return _forward(hidden_ND, projection, weight_SE, inside_N, place_N)[0]


def _forward(hidden_ND, projection, weight_SE, inside_N, place_N):  # type: ignore[no-untyped-def]
    tile = min(_TRAINING_TILE, hidden_ND.shape[0])
    order, tiles = _front(inside_N, tile)

    def visit(number: Array, nll_N: Array) -> Array:
        rows_T = lax.dynamic_slice_in_dim(order, number * tile, tile)
        log_probs_TS = jax.nn.log_softmax(_scores(_rows(hidden_ND, rows_T), projection, weight_SE)[1], axis=1)
        return nll_N.at[rows_T].set(-pick(log_probs_TS, _rows(place_N, rows_T)), mode="drop")

    zeros_N = varying_as(hidden_ND, jnp.zeros(hidden_ND.shape[0], wide(weight_SE.dtype)))
    nll_N = lax.fori_loop(0, tiles, visit, zeros_N)
    return nll_N, (hidden_ND, projection, weight_SE, place_N, order, tiles)


def _backward(kept, dnll_N):  # type: ignore[no-untyped-def]
    hidden_ND, projection, weight_SE, place_N, order, tiles = kept
    tile = min(_TRAINING_TILE, hidden_ND.shape[0])
    kind, narrow = wide(weight_SE.dtype), weight_SE.dtype

    def visit(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        dhidden_ND, dprojection, dweight_SE = carry
        rows_T = lax.dynamic_slice_in_dim(order, number * tile, tile)
        hidden_TD = _rows(hidden_ND, rows_T).astype(narrow)
        projected_TE, scores_TS = _scores(hidden_TD, projection, weight_SE)
        is_target_TS = jnp.arange(len(weight_SE)) == _rows(place_N, rows_T)[:, None]
        # Unused rows have a gradient of zero, because `_rows` fills `dnll_N` with zeros.
        dnll_T1 = _rows(dnll_N, rows_T)[:, None]
        dscores_TS = ((jax.nn.softmax(scores_TS, axis=1) - is_target_TS) * dnll_T1).astype(narrow)
        dprojected_TE = (dscores_TS @ weight_SE).astype(narrow)
        dweight_SE += jnp.matmul(dscores_TS.T, projected_TE, preferred_element_type=kind)
        dprojection += jnp.matmul(dprojected_TE.T, hidden_TD, preferred_element_type=kind)
        dhidden_TD = jnp.matmul(dprojected_TE, projection, preferred_element_type=kind)
        return dhidden_ND.at[rows_T].set(dhidden_TD, mode="drop"), dprojection, dweight_SE

    zeros = (jnp.zeros(hidden_ND.shape, kind), jnp.zeros(projection.shape, kind), jnp.zeros(weight_SE.shape, kind))
    dhidden_ND, dprojection, dweight_SE = lax.fori_loop(0, tiles, visit, varying_as(hidden_ND, zeros))
    gradients = dhidden_ND.astype(hidden_ND.dtype), dprojection.astype(narrow), dweight_SE.astype(narrow)
    return *reversed_once(gradients), None, None


tail_nll.defvjp(_forward, _backward)


class AdaptiveSoftmax(OutputLayer):
    """log P(w | h) = log softmax(H h)[w or its tail i] + log softmax(W_i P_i h)[w] for w in tail i (Grave et al. 2017).

    Parameters: `head_weight` (head + tails, D); for each tail `tail{i}_projection` (D / 4^(i + 1), D) and
    `tail{i}_weight` (words, D / 4^(i + 1)). Words are ordered by id within the head and each tail.

    Structure: `band` (V,) of each word, 0 for the head and i + 1 for tail i; `place` (V,) of each word in its band;
    `words{b}`, the ids of band b.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self._bands = Bands.of(spec.structure["order"], spec.structure["cutoffs"])
        self.head, self.tails = self._bands.head, self._bands.tails

    def placement(self) -> Tree:
        words = {f"words{number}": put(ids, jnp.int32) for number, ids in enumerate(self._bands.words)}
        places = {"band": put(self._bands.band, jnp.int32), "place": put(self._bands.place, jnp.int32)}
        return places | words

    def formulation(self) -> str:
        return cpp.formulation_of_products(self.head + self.tails) if cpp_kernels.known(self.spec.dtype) else ""

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        band_N, place_N = structure["band"][targets_N], structure["place"][targets_N]
        entry_N = jnp.where(band_N == 0, place_N, self.head - 1 + band_N)
        scores = cpp_kernels.linear(hidden_ND, params["head_weight"])
        nll_N = jax.nn.logsumexp(scores, axis=1) - pick(scores, entry_N)
        for tail in range(self.tails):
            nll_N += tail_nll(hidden_ND, *self._tail(params, tail), band_N == tail + 1, place_N)
        return nll_N

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        head = self._head_log_probs(params, hidden_ND)
        parts = [head[:, : self.head]]
        for tail in range(self.tails):
            parts.append(self._in_tail(params, hidden_ND, tail) + head[:, self.head + tail, None])
        words = jnp.concatenate([structure[f"words{band}"] for band in range(self.tails + 1)])
        return jnp.concatenate(parts, axis=1)[:, jnp.argsort(words)]

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of words scored.

        A tail is expanded only in rows where it is at least as likely as the k-th best word so far, because none of its
        words is likelier than the tail.
        """
        return self._expanded(
            params, structure, hidden_ND, k, lambda log_tail_NT, tail, least_N: log_tail_NT[:, tail] >= least_N
        )

    def _beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> tuple[Array, Array]:
        """Return values and ids (N, K) of the k likeliest words of the head and the `width` likeliest tails."""
        if width >= self.tails:
            return self._search(params, structure, hidden_ND, k)[:2]

        def followed(log_tail_NT: Array, tail: int, least_N: Array) -> Array:
            return (top_k(log_tail_NT, width)[1] == tail).any(axis=1)

        return self._expanded(params, structure, hidden_ND, k, followed)[:2]

    def _expanded(
        self, params: Tree, structure: Tree, hidden_ND: Array, k: int, expands: Callable[[Array, int, Array], Array]
    ) -> tuple[Array, Array, Array]:
        """Return values and ids (N, K) of the best words of the head and of expanded tails, and the (N,) share scored.

        Args:
            params: Parameters.
            structure: Structure.
            hidden_ND: Hidden vectors.
            k: Number of words.
            expands: Function from log P of the tails (N, tails), the number of a tail, and the k-th best value so far
                (N,) to the rows (N,) in which the tail is expanded.
        """
        head = self._head_log_probs(params, hidden_ND)
        values, place = top_k(head[:, : self.head], min(k, self.head))
        missing = ((0, 0), (0, k - values.shape[1]))
        values_NK = jnp.pad(values, missing, constant_values=-jnp.inf)
        ids_NK = jnp.pad(structure["words0"][place], missing, constant_values=self.spec.vocab)
        scored_N = jnp.full(hidden_ND.shape[0], self.head, jnp.float32)
        for tail in range(self.tails):
            words_S = structure[f"words{tail + 1}"]
            log_tail_N = head[:, self.head + tail]
            expanded_N = expands(head[:, self.head :], tail, values_NK[:, -1])
            scored_N += jnp.where(expanded_N, len(words_S), 0)

            expand = partial(self._with_tail, params, words_S, tail, hidden_ND, log_tail_N)
            values_NK, ids_NK = _for_rows(expanded_N, expand, (values_NK, ids_NK))
        return values_NK, ids_NK, scored_N / self.spec.vocab

    def _with_tail(
        self, params: Tree, words_S: Array, tail: int, hidden_ND: Array, log_tail_N: Array, rows_T: Array, best: Best
    ) -> Best:
        """Return the best values and ids (N, K) so far, merged with those of a tail in the given rows."""
        k = best[0].shape[1]
        joint_TS = self._in_tail(params, _rows(hidden_ND, rows_T), tail) + _rows(log_tail_N, rows_T)[:, None]
        values, place = top_k(joint_TS, min(k, len(words_S)))
        values_TX = jnp.concatenate([_rows(best[0], rows_T), values], axis=1)
        ids_TX = jnp.concatenate([_rows(best[1], rows_T), words_S[place]], axis=1)
        falling_TX, ids_TX = lax.sort((-values_TX, ids_TX), dimension=1, num_keys=2)
        values_NK = best[0].at[rows_T].set(-falling_TX[:, :k], mode="drop")
        return values_NK, best[1].at[rows_T].set(ids_TX[:, :k], mode="drop")

    def _sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """Draw (N,) words.

        The first uniform number chooses a word of the head or a tail, the second one a word of the tail.
        """
        entry_N = draw(jnp.exp(self._head_log_probs(params, hidden_ND)), uniforms_NU[:, 0])
        word_N = structure["words0"][jnp.minimum(entry_N, self.head - 1)]
        for tail in range(self.tails):
            words_S = structure[f"words{tail + 1}"]

            expand = partial(self._drawn_of_tail, params, words_S, tail, hidden_ND, uniforms_NU[:, 1])
            word_N = _for_rows(entry_N == self.head + tail, expand, word_N)
        return word_N

    def _drawn_of_tail(
        self, params: Tree, words_S: Array, tail: int, hidden_ND: Array, uniforms_N: Array, rows_T: Array, word_N: Array
    ) -> Array:
        """Return the words (N,) so far, with a drawn word of the tail in the given rows."""
        drawn_T = draw(jnp.exp(self._in_tail(params, _rows(hidden_ND, rows_T), tail)), _rows(uniforms_N, rows_T))
        return word_N.at[rows_T].set(words_S[drawn_T], mode="drop")

    def _head_log_probs(self, params: Tree, hidden_ND: Array) -> Array:
        """Return (N, head + tails) log P of the head's words and of each tail."""
        return jax.nn.log_softmax(product(hidden_ND, params["head_weight"]), axis=1)

    @staticmethod
    def _tail(params: Tree, tail: int) -> tuple[Array, Array]:
        return params[f"tail{tail}_projection"], params[f"tail{tail}_weight"]

    def _in_tail(self, params: Tree, hidden_TD: Array, tail: int) -> Array:
        """Return (T, S) log P(w | tail, h)."""
        return jax.nn.log_softmax(_scores(hidden_TD, *self._tail(params, tail))[1], axis=1)

    # Words are ordered by id in the layer, and by falling count in the canonical form.
    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        return {name: self._moved(name, value, back=True) for name, value in tree.items()}

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        return {name: self._moved(name, value, back=False) for name, value in tree.items()}

    def _moved(self, name: str, value: Array, *, back: bool) -> Array:
        rows = self._bands.rows(name)
        return value if rows is None else value[rows.argsort() if back else rows]


def _for_rows(chosen_N: Array, expand: Callable[[Array, Carry], Carry], start: Carry) -> Carry:
    """Fold `expand(rows_T, carry)` over the tiles of the chosen rows, from `start`."""
    tile = min(_DECODING_TILE, chosen_N.shape[0])
    order, tiles = _front(chosen_N, tile)

    def visit(number: Array, carry: Carry) -> Carry:
        return expand(lax.dynamic_slice_in_dim(order, number * tile, tile), carry)

    return lax.fori_loop(0, tiles, visit, varying_as(chosen_N, start))


LAYER = AdaptiveSoftmax
