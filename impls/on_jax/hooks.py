"""The hooks that the native JAX layers implement: the computations behind the public calls of `layer.py`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from vocabench.impls import calls, cpp
from vocabench.impls.calls import Objective
from vocabench.impls.forms import Form, on_device
from vocabench.impls.on_jax import objectives
from vocabench.impls.on_jax.canonical import Convertible
from vocabench.impls.on_jax.ops.arrays import (
    Array,
    Tree,
    draw,
    is_known,
    log_softmax,
    pick,
    plus_bias,
    varying_as,
)
from vocabench.impls.spec import LayerSpec


class Reach(NamedTuple):
    """A batch whose loss reads few rows of a layer, expressed as a batch of a layer that has only these rows.

    Attributes:
        rows: Lists (U,) of row numbers, as in `sparse_rows`, by the name of the parameter.
        structure: Structure of the layer that has only these rows.
        targets_N: Targets in that layer.
        extra: Random inputs of the loss in that layer.
    """

    rows: Tree
    structure: Tree
    targets_N: Array
    extra: dict[str, Any]


class Hooks(Convertible):
    """What a layer is made of, and what each method implements.

    A layer holds sizes and options, and no array that is trained or moved to a device. Layers of equal specifications
    and forms are equal and have the same hash, so that a layer can be a static argument of a compiled function.

    Attributes:
        FORMS: The forms that a layer of this class can have, in order of preference for each kind of device.
        FEW_ROWS: The names of parameters whose rows are few in the loss of a batch.
    """

    FORMS: ClassVar[tuple[Form, ...]] = ()
    FEW_ROWS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        forms = self.forms(spec)
        # The device is not known yet: without a request, the form suits JAX's default backend.
        self.form = spec.form_of(forms if spec.form else on_device(forms, jax.default_backend()))

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        """Return the forms that a layer of this spec has, in order of preference for each kind of device."""
        return cls.FORMS

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hooks) and (self is other or self._key == other._key)

    @cached_property
    def _key(self) -> tuple[Hashable, ...]:
        """Everything that determines what the layer computes and how."""
        return type(self), self.spec, self.form

    # Implemented by the layers, for (N, D) hidden vectors and (N,) int32 words of the vocabulary.
    @abstractmethod
    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        """Return the (N,) negative log-likelihoods, differentiable with respect to `params` and `hidden_ND`."""

    @abstractmethod
    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        """Return the (N, V) normalized log-probabilities of the whole vocabulary."""

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
        """Return the sum of the losses without padding, over `count`. Layers override it if there is a shorter way."""
        return jnp.where(real_N, self._losses(params, structure, hidden_ND, targets_N, **extra), 0).sum() / count

    def _losses(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array, **extra: Array) -> Array:
        """Return the (N,) losses that training minimizes."""
        return self._nll_of_any(params, structure, hidden_ND, targets_N)

    def _nll_of_any(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        """Return what `_nll` does, for a symbolic number of tokens too, as in `jax.export`.

        Tokens that have no number cannot be cut into blocks, and all words are scored for each.
        """
        if is_known(hidden_ND):
            return self._nll(params, structure, hidden_ND, targets_N)
        return -pick(self._log_probs(params, structure, hidden_ND), targets_N)

    def _nll_parts(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> tuple[Array, ...]:
        """Return (N,) summands of `_nll`: one for each level that is reported on its own, the highest first."""
        return (self._nll(params, structure, hidden_ND, targets_N),)

    def _mean_log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        """Return the (N,) means over all words of their log-probabilities."""

        def of_block(hidden_BD: Array) -> Array:
            return self._log_probs(params, structure, hidden_BD).mean(axis=1)

        return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND)

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        values_NK, ids_NK = jax.lax.top_k(self._log_probs(params, structure, hidden_ND), k)  # ties by lower id
        return values_NK, ids_NK, jnp.ones(hidden_ND.shape[0], jnp.float32)

    def _beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> tuple[Array, Array]:
        return self._search(params, structure, hidden_ND, k)[:2]

    def _path_beam(
        self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int, levels: int
    ) -> tuple[Array, Array]:
        return self._beam(params, structure, hidden_ND, k, width)

    def _sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        return draw(jnp.exp(self._log_probs(params, structure, hidden_ND)), uniforms_NU[:, 0])

    # Implemented by layers with one softmax over the vocabulary.
    def _bias(self, params: Tree, name: str = "bias") -> Array:
        """Return a bias, or zeros for a layer without biases."""
        if name in params:
            return params[name]
        like = next(iter(params.values()))
        return varying_as(like, jnp.zeros(self.spec.definition.shapes(self.spec)[name], like.dtype))

    def _plus_bias(self, scores_NW: Array, params: Tree, name: str = "bias") -> Array:
        """Return scores with a bias added, or as they are for a layer without biases."""
        return plus_bias(scores_NW, params[name]) if name in params else scores_NW

    def _logits(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        """Return the (N, V) logits, words in order of their ids, at least in float32."""
        raise NotImplementedError(f"{self.spec.method} has no softmax over the whole vocabulary")

    def _target_logits(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        """Return the (N,) logits of the targets."""
        return pick(self._logits(params, structure, hidden_ND), targets_N)

    def _mean_logits(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        """Return the (N,) means over all words of their logits."""
        return self._logits(params, structure, hidden_ND).mean(axis=1)

    def _objective_losses(
        self,
        params: Tree,
        structure: Tree,
        hidden_ND: Array,
        targets_N: Array,
        objective: Objective,
        **extra: Array,
    ) -> Array:
        """Return the (N,) losses of `Objective`, at padding too."""
        softcap = objective.softcap
        if softcap is not None:

            def of_block(hidden_BD: Array, targets_B: Array) -> Array:
                logits_BV = objectives.capped(self._logits(params, structure, hidden_BD), softcap)
                return objectives.losses_of_logits(logits_BV, targets_B, objective)

            return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND, targets_N)
        return calls.objective_losses(
            self.spec.definition,
            objective,
            self._losses(params, structure, hidden_ND, targets_N, **extra),
            mean_log_probs=lambda: self._mean_log_probs(params, structure, hidden_ND),
            target_logits=lambda: self._target_logits(params, structure, hidden_ND, targets_N),
            mean_logits=lambda: self._mean_logits(params, structure, hidden_ND),
        )

    def _capped_log_probs(self, params: Tree, structure: Tree, hidden_ND: Array, softcap: float | None) -> Array:
        if softcap is None:
            return self._log_probs(params, structure, hidden_ND)
        return log_softmax(objectives.capped(self._logits(params, structure, hidden_ND), softcap))

    def _entropy(self, params: Tree, structure: Tree, hidden_ND: Array, softcap: float | None) -> Array:
        """Return the (N,) entropies of the distributions in nats."""
        return objectives.entropy(self._capped_log_probs(params, structure, hidden_ND, softcap))

    # For training and conversion.
    def reach(self, structure: Tree, targets_N: Array, **extra: Array) -> Reach:
        """Return the rows of `FEW_ROWS` that the loss of these targets reads. No target may be `ignore_index`."""
        return Reach({}, structure, targets_N, extra)

    def loss_of_reach(self, params: Tree, reach: Reach, hidden_ND: Array) -> Array:
        """Return the mean loss of a batch as `reach` describes it; its targets are rows and need not be words."""
        tokens = reach.targets_N.shape[0]
        real_N = jnp.ones(tokens, bool)
        return self._reduced(params, reach.structure, hidden_ND, reach.targets_N, real_N, tokens, **reach.extra)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec.sizes()})"

    def formulation(self) -> str:
        """Return the description of the form, as rows show it."""
        return cpp.formulation(self.form)
