"""The base of the native JAX output layers: pure functions of a tree of parameters.

    layer = native(spec)                                # hashable: a static argument under `jax.jit`
    params, structure = layer.init()
    loss = layer.loss(params, structure, hidden_ND, targets_N)

`params` is a dictionary in the layer's own layout: `from_canonical` converts canonical arrays to it, `to_canonical`
converts it back. `structure` holds arrays that are traced like the parameters, but not trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from vocabench.impls import cpp
from vocabench.impls.forms import Form, on_device
from vocabench.impls.on_jax.device import JAX_DTYPES, Device, precision, put
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures.statistics import BatchWeights

Array = jax.Array
Tree = dict[str, Array]
Reduction = Literal["mean", "sum", "none"]


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


class OutputLayer(ABC):
    """Base of the native layers. A layer holds sizes and options, and no array that is trained or moved to a device.

    Layers of equal specifications and forms are equal and have the same hash, so that a layer can be a static argument
    of a compiled function.

    Attributes:
        FORMS: The forms that a layer of this class can have, in order of preference for each kind of device.
        FEW_ROWS: The names of parameters whose rows are few in the loss of a batch.
    """

    FORMS: ClassVar[tuple[Form, ...]] = ()
    FEW_ROWS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: LayerSpec) -> None:
        self.spec = spec
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
        return isinstance(other, OutputLayer) and (self is other or self._key == other._key)

    @cached_property
    def _key(self) -> tuple[Hashable, ...]:
        """Everything that determines what the layer computes and how."""
        return type(self), self.spec, self.form

    def init(self, seed: int | None = None, device: Device | None = None) -> tuple[Tree, Tree]:
        """Create the initial parameters, in the layer's own layout and dtype, and the structure.

        Args:
            seed: Seed of the initial parameters; the specification's seed if None. The structure does not depend on it.
            device: Where the arrays are placed; JAX's default device if None.

        Returns:
            The parameters and the structure.
        """
        spec = self.spec if seed is None else replace(self.spec, seed=seed)
        with precision(spec.dtype), nullcontext() if device is None else jax.default_device(device):
            structure = jax.device_put(self.structure(), device)
            canonical = spec.initial_parameters()
            params = {name: put(value, JAX_DTYPES[spec.dtype], device) for name, value in canonical.items()}
            return self.from_canonical(structure, params), structure

    def structure(self) -> Tree:
        """Return the arrays that the functions read besides the parameters."""
        return {}

    def loss(
        self,
        params: Tree,
        structure: Tree,
        hidden_ND: Array,
        targets_N: Array,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        **extra: Array,
    ) -> Array:
        """Compute the training loss: the negative log-likelihood in nats, or another loss of the method.

        Args:
            params: Parameters in the layer's own layout.
            structure: Arrays of `structure`.
            hidden_ND: (N, D), any floating dtype; logits and sums are at least float32.
            targets_N: (N,) word ids, or `ignore_index` where a position is padding: it has no loss, no gradient
                and does not count in the mean. The mean over padding alone is 0.
            ignore_index: The target that marks padding.
            reduction: "mean" over the tokens, "sum", or "none" for (N,).
            **extra: Random inputs of the loss, as named by `Definition.extra`; most methods have none.
        """
        real_N = targets_N != ignore_index
        inside_N = jnp.where(real_N, targets_N, 0)
        if reduction == "none":
            return jnp.where(real_N, self.losses(params, structure, hidden_ND, inside_N, **extra), 0)
        count = 1 if reduction == "sum" else jnp.maximum(real_N.sum(), 1)
        return self.reduced(params, structure, hidden_ND, inside_N, real_N, count, **extra)

    def reduced(
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
        return jnp.where(real_N, self.losses(params, structure, hidden_ND, targets_N, **extra), 0).sum() / count

    def losses(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array, **extra: Array) -> Array:
        """Return the (N,) losses that training minimizes."""
        return self.nll(params, structure, hidden_ND, targets_N)

    def reach(self, structure: Tree, targets_N: Array, **extra: Array) -> Reach:
        """Return the rows of `FEW_ROWS` that the loss of these targets reads. No target may be `ignore_index`."""
        return Reach({}, structure, targets_N, extra)

    @abstractmethod
    def nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        """Return the (N,) negative log-likelihoods, differentiable with respect to `params` and `hidden_ND`."""

    def nll_parts(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> tuple[Array, ...]:
        """Return (N,) summands of `nll`: one for each level that is reported on its own, the highest first."""
        return (self.nll(params, structure, hidden_ND, targets_N),)

    @property
    def reorganizes(self) -> bool:
        """Whether training moves words to other clusters, as SOHSM does."""
        return False

    def blank_statistics(self) -> Array | None:
        """Return the statistics before the first batch, in a layer that reorganizes; None in any other."""
        return None

    def observed_loss(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> tuple[Array, Array]:
        """Return the mean loss, and (N, C) log P(c | h) for `observe`, in a layer that reorganizes."""
        raise NotImplementedError(f"{self.spec.method} has no clusters to reorganize")

    def observe(self, statistics_VC: Array, log_cluster_NC: Array, weights: BatchWeights) -> Array:
        """Return the statistics after one more batch, in a layer that reorganizes."""
        raise NotImplementedError(f"{self.spec.method} has no clusters to reorganize")

    def reorganized(
        self, structure: Tree, statistics_VC: Array, rng: np.random.Generator
    ) -> tuple[Tree, NDArray[np.int64], NDArray[np.int64]]:
        """Return a new structure and the cluster of each word (V,) before and after, in a layer that reorganizes."""
        raise NotImplementedError(f"{self.spec.method} has no clusters to reorganize")

    def moved(self, tree: Tree, before: Tree, after: Tree) -> Tree:
        """Convert parameters, or an optimizer's slots, from the layout of one structure to that of another."""
        return self.from_canonical(after, self.to_canonical(before, tree))

    @abstractmethod
    def log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        """Return the (N, V) normalized log-probabilities of the whole vocabulary."""

    def topk(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array]:
        """Return the values and ids (N, K) of the k likeliest words: exact, best first, ties by lower id."""
        return self.search(params, structure, hidden_ND, k)[:2]

    def search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        """Return `topk` and (N,) the share of clusters or nodes that were expanded; 1 in a layer without bounds."""
        values_NK, ids_NK = jax.lax.top_k(self.log_probs(params, structure, hidden_ND), k)  # ties by lower id
        return values_NK, ids_NK, jnp.ones(len(hidden_ND), jnp.float32)

    def beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> tuple[Array, Array]:
        """Return the values and ids (N, K) of k likely words of the `width` likeliest clusters or prefixes.

        The result is not exact in a layer of several levels.
        """
        return self.topk(params, structure, hidden_ND, k)

    def sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """Draw (N,) words exactly from the distribution, with the uniform numbers that `Layer.sample` describes."""
        return draw(jnp.exp(self.log_probs(params, structure, hidden_ND)), uniforms_NU[:, 0])

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        """Convert parameters, gradients or optimizer slots from the layer's own layout to the canonical one."""
        return dict(tree)

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        """Convert parameters, gradients or optimizer slots from the canonical layout to the layer's own."""
        return dict(tree)

    def formulation(self) -> str:
        """Return the description of the form, as rows show it."""
        return cpp.formulation(self.form)


