"""Full softmax without an (N, V) array of logits, in TensorFlow. See `impls/on_numpy/methods/fused_softmax.py`."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_tensorflow.methods.full_softmax import FullSoftmax
from vocabench.impls.on_tensorflow.ops import cpp_kernels
from vocabench.impls.on_tensorflow.ops.tensors import (
    Tensor,
    at_least_float32,
    differentiated_once,
    draw,
    product,
    traced,
)
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import blocks

# If the number of tokens is not known while tracing: the expected number, and the multiple to which it is padded.
_TOKENS = 1024
_ROUND = 64
_WORDS = 2**12  # words whose gradients are updated at a time, in a cache


@traced(jit_compile=True)
def _forward(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, form: Form
) -> tuple[Tensor, Tensor]:
    """Return the (N,) log-sum-exp over the vocabulary and the (N,) logits of the targets."""
    vocab = weight_VD.shape[0]
    width = _width(hidden_ND, vocab, form)

    def visit(block: Tensor, highest_N: Tensor, sum_N: Tensor, target_N: Tensor) -> tuple[Tensor, ...]:
        start, is_new_B = _place(block, width, vocab)
        logits_NB = tf.where(is_new_B, _logits(hidden_ND, weight_VD, bias_V, start, width), -float("inf"))
        is_target_NB = (start + tf.range(width) == targets_N[:, None]) & is_new_B
        target_N += tf.reduce_sum(tf.where(is_target_NB, logits_NB, 0), axis=1)
        above_N = tf.maximum(highest_N, tf.reduce_max(logits_NB, axis=1))
        exp_N = tf.reduce_sum(tf.exp(logits_NB - above_N[:, None]), axis=1)
        return block + 1, above_N, sum_N * tf.exp(highest_N - above_N) + exp_N, target_N

    zeros_N = tf.zeros(tf.shape(hidden_ND)[:1], at_least_float32(weight_VD[:0]).dtype)
    start = (tf.constant(0), zeros_N - float("inf"), zeros_N, zeros_N)
    count = -(-vocab // width)
    _, highest_N, sum_N, target_N = tf.while_loop(lambda block, *_: block < count, visit, start)
    return highest_N + tf.math.log(sum_N), target_N


@traced(jit_compile=True)
def _backward(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    targets_N: Tensor,
    log_sum_N: Tensor,
    dnll_N: Tensor,
    form: Form,
) -> tuple[Tensor, Tensor, Tensor]:
    vocab = weight_VD.shape[0]
    width = _width(hidden_ND, vocab, form)
    wide, narrow = log_sum_N.dtype, weight_VD.dtype

    def visit(block: Tensor, dhidden_ND: Tensor, dweight_VD: Tensor, dbias_V: Tensor) -> tuple[Tensor, ...]:
        start, is_new_B = _place(block, width, vocab)
        logits_NB = _logits(hidden_ND, weight_VD, bias_V, start, width)
        is_target_NB = tf.cast(start + tf.range(width) == targets_N[:, None], wide)
        dlogits_NB = (tf.exp(logits_NB - log_sum_N[:, None]) - is_target_NB) * dnll_N[:, None]
        # Words that the previous block contains get the same gradient again, but must not add twice to `dhidden_ND`.
        dwords_BD = tf.matmul(tf.cast(dlogits_NB, narrow), tf.cast(hidden_ND, narrow), transpose_a=True)
        dweight_VD = _put(dweight_VD, dwords_BD, [start, 0])
        dbias_V = _put(dbias_V, tf.cast(tf.reduce_sum(dlogits_NB, axis=0), narrow), [start])
        dnew_NB = tf.cast(tf.where(is_new_B, dlogits_NB, 0), narrow)
        dhidden_ND += tf.cast(dnew_NB @ _slice(weight_VD, start, width), wide)
        return block + 1, dhidden_ND, dweight_VD, dbias_V

    zeros = (tf.zeros_like(hidden_ND, wide), _zeros_like(weight_VD), tf.zeros_like(bias_V))
    count = -(-vocab // width)
    _, dhidden_ND, dweight_VD, dbias_V = tf.while_loop(lambda block, *_: block < count, visit, (tf.constant(0), *zeros))
    return tf.cast(dhidden_ND, hidden_ND.dtype), dweight_VD, dbias_V


@traced(jit_compile=True)
def _differentiated(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, share_N: Tensor, form: Form
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weighted sum of the losses and its gradients with respect to the first three arguments.

    The gradients are computed by blocks of tokens, from the exponentials of the block's logits.
    """
    tokens, vocab, dtype = hidden_ND.shape[0], weight_VD.shape[0], weight_VD.dtype
    width, words = blocks.of_tokens(tokens, vocab, form), min(vocab, _WORDS)

    def is_block_of_words(number: Tensor, _: Tensor) -> Tensor:
        return number < -(-vocab // words)

    def visit(block: Tensor, total: Tensor, dhidden_ND: Tensor, dweight_VD: Tensor, dbias_V: Tensor) -> Any:
        start, is_new_B = _place(block, width, tokens)
        hidden_BD, targets_B1 = _slice(hidden_ND, start, width), _slice(targets_N, start, width)[:, None]
        share_B = tf.where(is_new_B, _slice(share_N, start, width), 0)
        product_BV = product(hidden_BD, weight_VD)

        def maximum(number: Tensor, highest_B: Tensor) -> tuple[Tensor, Tensor]:
            first, _ = _place(number, words, vocab)
            logits_BW = tf.slice(product_BV, [0, first], [width, words]) + _slice(bias_V, first, words)
            return number + 1, tf.maximum(highest_B, tf.reduce_max(logits_BW, axis=1))

        # By blocks of words: for a maximum over all words, XLA would store the logits in addition to the product.
        none_B = tf.fill([width], tf.cast(-math.inf, dtype))
        _, highest_B = tf.while_loop(is_block_of_words, maximum, (tf.constant(0), none_B))
        exp_BV = tf.exp(product_BV + bias_V - highest_B[:, None])
        sum_B = tf.reduce_sum(exp_BV, axis=1)
        # Not read from the logits, so that XLA can store the exponentials in their memory.
        rows_BD = tf.gather_nd(weight_VD, targets_B1)
        target_B = tf.reduce_sum(hidden_BD * rows_BD, axis=1) + tf.gather_nd(bias_V, targets_B1)
        scale_B1 = (share_B / sum_B)[:, None]
        scaled_BD = hidden_BD * scale_B1
        dhidden_BD = (exp_BV @ weight_VD) * scale_B1 - rows_BD * share_B[:, None]

        def add(number: Tensor, dweight_VD: Tensor) -> tuple[Tensor, Tensor]:
            first, is_new_W = _place(number, words, vocab)
            is_new_BW = tf.where(is_new_W, tf.slice(exp_BV, [0, first], [width, words]), 0)
            dwords_WD = _slice(dweight_VD, first, words) + tf.matmul(is_new_BW, scaled_BD, transpose_a=True)
            return number + 1, _put(dweight_VD, dwords_WD, [first, 0])

        # By blocks of words, since a product for all words would be as large as the weights.
        _, dweight_VD = tf.while_loop(is_block_of_words, add, (tf.constant(0), dweight_VD))
        return (
            block + 1,
            total + tf.reduce_sum((highest_B + tf.math.log(sum_B) - target_B) * share_B),
            _put(dhidden_ND, _slice(dhidden_ND, start, width) + dhidden_BD, [start, 0]),
            dweight_VD,
            dbias_V + tf.linalg.matvec(exp_BV, scale_B1[:, 0], transpose_a=True),
        )

    zeros = (tf.zeros([], dtype), tf.zeros_like(hidden_ND), _zeros_like(weight_VD), tf.zeros_like(bias_V))
    results = tf.while_loop(lambda block, *_: block < -(-tokens // width), visit, (tf.constant(0), *zeros))
    _, total, dhidden_ND, dweight_VD, dbias_V = results
    targets_N1 = targets_N[:, None]
    dweight_VD = tf.tensor_scatter_nd_sub(dweight_VD, targets_N1, hidden_ND * share_N[:, None])
    return total, dhidden_ND, dweight_VD, tf.tensor_scatter_nd_sub(dbias_V, targets_N1, share_N)


def _zeros_like(weight_VD: Tensor) -> Tensor:
    """Return zeros that XLA cannot see through: it would store a constant as large as the weights in its program."""
    zero: Any = gen_xla_ops.xla_optimization_barrier([tf.zeros([], weight_VD.dtype)])
    return tf.fill(weight_VD.shape, zero[0])


def _width(hidden_ND: Tensor, vocab: int, form: Form) -> int:
    return blocks.width(hidden_ND.shape[0] or _TOKENS, vocab, form)


def _place(block: Tensor, width: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the first of the words or tokens of a block, and (B,) which of them no previous block contains.

    The last block begins early, so that all blocks have the same size.
    """
    start = tf.minimum(block * width, size - width)
    return start, start + tf.range(width) >= block * width


def _slice(array_V: Tensor, start: Tensor, width: int) -> Tensor:
    begin = [start] + [0] * (len(array_V.shape) - 1)
    return tf.slice(array_V, begin, [width, *array_V.shape[1:]])


def _put(array: Tensor, piece: Tensor, begin: list[Tensor | int]) -> Tensor:
    """Write a piece into an array. In a loop XLA does so in place, while TensorFlow's scatter goes row by row."""
    return gen_xla_ops.xla_dynamic_update_slice(array, piece, tf.stack(begin))


def _log_add(left: Tensor, right: Tensor) -> Tensor:
    return tf.reduce_logsumexp(tf.stack([left, right]), axis=0)


def _logits(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, start: Tensor, width: int) -> Tensor:
    return at_least_float32(product(hidden_ND, _slice(weight_VD, start, width)) + _slice(bias_V, start, width))


class FusedSoftmax(FullSoftmax):
    """Full softmax by blocks of tokens or of words.

    The gradients of a block of tokens are computed together with its losses. The logits of a block of words are
    computed in the forward pass and again in the backward pass.

    Weights: `weight` (V, D), `bias` (V,).
    """

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        # Blocks of tokens sum the gradient with respect to the words in its own dtype. They are faster if a block has
        # some hundred tokens, as with 44,000 words. With 128,000 words they gain nothing and use more memory.
        by_tokens = (blocks.TOKEN_FORM,) if blocks.TOKEN_FORM.supports(spec.dtype, spec.dim) else ()
        forms = (*blocks.WORD_FORMS, *by_tokens)
        return cpp.with_fused_softmax(forms, spec.dim) if cpp_kernels.fuses(spec.dtype) else forms

    @property
    def _form(self) -> Form:
        assert self.form is not None  # blocks of words are available everywhere
        return self.form

    @property
    def jit_compile(self) -> bool:
        return self.form != CPP

    def _reduced(
        self, hidden_ND: Tensor, targets_N: Tensor, real_N: Tensor, count: Tensor | int, **extra: Tensor
    ) -> Tensor:
        needs_static_shape = self._form == blocks.TOKEN_FORM
        if not blocks.are_of_tokens(self._form) or (needs_static_shape and hidden_ND.shape[0] is None):
            return super()._reduced(hidden_ND, targets_N, real_N, count, **extra)
        weight_VD, bias_V = self._weights()
        targets_N = tf.cast(targets_N, tf.int32)
        wide = tf.float64 if weight_VD.dtype == tf.float64 else tf.float32
        share_N = tf.cast(real_N, wide) / tf.cast(count, wide)

        @tf.custom_gradient
        def by_tokens(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor) -> tuple[Tensor, object]:
            untaped = [tf.stop_gradient(tensor) for tensor in (hidden_ND, weight_VD, bias_V)]
            inputs = untaped[0], untaped[1], untaped[2], targets_N, share_N
            if self.form == CPP:
                total, gradients = cpp_kernels.fused_softmax(*inputs, blocks.most_tokens(self.spec.vocab, self._form))
            else:
                total, *gradients = _differentiated(*inputs, self._form)
            sources = hidden_ND, weight_VD, bias_V

            def gradient(dtotal: Tensor) -> tuple[Tensor, ...]:
                parts = differentiated_once(self.spec.method, gradients, *sources)
                return tuple(part * tf.cast(dtotal, part.dtype) for part in parts)

            return total, gradient

        return by_tokens(tf.cast(hidden_ND, weight_VD.dtype), weight_VD, bias_V)

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        targets_N = tf.cast(targets_N, tf.int32)
        if hidden_ND.shape[0] is not None:
            return self._padded_nll(hidden_ND, targets_N)
        # XLA compiles a program for each number of tokens; with padding there are few.
        tokens: Any = tf.shape(hidden_ND)[0]
        spare = -tokens % _ROUND
        return self._padded_nll(tf.pad(hidden_ND, [[0, spare], [0, 0]]), tf.pad(targets_N, [[0, spare]]))[:tokens]

    def _padded_nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        @tf.custom_gradient
        def nll(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor) -> tuple[Tensor, object]:
            # A tape that recorded the loop would keep all blocks. The gradient is written out instead.
            sources = hidden_ND, weight_VD, bias_V
            hidden, weight, bias = (tf.stop_gradient(tensor) for tensor in sources)
            log_sum_N, target_N = _forward(hidden, weight, bias, targets_N, self._form)

            def gradient(dnll_N: Tensor) -> tuple[Tensor, ...]:
                upstream_N = tf.stop_gradient(dnll_N)
                gradients = _backward(hidden, weight, bias, targets_N, log_sum_N, upstream_N, self._form)
                return differentiated_once(self.spec.method, gradients, *sources, dnll_N)

            return log_sum_N - target_N, gradient

        return nll(hidden_ND, *self._weights())

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Search block by block. The best words so far precede those of a block, so `top_k` prefers them in ties."""
        weight_VD, bias_V, vocab = *self._weights(), self.spec.vocab
        cast_ND = tf.cast(hidden_ND, weight_VD.dtype)
        width = _width(hidden_ND, vocab, self._form)
        if width == vocab:  # a single block is full softmax
            return super()._search(hidden_ND, k)

        def visit(block: Tensor, best_NK: Tensor, ids_NK: Tensor, log_sum_N: Tensor) -> tuple[Tensor, ...]:
            start, is_new_B = _place(block, width, vocab)
            logits_NB = tf.where(is_new_B, _logits(cast_ND, weight_VD, bias_V, start, width), -math.inf)
            ids_NB = tf.broadcast_to(start + tf.range(width), tf.shape(logits_NB))
            best_NK, place_NK = tf.math.top_k(tf.concat([best_NK, logits_NB], axis=1), k)
            ids_NK = tf.gather(tf.concat([ids_NK, ids_NB], axis=1), place_NK, batch_dims=1)
            return block + 1, best_NK, ids_NK, _log_add(log_sum_N, tf.reduce_logsumexp(logits_NB, axis=1))

        shape, dtype = [tf.shape(hidden_ND)[0], k], at_least_float32(weight_VD[:0]).dtype
        none = tf.cast(-math.inf, dtype)
        start = tf.constant(0), tf.fill(shape, none), tf.zeros(shape, tf.int32), tf.fill(shape[:1], none)
        count = -(-vocab // width)
        # One block at a time, since parallel blocks would be in memory together.
        results = tf.while_loop(lambda block, *_: block < count, visit, start, parallel_iterations=1)
        _, best_NK, ids_NK, log_sum_N = results
        return best_NK - log_sum_N[:, None], ids_NK, tf.ones(shape[:1])

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words: draw a block by its share of the sum, then a word of it. That block is scored again."""
        weight_VD, bias_V, vocab = *self._weights(), self.spec.vocab
        cast_ND, uniforms_N = tf.cast(hidden_ND, weight_VD.dtype), uniforms_NU[:, 0]
        width = _width(hidden_ND, vocab, self._form)
        if width == vocab:
            return super()._sample(hidden_ND, uniforms_NU)
        count = -(-vocab // width)

        def logits(rows_RD: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
            start, is_new_B = _place(block, width, vocab)
            return start, tf.where(is_new_B, _logits(rows_RD, weight_VD, bias_V, start, width), -math.inf)

        def add(block: Tensor, log_sums: tf.TensorArray) -> tuple[Tensor, tf.TensorArray]:
            return block + 1, log_sums.write(block, tf.reduce_logsumexp(logits(cast_ND, block)[1], axis=1))

        sums = tf.TensorArray(at_least_float32(weight_VD[:0]).dtype, size=count)
        _, sums = tf.while_loop(lambda block, _: block < count, add, (tf.constant(0), sums), parallel_iterations=1)
        share_NB = tf.nn.softmax(tf.transpose(sums.stack()))
        block_N = draw(share_NB, uniforms_N)
        at_N1 = block_N[:, None]
        before_N, share_N = (
            tf.gather(array, at_N1, batch_dims=1)[:, 0] for array in (tf.cumsum(share_NB, 1, exclusive=True), share_NB)
        )
        left_N = tf.clip_by_value((uniforms_N - before_N) / share_N, 0, 1 - 2.0**-24)  # below 1 in float32 too

        def pick(block: Tensor, word_N: Tensor) -> tuple[Tensor, Tensor]:
            rows_R1 = tf.where(block_N == block)
            start, logits_RB = logits(tf.gather(cast_ND, rows_R1[:, 0]), block)
            place_R = draw(tf.nn.softmax(logits_RB), tf.gather(left_N, rows_R1[:, 0]))
            return block + 1, tf.tensor_scatter_nd_update(word_N, rows_R1, start + place_R)

        start = tf.constant(0), tf.zeros_like(block_N)
        return tf.while_loop(lambda block, _: block < count, pick, start, parallel_iterations=1)[1]

    def _weights(self) -> tuple[Tensor, Tensor]:
        return tf.convert_to_tensor(self.value_of("weight")), tf.convert_to_tensor(self.bias_of())

    def formulation(self) -> str:
        return f"{self._form.label}; XLA" if self.jit_compile else super().formulation()


LAYER = FusedSoftmax
