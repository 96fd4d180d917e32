"""The base of the native JAX output layers: pure functions of a tree of parameters.

    layer = native(spec)                                # hashable: a static argument under `jax.jit`
    params, structure = layer.init()
    loss = layer.loss(params, structure, hidden_ND, targets_N)

`params` is a dictionary in the layer's own layout: `from_canonical` converts canonical arrays to it, `to_canonical`
converts it back. `structure` holds arrays that are traced like the parameters, but not trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from vocabench.impls import calls
from vocabench.impls.calls import ALL_WORDS, PLAIN, Objective
from vocabench.impls.cpp import CPP
from vocabench.impls.errors import BadInput
from vocabench.impls.forms import on_device
from vocabench.impls.on_jax import inputs, objectives, sampling
from vocabench.impls.on_jax.hooks import Hooks
from vocabench.impls.on_jax.inputs import Targets
from vocabench.impls.on_jax.ops.arrays import Array, Given, Leaves, Tree, aligned, is_known, wide

Reduction = Literal["mean", "sum", "none"]
AxisName = Hashable  # or a tuple of several


class OutputLayer(Hooks):
    """Base of the native layers: the public calls, which check their arguments and flatten leading axes."""

    # Public calls.
    def loss(
        self,
        params: Leaves,
        structure: Leaves,
        hidden: Given,
        targets: Given | Targets,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        token_weight: Given | None = None,
        z_loss: float = 0.0,
        softcap: float | None = None,
        key: Array | None = None,
        **extra: Given,
    ) -> Array:
        """Compute the training loss: the negative log-likelihood in nats, or another loss of the method.

        A target outside the vocabulary is refused where the host can read it: outside of traced functions, on a CPU.
        Elsewhere its loss is NaN.

        Args:
            params: Parameters in the layer's own layout, in any floating dtype.
            structure: Arrays of `structure`.
            hidden: (..., D), any floating dtype; logits and sums are at least float32.
            targets: (...) word ids, or `ignore_index` where a position is padding: it has no loss, no gradient
                and does not count in the mean, whatever `hidden` holds there. The mean over padding alone is 0.
            ignore_index: The target that marks padding.
            reduction: "mean" over the tokens, "sum", or "none" for (...).
            label_smoothing: Share of the uniform distribution in the target distribution (Szegedy et al. 2016).
            token_weight: (...) weights of the losses; the mean is divided by their sum, and is 0 if that is 0.
            z_loss: Coefficient of the squared log-sum-exp of the logits (de Brébisson and Vincent 2016).
            softcap: Replaces the logits by `softcap * tanh(logits / softcap)` (Gemma Team 2024).
            key: Draws the random inputs that `extra` leaves out.
            **extra: Random inputs of the loss, as named by `Definition.extra`; most methods have none.

        Returns:
            At least float32.

        Raises:
            BadInput: An argument has the wrong shape, dtype or value, or the method does not define it.
            TypeError: `extra` has a name that the loss does not take.
        """
        layer, params, structure, kind = self._opened(params, structure)
        hidden_ND, leading = inputs.flat_hidden(hidden, self.spec.dim)
        calls.check_reduction(reduction)
        inputs.check_ignore_index(ignore_index)
        is_read = isinstance(targets, Targets)  # by `training_loss`
        batch = targets if is_read else inputs.read_targets(targets, leading, self.spec.vocab, ignore_index)
        objective = calls.objective_of(self.spec.definition, label_smoothing, z_loss, softcap)
        weight_N = None if token_weight is None else inputs.check_token_weight(token_weight, leading)
        drawn = self._checked_extra(extra, leading, key)
        if hidden_ND.shape[0] == 0:
            return jnp.zeros(leading if reduction == "none" else (), kind)
        hidden_ND = inputs.without_padding(hidden_ND, batch.real_N)
        given = params, structure, hidden_ND, batch, weight_N, drawn
        params, structure, hidden_ND, batch, weight_N, drawn = aligned(given)
        rest = layer, params, structure, hidden_ND, batch
        if objective is PLAIN and weight_N is None and reduction != "none":
            return _plain_total(*rest, mean=reduction == "mean", **drawn).astype(kind)
        losses_N = layer._objective_losses(params, structure, hidden_ND, batch.words_N, objective, **drawn)
        losses_N = _masked(losses_N, batch).astype(kind)
        if weight_N is None:
            share_N = jnp.ones(losses_N.shape[0], kind) if batch.real_N is None else batch.real_N.astype(kind)
            weighted_N = losses_N
        else:
            share_N = weight_N.astype(kind)  # in lower precision their sum could overflow
            share_N = share_N if batch.real_N is None else jnp.where(batch.real_N, share_N, 0)
            weighted_N = losses_N * share_N
        if reduction == "none":
            return weighted_N.reshape(leading)
        if reduction == "sum":
            return weighted_N.sum()
        total = share_N.sum()
        return weighted_N.sum() / jnp.where(total == 0, 1, total)

    def training_loss(
        self,
        params: Leaves,
        structure: Leaves,
        hidden: Given,
        targets: Given,
        *,
        axis_name: AxisName | None = None,
        **options: Any,
    ) -> tuple[Array, Tree]:
        """Return the training loss, as `loss` does, and the structure after the batch.

        A layer that reorganizes records statistics of the batch in the structure; in any other layer the structure
        stays as it is. To differentiate: `jax.value_and_grad(layer.training_loss, has_aux=True)`.

        Args:
            params: As in `loss`.
            structure: As in `loss`.
            hidden: As in `loss`.
            targets: As in `loss`.
            axis_name: The mesh axis over which tokens are split, inside of `jax.shard_map` or `jax.pmap`: the
                statistics are then those of the whole batch. Not needed where arrays are sharded under `jax.jit`.
            **options: Keywords of `loss`.
        """
        params, structure = self._checked(params, structure)
        if self.reorganizes:
            return self._observed_loss(params, structure, hidden, targets, axis_name, **options)
        return self.loss(params, structure, hidden, targets, **options), structure

    def _observed_loss(
        self, params: Tree, structure: Tree, hidden: Given, targets: Given, axis_name: AxisName | None, **options: Any
    ) -> tuple[Array, Tree]:
        """Return what `training_loss` does in a layer that reorganizes."""
        raise NotImplementedError(f"{self.spec.method} has no clusters to reorganize")

    def log_probs(self, params: Leaves, structure: Leaves, hidden: Given, *, softcap: float | None = None) -> Array:
        """Return the (..., V) normalized log-probabilities of the whole vocabulary, at least in float32."""
        layer, params, structure, kind = self._opened(params, structure)
        hidden_ND, leading = inputs.flat_hidden(hidden, self.spec.dim)
        softcap = calls.check_softcap(self.spec.definition, softcap)
        if hidden_ND.shape[0] == 0:
            return jnp.zeros((*leading, self.spec.vocab), kind)
        params, structure, hidden_ND = aligned((params, structure, hidden_ND))
        log_probs_NV = layer._capped_log_probs(params, structure, hidden_ND, softcap)
        return log_probs_NV.astype(kind).reshape(*leading, self.spec.vocab)

    def target_log_probs(
        self, params: Leaves, structure: Leaves, hidden: Given, targets: Given, *, softcap: float | None = None
    ) -> Array:
        """Return the (...) exact log-probabilities of the targets, which are words and not padding."""
        layer, params, structure, kind = self._opened(params, structure)
        hidden_ND, leading = inputs.flat_hidden(hidden, self.spec.dim)
        batch = inputs.read_targets(targets, leading, self.spec.vocab, None)
        objective = Objective(softcap=calls.check_softcap(self.spec.definition, softcap))
        if hidden_ND.shape[0] == 0:
            return jnp.zeros(leading, kind)
        params, structure, hidden_ND, batch = aligned((params, structure, hidden_ND, batch))
        arguments = params, structure, hidden_ND, batch.words_N
        nll_N = (
            layer._nll_of_any(*arguments)
            if objective.softcap is None
            else layer._objective_losses(*arguments, objective)
        )
        return -_masked(nll_N, batch).astype(kind).reshape(leading)

    def nll_parts(self, params: Leaves, structure: Leaves, hidden: Given, targets: Given) -> tuple[Array, ...]:
        """Return (...) summands of the negative log-likelihood, which are reported on their own, the highest first."""
        layer, params, structure, kind = self._opened(params, structure)
        hidden_ND, leading = inputs.flat_hidden(hidden, self.spec.dim)
        batch = inputs.read_targets(targets, leading, self.spec.vocab, None)
        if hidden_ND.shape[0] == 0:
            return (jnp.zeros(leading, kind),)
        params, structure, hidden_ND, batch = aligned((params, structure, hidden_ND, batch))
        parts = layer._nll_parts(params, structure, hidden_ND, batch.words_N)
        return tuple(_masked(part_N, batch).astype(kind).reshape(leading) for part_N in parts)

    def entropy(self, params: Leaves, structure: Leaves, hidden: Given, *, softcap: float | None = None) -> Array:
        """Return the (...) entropies of the distributions in nats; differentiable, without an (N, V) array."""
        layer, params, structure, kind = self._opened(params, structure)
        hidden_ND, leading = inputs.flat_hidden(hidden, self.spec.dim)
        softcap = calls.check_softcap(self.spec.definition, softcap)
        if hidden_ND.shape[0] == 0:
            return jnp.zeros(leading, kind)
        params, structure, hidden_ND = aligned((params, structure, hidden_ND))

        def of_block(hidden_BD: Array) -> Array:
            return layer._entropy(params, structure, hidden_BD, softcap)

        return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND).astype(kind).reshape(leading)

    def topk(
        self, params: Leaves, structure: Leaves, hidden: Given, k: int, *, softcap: float | None = None
    ) -> tuple[Array, Array]:
        """Return the values and ids (..., K) of the k likeliest words: exact, best first, ties by lower id."""
        layer, params, structure, kind = self._opened(params, structure)
        softcap = calls.check_softcap(self.spec.definition, softcap)
        values, ids, _ = self.search(params, structure, hidden, k)
        if softcap is None or not ids.size:
            return values, ids
        hidden_ND, _ = inputs.flat_hidden(hidden, self.spec.dim)

        def of_block(hidden_BD: Array, ids_BK: Array) -> Array:
            log_probs_BV = layer._capped_log_probs(params, structure, hidden_BD, softcap)
            return jnp.take_along_axis(log_probs_BV, ids_BK, axis=1)

        values_NK = objectives.in_blocks(of_block, self.spec.vocab, hidden_ND, ids.reshape(-1, k))
        return values_NK.astype(kind).reshape(ids.shape), ids

    def search(self, params: Leaves, structure: Leaves, hidden: Given, k: int) -> tuple[Array, Array, Array]:
        """Return `topk` and (...) the share of clusters or nodes that were expanded; 1 in a layer without bounds."""
        layer, params, structure, kind = self._opened(params, structure)
        hidden_ND, leading = inputs.flat_hidden(hidden, self.spec.dim)
        k = calls.check_count("k", k, self.spec.vocab)
        if hidden_ND.shape[0] == 0:
            return *_nothing_found(leading, k, kind), jnp.zeros(leading, jnp.float32)
        params, structure, hidden_ND = aligned((params, structure, hidden_ND))
        found = layer._search if is_known(hidden_ND) else partial(Hooks._search, layer)  # which scores all words
        values_NK, ids_NK, share_N = found(params, structure, hidden_ND, k)
        shape = (*leading, k)
        return values_NK.astype(kind).reshape(shape), ids_NK.reshape(shape), share_N.reshape(leading)

    def beam(
        self, params: Leaves, structure: Leaves, hidden: Given, k: int, width: int, levels: int = 1
    ) -> tuple[Array, Array]:
        """Return the values and ids (..., K) of k likely words of the `width` likeliest clusters or prefixes.

        The result is not exact in a layer of several levels. The width is from k to V. Of a binary tree, `levels` are
        searched at a time.
        """
        layer, params, structure, kind = self._opened(params, structure)
        hidden_ND, leading = inputs.flat_hidden(hidden, self.spec.dim)
        k = calls.check_count("k", k, self.spec.vocab)
        width = calls.check_count("width", width, self.spec.vocab, lowest=k)
        levels = calls.check_levels(levels)
        if hidden_ND.shape[0] == 0:
            return _nothing_found(leading, k, kind)
        params, structure, hidden_ND = aligned((params, structure, hidden_ND))
        values_NK, ids_NK = layer._row_by_row(
            lambda layer, rows: layer._path_beam(params, structure, rows, k, width, levels), hidden_ND
        )
        return values_NK.astype(kind).reshape(*leading, k), ids_NK.reshape(*leading, k)

    def sample(
        self,
        params: Leaves,
        structure: Leaves,
        hidden: Given,
        uniforms: Given | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        *,
        key: Array | None = None,
        softcap: float | None = None,
    ) -> Array:
        """Draw (...) words exactly from the distribution, or from what the options leave of it.

        Args:
            params: Parameters.
            structure: Structure.
            hidden: (..., D).
            uniforms: (..., U) numbers in [0, 1), with U = `spec.draws`, as `Layer.sample` describes; drawn from `key`
                if None. With options, the first of them takes the first word whose cumulative probability exceeds it:
                in the order of ids, or from the likeliest word on with `top_k` or `top_p`.
            temperature: Divides the log-probabilities, which are then normalized again.
            top_k: Keeps this many of the likeliest words.
            top_p: Of these, keeps the fewest likeliest words whose probabilities sum to at least this (Holtzman et al.
                2020).
            key: A key of `jax.random`, needed where `uniforms` is left out.
            softcap: As in `loss`.
        """
        layer, params, structure, kind = self._opened(params, structure)
        hidden_ND, leading = inputs.flat_hidden(hidden, self.spec.dim)
        options = calls.check_sampling(temperature, top_k, top_p, self.spec.vocab)
        softcap = calls.check_softcap(self.spec.definition, softcap)
        if uniforms is not None:
            uniforms_NU = inputs.check_uniforms(uniforms, leading, self.spec.draws)
        elif key is not None:
            uniforms_NU = jax.random.uniform(key, (hidden_ND.shape[0], self.spec.draws), kind)
        else:
            raise BadInput("uniforms=None and key=None: allowed: one of the two")
        if hidden_ND.shape[0] == 0:
            return jnp.zeros(leading, jnp.int32)
        given = params, structure, hidden_ND, uniforms_NU
        params, structure, hidden_ND, uniforms_NU = aligned(given)
        if options is ALL_WORDS and softcap is None:
            drawn = lambda layer, *rows: layer._sample(params, structure, *rows)  # noqa: E731
            return layer._row_by_row(drawn, hidden_ND, uniforms_NU).reshape(leading)
        if options.top_k is not None:
            best = layer.topk(params, structure, hidden_ND, options.top_k, softcap=softcap)
            return sampling.of_best(*best, uniforms_NU[:, 0], options).reshape(leading)

        def of_block(hidden_BD: Array, uniforms_B: Array) -> Array:
            log_probs_BV = layer._capped_log_probs(params, structure, hidden_BD, softcap)
            return sampling.of_all(log_probs_BV, uniforms_B, options)

        drawn_N = objectives.in_blocks(of_block, self.spec.vocab, hidden_ND, uniforms_NU[:, 0])
        return drawn_N.astype(jnp.int32).reshape(leading)

    # Shared by the public calls.
    def _opened(self, params: Leaves, structure: Leaves) -> tuple[Self, Tree, Tree, jnp.dtype]:
        """Return the layer for parameters of this precision, the checked trees, and the dtype of losses."""
        tree, arrays = self._checked(params, structure)
        dtype = next(iter(tree.values())).dtype
        if not jnp.issubdtype(dtype, jnp.floating):
            raise BadInput(f"params have dtype {dtype}: allowed: a floating dtype")
        # float16 takes the forms of bfloat16, which are written for any dtype.
        name = {"float16": "bfloat16"}.get(dtype.name, dtype.name)
        layer = self if name == self.spec.storage else self._for_dtype(name)
        return layer, tree, arrays, wide(dtype)

    def _row_by_row(self, compute: Callable[..., Any], *by_token: Array) -> Any:
        """Return `compute(layer, *by_token)`, for a symbolic number of tokens too, as in `jax.export`.

        Tokens that have no number are rows of `jax.vmap`, which a form without C++ kernels computes one at a time.
        """
        if is_known(by_token[0]):
            return compute(self, *by_token)
        layer = self._portable

        def of_row(*row: Array) -> Any:
            return jax.tree.map(lambda array: array[0], compute(layer, *(array[None] for array in row)))

        return jax.vmap(of_row)(*by_token)

    @cached_property
    def _portable(self) -> Self:
        """The same layer in a form without C++ kernels."""
        if self.form != CPP:
            return self
        forms = on_device(type(self).forms(self.spec), "cpu")
        return self.of_spec(replace(self.spec, form=next(form.id for form in forms if form != CPP)))

    @lru_cache(maxsize=4)  # noqa: B019 - a layer is small and lives as long as the functions that it is static in
    def _for_dtype(self, dtype: str) -> Self:
        """Return the same layer for parameters of another precision, in a form that computes with them."""
        return self.of_spec(replace(self.spec, dtype=dtype))

    def _checked_extra(self, extra: dict[str, Given], leading: tuple[int, ...], key: Array | None) -> dict[str, Array]:
        """Return the random inputs of the loss: the checked given ones, and the others drawn."""
        definition = self.spec.definition
        calls.check_extra(definition, extra)
        if definition.extra and "sampled_ids" not in extra:
            if key is None:
                raise BadInput(f"{self.spec.method} has neither sampled_ids nor key: allowed: one of the two")
            extra = {"sampled_ids": self._sampled_ids(key, math.prod(leading)), **extra}
        return {name: inputs.check_extra(name, value, self.spec, leading) for name, value in extra.items()}

    def _sampled_ids(self, key: Array, tokens: int) -> Array:
        """Draw the sampled words of a batch on the host, as every framework does."""
        for_each_token = self.spec.definition.extra["sampled_ids"].for_each_token(self.spec.options)
        if for_each_token and not isinstance(tokens, int):
            raise BadInput(f"sampled_ids is missing for a symbolic number of tokens: allowed: ({tokens}, S) word ids")

        def drawn(data: NDArray) -> NDArray[np.int32]:
            rng = np.random.default_rng(np.asarray(data).ravel())
            return self.spec.draw_extra(rng, tokens=tokens)["sampled_ids"].astype(np.int32)

        data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        samples = int(self.spec.options["samples"])  # type: ignore[call-overload]
        shape = jax.ShapeDtypeStruct((tokens, samples) if for_each_token else (samples,), jnp.int32)
        return jax.pure_callback(drawn, shape, data)


def _plain_total(
    layer: OutputLayer,
    params: Tree,
    structure: Tree,
    hidden_ND: Array,
    batch: Targets,
    *,
    mean: bool,
    **extra: Array,
) -> Array:
    """Return the sum or mean of the negative log-likelihoods, by the shortest way that the layer has."""
    real_N = jnp.ones(hidden_ND.shape[0], bool) if batch.real_N is None else batch.real_N
    count = jnp.maximum(real_N.sum(), 1) if mean else 1
    total = layer._reduced(params, structure, hidden_ND, batch.words_N, real_N, count, **extra)
    return total if batch.outside_N is None else jnp.where(batch.outside_N.any(), jnp.nan, total)


def _masked(losses_N: Array, batch: Targets) -> Array:
    """Return the losses with 0 at padding and NaN where a target is outside the vocabulary."""
    if batch.real_N is not None:
        losses_N = jnp.where(batch.real_N, losses_N, 0)
    return losses_N if batch.outside_N is None else jnp.where(batch.outside_N, jnp.nan, losses_N)


def _nothing_found(leading: tuple[int, ...], k: int, dtype: jnp.dtype) -> tuple[Array, Array]:
    """Return values and ids (..., K) of no hidden vectors."""
    return jnp.zeros((*leading, k), dtype), jnp.zeros((*leading, k), jnp.int32)