def wide(dtype: jnp.dtype) -> jnp.dtype:
    """Return the dtype for sums and exponentials: float32 for half precision, else `dtype` itself."""
    return jnp.promote_types(dtype, jnp.float32)


def product(left: Array, right: Array) -> Array:
    """Return `left @ right.T`, multiplied in the dtype of `right`, and summed and returned in at least float32."""
    left = left.astype(right.dtype)
    rows = _half_product(left, right) if wide(right.dtype) != right.dtype else jnp.matmul(left, right.T)
    # XLA would fuse the product of a single row with a following addition into a loop that is up to ten times slower.
    return jax.lax.optimization_barrier(rows) if len(left) == 1 else rows


@jax.custom_vjp
def _half_product(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right.T, preferred_element_type=wide(right.dtype))


def _half_product_forward(left: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
    return _half_product(left, right), (left, right)


def _half_product_backward(factors: tuple[Array, Array], dproduct: Array) -> tuple[Array, Array]:
    """Compute both products in half precision. JAX's own rule would widen a factor, and compute them in float32."""
    left, right = factors
    dproduct = dproduct.astype(right.dtype)
    return jnp.matmul(dproduct, right), jnp.matmul(dproduct.T, left)


_half_product.defvjp(_half_product_forward, _half_product_backward)


def log_softmax(logits_NV: Array) -> Array:
    """Compute the log-softmax. For large arrays XLA on a CPU takes twice as long for `jax.nn.log_softmax`."""
    return logits_NV - jax.nn.logsumexp(logits_NV, axis=1, keepdims=True)


def draw(probabilities_NV: Array, uniforms_N: Array) -> Array:
    """Return (N,) the first column whose cumulative probability exceeds this share of the sum.

    The result is column 0 where no column does, as for probabilities that are NaN.
    """
    cumulative_NV = jnp.cumsum(probabilities_NV, axis=1)
    return jnp.argmax(cumulative_NV > uniforms_N[:, None] * cumulative_NV[:, -1:], axis=1)


def pick(scores_NV: Array, index_N: Array) -> Array:
    """Return (N,) one entry of each row."""
    return jnp.take_along_axis(scores_NV, index_N[:, None], axis=1)[:, 0]
