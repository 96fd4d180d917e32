"""What every native JAX output layer is: pure functions over a tree of parameters.

    layer = LAYER(spec)
    structure = layer.structure()                       # arrays that shape the layer: traced, never compiled in
    loss = layer.loss(params, structure, hidden_ND, targets_N)

`params` is a dictionary in the layer's own layout; `from_canonical` makes it from canonical arrays, `to_canonical`
undoes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import ArrayLike

from vocabench.impls import cpp
from vocabench.impls.forms import Form, on_device
from vocabench.impls.spec import LayerSpec

Array = jax.Array
Tree = dict[str, Array]
Reduction = Literal["mean", "sum", "none"]


class Reach(NamedTuple):
    """A batch whose loss reads few rows of a layer, as a batch of a layer of these rows alone.

    Attributes:
        rows: Lists (U,) as in `sparse_rows`, of the parameters that are to be tables of rows.
        structure, targets_N, extra: What `loss` takes besides these tables and the hidden vectors.
    """

    rows: Tree
    structure: Tree
    targets_N: Array
    extra: dict[str, Any]


class OutputLayer(ABC):
    """Base of the native layers. It holds sizes and options, no array that is trained or moved."""

    FORMS: ClassVar[tuple[Form, ...]] = ()  # in order of preference for each kind of device
    FEW_ROWS: ClassVar[tuple[str, ...]] = ()  # parameters of which a batch's loss reads few rows

    def __init__(self, spec: LayerSpec) -> None:
        self.spec = spec
        forms = self.forms(spec)
        # The device is not known yet: without a request, the form suits JAX's default backend.
        self.form = spec.form_of(forms if spec.form else on_device(forms, jax.default_backend()))

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        """`FORMS`, or those that a layer of this spec has."""
        return cls.FORMS

    def structure(self) -> Tree:
        """Arrays that the functions read besides the parameters."""
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
        """Negative log-likelihood in nats, or what else the method trains by.

        Args:
            hidden_ND: (N, D), any floating dtype; logits and sums are float32 at least.
            targets_N: (N,) word ids, or `ignore_index` where a position is padding: it has no loss, no gradient
                and does not count in the mean. The mean over padding alone is 0.
            reduction: "mean" over the tokens, "sum", or "none" for (N,).
            **extra: The loss's random inputs, as `Definition.extra` names them; most methods have none.
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
        """The sum of all losses but those of padding, over `count`: a layer may know a shorter way to it."""
        return jnp.where(real_N, self.losses(params, structure, hidden_ND, targets_N, **extra), 0).sum() / count

    def losses(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array, **extra: Array) -> Array:
        """(N,) what training minimizes."""
        return self.nll(params, structure, hidden_ND, targets_N)

    def reach(self, structure: Tree, targets_N: Array, **extra: Array) -> Reach:
        """The rows of `FEW_ROWS` that the loss of these targets reads; none of them may be `ignore_index`."""
        return Reach({}, structure, targets_N, extra)

    @abstractmethod
    def nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        """(N,) negative log-likelihoods, differentiable by `params` and `hidden_ND`."""

    @abstractmethod
    def log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        """(N, V) normalised log-probabilities over the whole vocabulary."""

    def topk(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array]:
        """Values and ids (N, K) of the k likeliest words: exact, best first, ties by lower id."""
        return self.search(params, structure, hidden_ND, k)[:2]

    def search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        """`topk`, and (N,) which share of its clusters or nodes the layer expanded for it: 1 where it has no bounds."""
        values_NK, ids_NK = jax.lax.top_k(self.log_probs(params, structure, hidden_ND), k)  # ties by lower id
        return values_NK, ids_NK, jnp.ones(len(hidden_ND), jnp.float32)

    def beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> tuple[Array, Array]:
        """Values and ids (N, K) of k likely words, following the `width` likeliest clusters or prefixes of a level; not
        exact where there are several levels."""
        return self.topk(params, structure, hidden_ND, k)

    def sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """(N,) words drawn exactly from the distribution, by the uniform numbers that `Layer.sample` describes."""
        return draw(jnp.exp(self.log_probs(params, structure, hidden_ND)), uniforms_NU[:, 0])

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        return dict(tree)

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        return dict(tree)

    def formulation(self) -> str:
        return cpp.formulation(self.form)


def wide(dtype: jnp.dtype) -> jnp.dtype:
    """What sums and exponentials are computed in: float32 for half precision, else `dtype` itself."""
    return jnp.promote_types(dtype, jnp.float32)


def put(array: ArrayLike, dtype: DTypeLike | None = None, device: Any = None) -> Array:
    """An array of the host on a device. Cast and copied on the host: `jnp.asarray` compiles a program a shape."""
    return jax.device_put(np.array(array, dtype), device)


def product(left: Array, right: Array) -> Array:
    """`left @ right.T` in the dtype of `right`, summed and returned in at least float32."""
    left = left.astype(right.dtype)
    rows = _half_product(left, right) if wide(right.dtype) != right.dtype else jnp.matmul(left, right.T)
    # What is added to a single row XLA would merge with it, into a loop that takes up to ten times as long.
    return jax.lax.optimization_barrier(rows) if len(left) == 1 else rows


@jax.custom_vjp
def _half_product(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right.T, preferred_element_type=wide(right.dtype))


def _half_product_forward(left: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
    return _half_product(left, right), (left, right)


def _half_product_backward(factors: tuple[Array, Array], dproduct: Array) -> tuple[Array, Array]:
    """In half precision as well: left to itself, JAX widens the factor that meets the wide gradient, and both products
    take the time of float32's."""
    left, right = factors
    dproduct = dproduct.astype(right.dtype)
    return jnp.matmul(dproduct, right), jnp.matmul(dproduct.T, left)


_half_product.defvjp(_half_product_forward, _half_product_backward)


def log_softmax(logits_NV: Array) -> Array:
    """Of so many words that (N, V) is large, of which XLA on a CPU makes `jax.nn.log_softmax` in twice the time."""
    return logits_NV - jax.nn.logsumexp(logits_NV, axis=1, keepdims=True)


def draw(probabilities_NV: Array, uniforms_N: Array) -> Array:
    """(N,) the first column whose cumulative probability exceeds the uniform number's share of the sum; column 0 where
    none does, as of probabilities that are no numbers."""
    cumulative_NV = jnp.cumsum(probabilities_NV, axis=1)
    return jnp.argmax(cumulative_NV > uniforms_N[:, None] * cumulative_NV[:, -1:], axis=1)


def pick(scores_NV: Array, index_N: Array) -> Array:
    """(N,) one entry of each row."""
    return jnp.take_along_axis(scores_NV, index_N[:, None], axis=1)[:, 0]
