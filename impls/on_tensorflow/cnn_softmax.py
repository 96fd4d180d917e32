"""CNN softmax in TensorFlow. See `impls/on_numpy/cnn_softmax.py` for the definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from impls.on_numpy.cnn_softmax import WIDTHS, before, blocks
from impls.on_tensorflow._layer import OutputLayer, Tensor, at_least_float32, cross_entropy, product
from impls.spec import LayerSpec
from impls.structures.spelling import END

_WIDEST = WIDTHS[-1]


class CnnSoftmax(OutputLayer):
    """log P(w | h) = log softmax(h (f P^T / sqrt 4F + r M^T / sqrt R)^T + b)[w], with f the pooled filters over the
    characters of every word.

    Weights: `char_embedding` (A, E), `conv{k}_weight` (F, k, E) and `conv{k}_bias` (F,) for k = 1..4,
    `char_projection` (D, 4 F), `correction_weight` (V, R) and `correction_projection` (D, R) where there is a
    correction, `bias` (V,). Constant: `characters` (B, W, L), the words in blocks.

    Every call makes all word vectors, (V, 4 F) features and then (V, D), once. The windows of a block of words are held
    only while the block is under way, and made anew for the gradient: about 4 L (E + F) numbers a word of the block at
    a time, twice that in the backward pass.
    """

    jit_compile = True

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(spec, **keyword)
        self.characters = tf.constant(blocks(spec))
        self._corrects = "correction_weight" in self.inner_shapes()

    def _features(self) -> Tensor:
        """(V, 4 F)"""
        small = self._filters()
        features_BWX = _by_blocks(self._features_of, self.characters, self.compute_dtype)(*small)
        return tf.reshape(features_BWX, [-1, small[2].shape[0]])[: self.spec.vocab]

    def _filters(self) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding (1 + A, E) whose first row is padding, filters (4 F, 4 E) of one width by zeros, biases (4 F,)."""
        # Half precision is widened here, outside the blocks, so that the gradients of all blocks are summed in float32.
        embedding_AE = tf.pad(at_least_float32(self.value_of("char_embedding")), [[1, 0], [0, 0]])
        around = {k: [[0, 0], [before(k), _WIDEST - k - before(k)], [0, 0]] for k in WIDTHS}
        weights = [tf.pad(self._scaled(f"conv{k}_weight"), around[k]) for k in WIDTHS]
        weight_XkE = tf.concat(weights, axis=0)
        biases = [at_least_float32(self.value_of(f"conv{k}_bias")) for k in WIDTHS]
        return embedding_AE, tf.reshape(weight_XkE, [weight_XkE.shape[0], -1]), tf.concat(biases, axis=0)

    def _scaled(self, name: str) -> Tensor:
        """A matrix over the square root of how many terms its products have, in float32 at least."""
        weight = at_least_float32(self.value_of(name))
        return weight / math.prod(weight.shape[1:]) ** 0.5

    def _features_of(self, characters_WL: Tensor, embedding_AE: Tensor, weight_XY: Tensor, bias_X: Tensor) -> Tensor:
        """(W, X) of the words of one block. All widths are one product: filters short of the widest are filled up."""
        words, places = characters_WL.shape[0], characters_WL.shape[1] - 2
        chars_WLE = tf.pad(tf.gather(embedding_AE, characters_WL), [[0, 0], [0, 1], [0, 0]])
        windows_WTY = tf.concat([chars_WLE[:, j : j + places] for j in range(_WIDEST)], axis=2)
        flat_SY = tf.reshape(tf.cast(windows_WTY, self.compute_dtype), [words * places, -1])
        scores_WTX = tf.reshape(product(flat_SY, tf.cast(weight_XY, self.compute_dtype)), [words, places, -1])
        outside = tf.constant(-float("inf"), scores_WTX.dtype)
        scores_WTX = tf.where(characters_WL[:, 1:-1, None] > END, scores_WTX, outside)
        # A bias is the same at every place: it can wait until one is chosen.
        return tf.nn.relu(tf.reduce_max(scores_WTX, axis=1) + tf.cast(bias_X, scores_WTX.dtype))

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        vectors_VD = product(self._features(), tf.cast(self._scaled("char_projection"), self.compute_dtype))
        if self._corrects:
            projection_DR = tf.cast(self._scaled("correction_projection"), self.compute_dtype)
            vectors_VD += product(self.value_of("correction_weight"), projection_DR)
        return at_least_float32(product(hidden_ND, vectors_VD) + self.value_of("bias"))

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return cross_entropy(self._logits(hidden_ND), targets_N)

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        return tf.nn.log_softmax(self._logits(hidden_ND))


def _by_blocks(function: Callable[..., Tensor], blocks: Tensor, dtype: str) -> Callable[..., Tensor]:
    """`function(block, *shared)` of each block, stacked, with a gradient by `shared` that computes each block anew.

    `tf.recompute_grad` would do for one block; a loop over it would stack what every block shares once a block.
    """

    @tf.custom_gradient
    def mapped(*shared: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
        def gradient(upstream: Tensor) -> list[Tensor]:
            def add(number: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
                with tf.GradientTape() as tape:
                    tape.watch(shared)
                    result = function(blocks[number], *shared)
                grads = tape.gradient(result, shared, output_gradients=upstream[number])
                return number + 1, *(total + grad for total, grad in zip(sums, grads, strict=True))

            start = [tf.constant(0), *(tf.zeros_like(each) for each in shared)]
            _, *sums = tf.while_loop(lambda number, *_: number < len(blocks), add, start, parallel_iterations=1)
            return sums

        def each(block: Tensor) -> Tensor:
            return function(block, *shared)

        return tf.map_fn(each, blocks, parallel_iterations=1, fn_output_signature=dtype), gradient

    return mapped


LAYER = CnnSoftmax
