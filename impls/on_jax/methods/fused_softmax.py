"""Full softmax without an (N, V) array of logits in JAX. See `impls/on_numpy/methods/fused_softmax.py`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_jax.methods.full_softmax import FullSoftmax
from vocabench.impls.on_jax.ops import cpp_kernels
from vocabench.impls.on_jax.ops.arrays import Array, Tree, column_sums, draw, is_known, product, varying_as, wide
from vocabench.impls.on_jax.ops.topk import top_k
from vocabench.impls.on_jax.pallas import support
from vocabench.impls.on_jax.pallas.support import KERNELS
from vocabench.impls.on_jax.sampling import drawn_part
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import blocks

_WORDS = 2**12  # words whose gradients are updated at a time, so that they stay in the cache

_BY_KERNELS = tuple(
    replace(blocks.by_kernels(form, KERNELS), dtypes=KERNELS.dtypes, max_dim=KERNELS.max_dim)
    for form in blocks.FLOAT32_GPU_FORMS
)


class _Blocks(NamedTuple):
    """The vocabulary in `count` blocks of `width` words.

    The last block begins early enough to be whole. The words that it shares with the block before belong to that one.
    """

    width: int
    count: int

    @classmethod
    def of(cls, tokens: int, vocab: int, form: Form) -> _Blocks:
        """Return the blocks for a batch of `tokens`."""
        width = blocks.width(tokens, vocab, form)
        return cls(width, -(-vocab // width))

    def start(self, block: Array, vocab: int) -> Array:
        """Return the first word of a block."""
        return jnp.minimum(block * self.width, vocab - self.width)

    def own(self, block: Array, vocab: int) -> Array:
        """Return (B,) which words of the block do not belong to the block before."""
        return self.start(block, vocab) + jnp.arange(self.width) >= block * self.width


def _at(array_V: Array, start: Array, width: int) -> Array:
    return lax.dynamic_slice_in_dim(array_V, start, width)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def fused_sums(hidden_ND: Array, weight_VD: Array, bias_V: Array, targets_N: Array, form: Form) -> tuple[Array, Array]:
    """Return the (N,) log-sum-exp of the logits and the (N,) logits of the targets, by blocks of words.

    Args:
        hidden_ND: Hidden vectors.
        weight_VD: Word vectors.
        bias_V: Word biases.
        targets_N: Word ids; -1 where there is no target, whose logit counts as 0.
        form: One of `blocks.WORD_FORMS`.
    """
    return _forward(hidden_ND, weight_VD, bias_V, targets_N, form)[0]


def fused_nll(hidden_ND: Array, weight_VD: Array, bias_V: Array, targets_N: Array, form: Form) -> Array:
    """Return the (N,) negative log-likelihoods in nats; arguments as in `fused_sums`."""
    sums: Any = fused_sums(hidden_ND, weight_VD, bias_V, targets_N, form)
    return sums[0] - sums[1]


def _forward(hidden_ND, weight_VD, bias_V, targets_N, form):  # type: ignore[no-untyped-def]
    (tokens, _), vocab, kind = hidden_ND.shape, len(weight_VD), wide(weight_VD.dtype)
    cut = _Blocks.of(tokens, vocab, form)

    def visit(block: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest_N1, sum_N1, target_N1 = carry
        start = cut.start(block, vocab)
        logits_NB = product(hidden_ND, _at(weight_VD, start, cut.width)) + _at(bias_V, start, cut.width)
        logits_NB = jnp.where(cut.own(block, vocab), logits_NB, -jnp.inf)
        is_target_NB = start + jnp.arange(cut.width) == targets_N[:, None]
        target_N1 += jnp.where(is_target_NB & cut.own(block, vocab), logits_NB, 0).sum(axis=1, keepdims=True)
        above_N1 = jnp.maximum(highest_N1, logits_NB.max(axis=1, keepdims=True))
        sum_N1 = sum_N1 * jnp.exp(highest_N1 - above_N1) + jnp.exp(logits_NB - above_N1).sum(axis=1, keepdims=True)
        return above_N1, sum_N1, target_N1

    start = (jnp.full((tokens, 1), -jnp.inf, kind), jnp.zeros((tokens, 1), kind), jnp.zeros((tokens, 1), kind))
    highest_N1, sum_N1, target_N1 = lax.fori_loop(0, cut.count, visit, varying_as(hidden_ND, start))
    log_sum_N1 = highest_N1 + jnp.log(sum_N1)
    return (log_sum_N1[:, 0], target_N1[:, 0]), (hidden_ND, weight_VD, bias_V, targets_N, log_sum_N1)


def _backward(form, kept, dsums):  # type: ignore[no-untyped-def]
    hidden_ND, weight_VD, bias_V, targets_N, log_sum_N1 = kept
    dlog_sum_N1, dtarget_N1 = (dsum_N[:, None] for dsum_N in dsums)
    vocab, kind = len(weight_VD), wide(weight_VD.dtype)
    cut = _Blocks.of(hidden_ND.shape[0], vocab, form)
    cast_ND = hidden_ND.astype(weight_VD.dtype)

    def visit(block: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        dhidden_ND, dweight_VD, dbias_V = carry
        start = cut.start(block, vocab)
        words_BD = _at(weight_VD, start, cut.width)
        logits_NB = product(hidden_ND, words_BD) + _at(bias_V, start, cut.width)
        is_target_NB = start + jnp.arange(cut.width) == targets_N[:, None]
        dlogits_NB = jnp.exp(logits_NB - log_sum_N1) * dlog_sum_N1 + is_target_NB * dtarget_N1
        # Words of the block before get the same gradient again, but must not be added to `dhidden_ND` twice.
        dbias_V = lax.dynamic_update_slice_in_dim(dbias_V, column_sums(dlogits_NB).astype(bias_V.dtype), start, 0)
        dwords_BD = jnp.matmul(dlogits_NB.astype(weight_VD.dtype).T, cast_ND, preferred_element_type=kind)
        dweight_VD = lax.dynamic_update_slice_in_dim(dweight_VD, dwords_BD.astype(weight_VD.dtype), start, 0)
        own_NB = jnp.where(cut.own(block, vocab), dlogits_NB, 0).astype(weight_VD.dtype)
        return dhidden_ND + jnp.matmul(own_NB, words_BD, preferred_element_type=kind), dweight_VD, dbias_V

    start = (jnp.zeros(hidden_ND.shape, kind), jnp.zeros_like(weight_VD), jnp.zeros_like(bias_V))
    dhidden_ND, dweight_VD, dbias_V = lax.fori_loop(0, cut.count, visit, varying_as(hidden_ND, start))
    return dhidden_ND.astype(hidden_ND.dtype), dweight_VD, dbias_V, None


fused_sums.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def fused_total(
    hidden_ND: Array, weight_VD: Array, bias_V: Array, targets_N: Array, share_N: Array, form: Form
) -> Array:
    """Return the sum of the negative log-likelihoods, each times its share. `form` has blocks of tokens."""
    nll_N: Array = fused_nll(hidden_ND, weight_VD, bias_V, targets_N, form)
    return nll_N @ share_N


def _differentiated(hidden_ND, weight_VD, bias_V, targets_N, share_N, form):  # type: ignore[no-untyped-def]
    """Return `fused_total` and its gradients with respect to the first three arguments, by blocks of tokens."""
    tokens, vocab = hidden_ND.shape[0], len(weight_VD)
    if form == CPP:
        most = blocks.most_tokens(vocab, form)
        return cpp_kernels.fused_softmax(hidden_ND, weight_VD, bias_V, targets_N.astype(jnp.int32), share_N, most)
    width = blocks.of_tokens(tokens, vocab, form)
    words = _Blocks(min(vocab, _WORDS), -(-vocab // _WORDS))

    def visit(block: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        total, dhidden_ND, dweight_VD, dbias_V = carry
        start = jnp.minimum(block * width, tokens - width)  # the last block begins early, to be whole
        hidden_BD, targets_B = _at(hidden_ND, start, width), _at(targets_N, start, width)
        share_B = jnp.where(start + jnp.arange(width) >= block * width, _at(share_N, start, width), 0)
        product_BV = product(hidden_BD, weight_VD)

        def above(number: Array, highest_B: Array) -> Array:
            first = words.start(number, vocab)
            product_BW = lax.dynamic_slice_in_dim(product_BV, first, words.width, axis=1)
            return jnp.maximum(highest_B, (product_BW + _at(bias_V, first, words.width)).max(axis=1))

        # In blocks of words: for a maximum over all words XLA would store the logits next to the product.
        lowest_B = varying_as(hidden_BD, jnp.full(width, -jnp.inf, weight_VD.dtype))
        highest_B = lax.fori_loop(0, words.count, above, lowest_B)
        exp_BV = jnp.exp(product_BV + bias_V - highest_B[:, None])
        sum_B = exp_BV.sum(axis=1)
        # Scores of targets are computed again, so that XLA can overwrite the logits with the exponentials.
        rows_BD = weight_VD[targets_B]
        nll_B = highest_B + jnp.log(sum_B) - (hidden_BD * rows_BD).sum(axis=1) - bias_V[targets_B]
        scale_B1 = (share_B / sum_B)[:, None]
        scaled_BD = hidden_BD * scale_B1
        dhidden_BD = exp_BV @ weight_VD * scale_B1 - rows_BD * share_B[:, None]

        def add(number: Array, dweight_VD: Array) -> Array:
            first = words.start(number, vocab)
            exp_BW = lax.dynamic_slice_in_dim(exp_BV, first, words.width, axis=1)
            own_BW = jnp.where(words.own(number, vocab), exp_BW, 0)
            dwords_WD = _at(dweight_VD, first, words.width) + own_BW.T @ scaled_BD
            return lax.dynamic_update_slice_in_dim(dweight_VD, dwords_WD, first, 0)

        dhidden_BD += _at(dhidden_ND, start, width)
        return (
            total + nll_B @ share_B,
            lax.dynamic_update_slice_in_dim(dhidden_ND, dhidden_BD, start, 0),
            # In blocks of words, because the whole product would be another array as large as the weights.
            lax.fori_loop(0, words.count, add, dweight_VD),
            dbias_V + scale_B1[:, 0] @ exp_BV,
        )

    zeros = (jnp.zeros((), weight_VD.dtype), *(jnp.zeros_like(array) for array in (hidden_ND, weight_VD, bias_V)))
    count = -(-tokens // width)
    total, dhidden_ND, dweight_VD, dbias_V = lax.fori_loop(0, count, visit, varying_as(hidden_ND, zeros))
    dweight_VD = dweight_VD.at[targets_N].add(-hidden_ND * share_N[:, None])
    return total, (dhidden_ND, dweight_VD, dbias_V.at[targets_N].add(-share_N))


def _scaled(form, gradients, dtotal):  # type: ignore[no-untyped-def]
    return *((gradient * dtotal).astype(gradient.dtype) for gradient in gradients), None, None


fused_total.defvjp(_differentiated, _scaled)


def _own_logits(words: tuple[Array, Array], hidden_ND: Array, cut: _Blocks, block: Array) -> Array:
    """Return the (N, B) logits of a block; -inf for words that belong to the block before.

    `words` are their weights (V, D) and biases (V,).
    """
    vocab = len(words[0])
    weight_BD, bias_B = (_at(array, cut.start(block, vocab), cut.width) for array in words)
    return jnp.where(cut.own(block, vocab), product(hidden_ND, weight_BD) + bias_B, -jnp.inf)


class FusedSoftmax(FullSoftmax):
    """Full softmax by blocks of tokens, whose gradients are computed with their losses, or by blocks of words, whose
    logits are computed once in each direction.

    Parameters: `weight` (V, D) and `bias` (V,), as in full softmax.
    """

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        # Blocks of tokens sum the gradient of words in the dtype of the words. They are faster than blocks of words as
        # long as they hold some hundred tokens, as with 44,000 words. With 128,000 words they only take more memory.
        by_tokens = (blocks.TOKEN_FORM,) if blocks.TOKEN_FORM.supports(spec.dtype, spec.dim) else ()
        if support.known(spec.dtype, spec.dim):
            return (*_BY_KERNELS, *blocks.WORD_FORMS, *by_tokens)
        in_jax = (*blocks.WORD_FORMS, *blocks.GPU_FORMS, *by_tokens)
        return cpp.with_fused_softmax(in_jax, spec.dim) if cpp_kernels.fuses(spec.dtype) else in_jax

    @property
    def _form(self) -> Form:
        assert self.form is not None  # every layer has blocks of words
        return self.form

    def _reduced(
        self,
        params: Tree,
        structure: Tree,
        hidden_ND: Array,
        targets_N: Array,
        real_N: Array,
        count: Array | int,
        **extra: Array,
    ) -> Array:
        if not blocks.are_of_tokens(self._form) or not is_known(hidden_ND):
            return super()._reduced(params, structure, hidden_ND, targets_N, real_N, count, **extra)
        weight_VD, bias_V = params["weight"], self._bias(params)
        share_N = real_N.astype(wide(weight_VD.dtype)) / count
        return fused_total(hidden_ND.astype(weight_VD.dtype), weight_VD, bias_V, targets_N, share_N, self._form)

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        inputs = hidden_ND, params["weight"], self._bias(params), targets_N
        if self._form in _BY_KERNELS:
            from vocabench.impls.on_jax.pallas import softmax_kernels

            return softmax_kernels.fused_nll(*inputs, blocks.width(hidden_ND.shape[0], self.spec.vocab, self._form))
        return fused_nll(*inputs, self._form)

    def own_sums(self, params: Tree, hidden_ND: Array, targets_N: Array) -> tuple[Array, Array]:
        if self._form not in _BY_KERNELS:
            return fused_sums(hidden_ND, params["weight"], self._bias(params), targets_N, self._form)
        none_N = jnp.full_like(targets_N, -1)  # without a target, the loss is the log-sum-exp
        return self._nll(params, {}, hidden_ND, none_N), self._own_target_logits(params, hidden_ND, targets_N)

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        """Return values and ids (N, K) of the k likeliest words, and ones, by blocks of words.

        Ties are exact: the best words so far precede those of a block, and `top_k` prefers the first of ties.
        """
        (rows, _), vocab, kind = hidden_ND.shape, self.spec.vocab, wide(params["weight"].dtype)
        cut = _Blocks.of(rows, vocab, self._form)
        if cut.count == 1:  # a loop of one visit is ten times slower for a single row
            return super()._search(params, structure, hidden_ND, k)
        words = params["weight"], self._bias(params)

        def visit(block: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            values_NK, ids_NK, log_sum_N = carry
            logits_NB = _own_logits(words, hidden_ND, cut, block)
            ids_B = cut.start(block, vocab) + jnp.arange(cut.width)
            ids_NB = jnp.broadcast_to(ids_B.astype(jnp.int32), logits_NB.shape)
            values_NK, place_NK = top_k(jnp.concatenate([values_NK, logits_NB], axis=1), k)
            ids_NK = jnp.take_along_axis(jnp.concatenate([ids_NK, ids_NB], axis=1), place_NK, axis=1)
            return values_NK, ids_NK, jnp.logaddexp(log_sum_N, jax.nn.logsumexp(logits_NB, axis=1))

        start = jnp.full((rows, k), -jnp.inf, kind), jnp.zeros((rows, k), jnp.int32), jnp.full(rows, -jnp.inf, kind)
        values_NK, ids_NK, log_sum_N = lax.fori_loop(0, cut.count, visit, varying_as(hidden_ND, start))
        return values_NK - log_sum_N[:, None], ids_NK, jnp.ones(rows, jnp.float32)

    def _sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """Draw (N,) words: a block by its share of the sum, then one of its words. Every block is scored twice."""
        vocab, cut = self.spec.vocab, _Blocks.of(hidden_ND.shape[0], self.spec.vocab, self._form)
        if cut.count == 1:
            return super()._sample(params, structure, hidden_ND, uniforms_NU)
        words = params["weight"], self._bias(params)

        def logits(block: Array) -> Array:
            return _own_logits(words, hidden_ND, cut, block)

        log_sum_BN = lax.map(lambda block: jax.nn.logsumexp(logits(block), axis=1), jnp.arange(cut.count))
        block_N, left_N = drawn_part(log_sum_BN.T, uniforms_NU[:, 0])

        def visit(block: Array, word_N: Array) -> Array:
            place_N = draw(jax.nn.softmax(logits(block), axis=1), left_N)
            return jnp.where(block_N == block, (cut.start(block, vocab) + place_N).astype(word_N.dtype), word_N)

        return lax.fori_loop(0, cut.count, visit, jnp.zeros_like(block_N))


LAYER = FusedSoftmax
