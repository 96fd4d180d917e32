"""The base class of the native TensorFlow output layers, which are Keras layers: their public calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Literal, Self

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from vocabench.impls import calls
from vocabench.impls.calls import ALL_WORDS, PLAIN, Objective
from vocabench.impls.errors import BadInput
from vocabench.impls.on_tensorflow import inputs, objectives, sampling
from vocabench.impls.on_tensorflow.device import to_numpy
from vocabench.impls.on_tensorflow.hooks import Hooks
from vocabench.impls.on_tensorflow.inputs import Leading, Targets
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, in_dtype
from vocabench.impls.on_tensorflow.training.optimizers import Updates
from vocabench.impls.resizing import carried_over, resized

Reduction = Literal["mean", "sum", "none"]


_NAMED = {"hidden", "targets", "generator", "training", "mask"}  # arguments of a call besides those of the loss


def _in_one_line(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep Keras from adding all arguments to the message of an exception that refuses one of them."""

    @wraps(call)
    def guarded(*arguments: Any, **keyword: Any) -> Tensor:
        try:
            return call(*arguments, **keyword)
        except (BadInput, TypeError) as error:
            error._keras_call_info_injected = True  # type: ignore[union-attr]
            raise

    return guarded


class OutputLayer(Hooks):
    """Base class of the native layers: `loss = layer(hidden, targets)` inside any model.

    `hidden` is (..., D) in any floating dtype and `targets` is (...) in any integer dtype. The weights may be stored
    differently from their canonical form (`impls/spec.py`). `to_canonical` and `from_canonical` convert dictionaries of
    weights, gradients or optimizer slots.
    """

    def __call__(self, *arguments: Any, **keyword: Any) -> Tensor:
        """Call `call`, after checking the names of keywords, which Keras would check in other words."""
        calls.check_extra(self.spec.definition, keyword.keys() - _NAMED)
        return super().__call__(*arguments, **keyword)

    @_in_one_line
    def call(
        self,
        hidden: Tensor,
        targets: Tensor,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        token_weight: Tensor | None = None,
        z_loss: float = 0.0,
        softcap: float | None = None,
        generator: tf.random.Generator | None = None,
        training: bool | None = None,
        **extra: Tensor,
    ) -> Tensor:
        """Compute the training loss: the negative log-likelihood in nats, or another loss of the method.

        A target outside the vocabulary is refused where the host can read it: in eager calls on a CPU. Elsewhere its
        loss is NaN.

        Args:
            hidden: (..., D), any floating dtype; logits and sums are at least float32.
            targets: (...) word ids, or `ignore_index` where a position is padding: it has no loss, no gradient
                and does not count in the mean, whatever `hidden` holds there. The mean over padding alone is 0.
            ignore_index: The target that marks padding.
            reduction: "mean" over the tokens, "sum", or "none" for (...).
            label_smoothing: Share of the uniform distribution in the target distribution (Szegedy et al. 2016).
            token_weight: (...) weights of the losses; the mean is divided by their sum, and is 0 if that is 0.
            z_loss: Coefficient of the squared log-sum-exp of the logits (de Brébisson and Vincent 2016).
            softcap: Replaces the logits by `softcap * tanh(logits / softcap)` (Gemma Team 2024).
            generator: Draws the random inputs that `extra` leaves out; TensorFlow's global one if None.
            training: Whether a layer that reorganizes records statistics of the batch. Keras passes it on, as in `fit`.
            **extra: Random inputs of the loss, as named by `Definition.extra`; most methods have none.

        Returns:
            At least float32.

        Raises:
            BadInput: An argument has the wrong shape, dtype or value, or the method does not define it.
            TypeError: `extra` has a name that the loss does not take.
        """
        hidden_ND, leading = self._flat(hidden)
        calls.check_reduction(reduction)
        calls.check_ignore_index(ignore_index)
        batch = inputs.read_targets(targets, leading, self.spec.vocab, ignore_index)
        objective = calls.objective_of(self.spec.definition, label_smoothing, z_loss, softcap)
        weight_N = None if token_weight is None else inputs.check_token_weight(token_weight, leading)
        extra = self._checked_extra(extra, hidden_ND, leading, generator)
        loss = partial(self._loss_of, hidden_ND, leading, batch, objective, weight_N, reduction, **extra)
        return self._observed(loss, batch) if training and self.reorganizes else loss()

    def _loss_of(
        self,
        hidden_ND: Tensor,
        leading: Leading,
        batch: Targets,
        objective: Objective,
        weight_N: Tensor | None,
        reduction: Reduction,
        **extra: Tensor,
    ) -> Tensor:
        """Return what `call` returns, from checked arguments."""
        if hidden_ND.shape[0] == 0:
            return self._loss_of_nothing(hidden_ND, leading if reduction == "none" else None)
        hidden_ND = inputs.without_padding(hidden_ND, batch.real_N)
        if objective is PLAIN and weight_N is None and reduction != "none":
            return self._plain_total(hidden_ND, batch, mean=reduction == "mean", **extra)
        losses_N = _masked(self._objective_losses(hidden_ND, batch.words_N, objective, **extra), batch)
        share_N = tf.ones_like(losses_N) if weight_N is None else in_dtype(weight_N, losses_N.dtype)
        if batch.real_N is not None:
            share_N = tf.where(batch.real_N, share_N, tf.zeros_like(share_N))
        weighted_N = losses_N if weight_N is None else losses_N * share_N
        if reduction == "none":
            return leading.restore(weighted_N)
        total = tf.reduce_sum(weighted_N)
        return total if reduction == "sum" else _quotient(total, tf.reduce_sum(share_N))

    def training_loss(self, hidden: Tensor, targets: Tensor, **options: Any) -> Tensor:
        """Return the training loss, as a call does. A layer that reorganizes also records statistics of the batch.

        In the replicas of a `tf.distribute.Strategy`, these are the statistics of the batches of all replicas.
        """
        return self(hidden, targets, training=True, **options)

    def log_probs(self, hidden: Tensor, *, softcap: float | None = None) -> Tensor:
        """Return the (..., V) normalized log-probabilities over the whole vocabulary, at least in float32."""
        hidden_ND, leading = self._flat(hidden)
        softcap = calls.check_softcap(self.spec.definition, softcap)
        return leading.restore(self._capped_log_probs(hidden_ND, softcap), self.spec.vocab)

    def target_log_probs(self, hidden: Tensor, targets: Tensor, *, softcap: float | None = None) -> Tensor:
        """Return the (...) exact log-probabilities of the targets, which are words and not padding."""
        hidden_ND, leading = self._flat(hidden)
        batch = inputs.read_targets(targets, leading, self.spec.vocab, None)
        objective = Objective(softcap=calls.check_softcap(self.spec.definition, softcap))
        if hidden_ND.shape[0] == 0:
            return self._loss_of_nothing(hidden_ND, leading)
        if objective.softcap is None:
            nll_N = self._nll(hidden_ND, batch.words_N)
        else:
            nll_N = self._objective_losses(hidden_ND, batch.words_N, objective)
        return leading.restore(-_masked(nll_N, batch))

    def nll_parts(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return (...) summands of the negative log-likelihood, which are reported on their own, the highest first."""
        hidden_ND, leading = self._flat(hidden)
        batch = inputs.read_targets(targets, leading, self.spec.vocab, None)
        if hidden_ND.shape[0] == 0:
            return (self._loss_of_nothing(hidden_ND, leading),)
        parts = self._nll_parts(hidden_ND, batch.words_N)
        return tuple(leading.restore(_masked(part_N, batch)) for part_N in parts)

    def entropy(self, hidden: Tensor, *, softcap: float | None = None) -> Tensor:
        """Return the (...) entropies of the distributions in nats; differentiable, without an (N, V) array."""
        hidden_ND, leading = self._flat(hidden)
        softcap = calls.check_softcap(self.spec.definition, softcap)
        of_block = partial(self._entropy, softcap=softcap)
        return leading.restore(objectives.in_blocks(of_block, self.spec.vocab, hidden_ND))

    def topk(self, hidden: Tensor, k: int, *, softcap: float | None = None) -> tuple[Tensor, Tensor]:
        """Return values and ids (..., K) of the k likeliest words: exact, best first, ties by lower id."""
        softcap = calls.check_softcap(self.spec.definition, softcap)
        values, ids, _ = self.search(hidden, k)
        if softcap is None:
            return values, ids
        hidden_ND, leading = self._flat(hidden)

        def of_block(hidden_BD: Tensor, ids_BK: Tensor) -> Tensor:
            return tf.gather(self._capped_log_probs(hidden_BD, softcap), ids_BK, batch_dims=1)

        ids_NK = tf.reshape(ids, [-1, k])
        return leading.restore(objectives.in_blocks(of_block, self.spec.vocab, hidden_ND, ids_NK), k), ids

    def search(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the results of `topk`, and the (...) share of the layer's clusters or nodes that it expanded.

        The share is 1 for layers without bounds.
        """
        hidden_ND, leading = self._flat(hidden)
        k = calls.check_count("k", k, self.spec.vocab)
        if hidden_ND.shape[0] == 0:
            return *self._nothing_found(leading, k), tf.zeros(leading.shape)
        values_NK, ids_NK, share_N = self._search(hidden_ND, k)
        return leading.restore(values_NK, k), leading.restore(ids_NK, k), leading.restore(share_N)

    def beam(self, hidden: Tensor, k: int, width: int, levels: int = 1) -> tuple[Tensor, Tensor]:
        """Return values and ids (..., K) of k likely words, following the `width` likeliest clusters or prefixes.

        The width, from k to V, applies to each level. The result is not exact if there are several levels. Of a binary
        tree, `levels` are searched at a time.
        """
        hidden_ND, leading = self._flat(hidden)
        k = calls.check_count("k", k, self.spec.vocab)
        width = calls.check_count("width", width, self.spec.vocab, lowest=k)
        levels = calls.check_levels(levels)
        if hidden_ND.shape[0] == 0:
            return self._nothing_found(leading, k)
        values_NK, ids_NK = self._path_beam(hidden_ND, k, width, levels)
        return leading.restore(values_NK, k), leading.restore(ids_NK, k)

    def sample(
        self,
        hidden: Tensor,
        uniforms: Tensor | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        *,
        generator: tf.random.Generator | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Return (...) words drawn exactly from the distribution, or from what the options leave of it.

        Args:
            hidden: (..., D).
            uniforms: (..., U) numbers in [0, 1), with U = `spec.draws`, as `Layer.sample` describes; drawn if None.
                With options, the first of them takes the first word whose cumulative probability exceeds it: in the
                order of ids, or from the likeliest word on with `top_k` or `top_p`.
            temperature: Divides the log-probabilities, which are then normalized again.
            top_k: Keeps this many of the likeliest words.
            top_p: Of these, keeps the fewest likeliest words whose probabilities sum to at least this (Holtzman et al.
                2020).
            generator: Draws the uniforms if they are left out; TensorFlow's global one if None.
            softcap: As in `call`.
        """
        hidden_ND, leading = self._flat(hidden)
        options = calls.check_sampling(temperature, top_k, top_p, self.spec.vocab)
        softcap = calls.check_softcap(self.spec.definition, softcap)
        if uniforms is not None:
            uniforms_NU = in_dtype(inputs.check_uniforms(uniforms, leading, self.spec.draws), self._wide)
        else:
            source = generator or tf.random
            size: Any = [tf.shape(hidden_ND)[0], self.spec.draws]
            uniforms_NU = source.uniform(size, dtype=self._wide)
        if hidden_ND.shape[0] == 0:
            return tf.zeros(leading.shape, tf.int32)
        if options is ALL_WORDS and softcap is None:
            return leading.restore(self._sample(hidden_ND, uniforms_NU))
        if options.top_k is not None:
            best = self.topk(hidden_ND, options.top_k, softcap=softcap)
            return leading.restore(sampling.of_best(*best, uniforms_NU[:, 0], options))

        def of_block(hidden_BD: Tensor, uniforms_B: Tensor) -> Tensor:
            return sampling.of_all(self._capped_log_probs(hidden_BD, softcap), uniforms_B, options)

        return leading.restore(objectives.in_blocks(of_block, self.spec.vocab, hidden_ND, uniforms_NU[:, 0]))

    # For training.
    def reorganize(
        self, optimizer: keras.optimizers.Optimizer | Updates | None = None, *, seed: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Move words to new clusters, and return the cluster of each word (V,) before and after.

        Args:
            optimizer: Its variables that have the shape of a weight move along with it.
            seed: Seed of the order in which words are placed, instead of the layer's.

        Raises:
            BadInput: The layer does not reorganize.
        """
        raise self._no_clusters("reorganize")

    def resize(self, counts: ArrayLike, **options: object) -> Self:
        """Return a layer for another vocabulary, on the same device, with what the weights have learned.

        An embedding that is tied to this layer gets the new vocabulary and is tied to the new layer instead.

        Args:
            counts: (V',) how often each word of the new vocabulary occurs. Word ids stay: a smaller vocabulary drops
                the last words, and a larger one appends words.
            **options: Options of the method to change.

        Raises:
            BadInput: As `resizing.resized`.
        """
        before, weights = self.present_spec(), self.named_weights()
        spec = resized(before, counts, **options)
        canonical = self.to_canonical({name: tf.convert_to_tensor(value) for name, value in weights.items()})
        arrays = {name: to_numpy(value) for name, value in canonical.items()}
        with tf.device(next(iter(weights.values())).device):
            made = type(self)(spec, trainable=self.trainable)
            carried = carried_over(before, spec, arrays)
            made.load_canonical({name: tf.constant(value) for name, value in carried.items()})
            self._move_tie(made)
        return made

    # Shared by the public calls.
    def _no_clusters(self, call: str) -> BadInput:
        return BadInput(f"{call} of {self.spec.method}: allowed: layers of sohsm with an interval")

    @property
    def _wide(self) -> tf.DType:
        """The dtype of losses and log-probabilities."""
        return tf.float64 if self.spec.storage == "float64" else tf.float32

    def _flat(self, hidden: Tensor) -> tuple[Tensor, Leading]:
        return inputs.flat_hidden(hidden, self.spec.dim, tf.as_dtype(self.compute_dtype))

    def _loss_of_nothing(self, hidden_ND: Tensor, leading: Leading | None) -> Tensor:
        """Return the loss of no tokens: an empty array, or 0, with gradients of zeros for all that it depends on."""
        losses_N = tf.reduce_sum(in_dtype(hidden_ND, self._wide), axis=1)
        for value in self.named_weights().values():
            losses_N += tf.reduce_sum(in_dtype(tf.convert_to_tensor(value)[:0], self._wide))
        return tf.reduce_sum(losses_N) if leading is None else leading.restore(losses_N)

    def _nothing_found(self, leading: Leading, k: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (..., K) of no hidden vectors."""
        shape = [*leading.shape, k]
        return tf.zeros(shape, self._wide), tf.zeros(shape, tf.int32)

    def _plain_total(self, hidden_ND: Tensor, batch: Targets, *, mean: bool, **extra: Tensor) -> Tensor:
        """Return the sum or mean of the losses, by the shortest way that the layer has."""
        real_N = tf.ones_like(batch.words_N, tf.bool) if batch.real_N is None else batch.real_N
        count = tf.maximum(tf.math.count_nonzero(real_N, dtype=tf.int32), 1) if mean else 1
        total = self._reduced(hidden_ND, batch.words_N, real_N, count, **extra)
        if batch.outside_N is None:
            return total
        return tf.where(tf.reduce_any(batch.outside_N), tf.cast(float("nan"), total.dtype), total)

    def _checked_extra(
        self, extra: Tensors, hidden_ND: Tensor, leading: Leading, generator: tf.random.Generator | None
    ) -> Tensors:
        """Return the random inputs of the loss: the checked given ones, and the others drawn."""
        definition = self.spec.definition
        calls.check_extra(definition, extra)
        if definition.extra and "sampled_ids" not in extra:
            extra = {"sampled_ids": self._sampled_ids(hidden_ND, generator), **extra}
        return {name: inputs.check_extra(name, value, self.spec, leading) for name, value in extra.items()}

    def _sampled_ids(self, hidden_ND: Tensor, generator: tf.random.Generator | None) -> Tensor:
        """Draw the sampled words of a batch on the host, as every framework does."""

        def drawn(seed: Any, tokens: Any) -> Any:
            extra = self.spec.draw_extra(np.random.default_rng(int(seed)), tokens=int(tokens))
            return extra["sampled_ids"].astype(np.int32)

        source = generator or tf.random
        seed = source.uniform([], 0, 2**31 - 1, dtype=tf.int32)
        ids = tf.numpy_function(drawn, [seed, tf.shape(hidden_ND)[0]], tf.int32)
        for_each_token = self.spec.definition.extra["sampled_ids"].for_each_token(self.spec.options)
        samples = self.spec.options["samples"]
        return tf.ensure_shape(ids, [hidden_ND.shape[0], samples] if for_each_token else [samples])


def _masked(losses_N: Tensor, batch: Targets) -> Tensor:
    """Return the losses with 0 at padding and NaN where a target is outside the vocabulary."""
    if batch.real_N is not None:
        losses_N = tf.where(batch.real_N, losses_N, tf.zeros_like(losses_N))
    if batch.outside_N is None:
        return losses_N
    return tf.where(batch.outside_N, tf.cast(float("nan"), losses_N.dtype), losses_N)


def _quotient(total: Tensor, divisor: Tensor) -> Tensor:
    """Return `total / divisor`, and `total` where the divisor is 0."""
    return total / tf.where(tf.equal(divisor, 0), tf.ones_like(divisor), divisor)
