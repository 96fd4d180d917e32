"""The base class of the native TensorFlow output layers, which are Keras layers, and operations that they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar, Literal, NamedTuple

import keras
import tensorflow as tf

from vocabench.impls import cpp
from vocabench.impls.forms import GPU, Form, on_device
from vocabench.impls.spec import LayerSpec, Shapes

Tensor = Any  # tf.Tensor, which carries no usable annotations
Tensors = dict[str, Tensor]
Reduction = Literal["mean", "sum", "none"]

# Traces a function into a graph, without AutoGraph. AutoGraph rewrites the source of everything that is called, to
# support Python's control flow over tensors. It is not used here, and takes most of the time of a trace.
traced = partial(tf.function, autograph=False)

XLA, OWN_KERNELS = Form("xla", "XLA"), Form("tensorflow", "TensorFlow's own kernels")

_SPARE = 8  # candidates beyond the k best, among which ties are settled


class Reach(NamedTuple):
    """The loss of a batch as a function of the few rows that it reads.

    Attributes:
        rows: Row numbers (U,) by weight name, without duplicates, for the weights of which only these rows are read.
        loss: Maps hidden vectors (N, D) and a table (U, ...) of the rows of each such weight to the mean training loss.
    """

    rows: Tensors
    loss: Callable[[Tensor, Tensors], Tensor]


class OutputLayer(keras.layers.Layer):
    """Base class of the native layers: `loss = layer(hidden_ND, targets_N)` inside any model.

    The weights may be stored differently from their canonical form (`impls/spec.py`). `to_canonical` and
    `from_canonical` convert dictionaries of weights, gradients or optimizer slots.
    """

    FORMS: ClassVar[tuple[Form, ...]] = ()  # in order of preference for each kind of device
    FEW_ROWS: ClassVar[tuple[str, ...]] = ()  # weights of which the loss of a batch reads few rows

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(dtype=spec.storage, **keyword)
        self.spec = spec
        forms = self.forms(spec)
        self.form = spec.form_of(forms if spec.form or not on_gpu() else on_device(forms, GPU))
        for name, shape in self.inner_shapes().items():
            setattr(self, name, self.add_weight(name=name, shape=shape, initializer="zeros", dtype=spec.storage))
        self.built = True

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        """Return the forms of a layer of this spec, on all kinds of device."""
        return cls.FORMS

    @property
    def one_operation(self) -> tuple[str, ...]:
        """Those of `search` and `beam` that are a single C++ operation for few rows.

        TensorFlow calls a single operation in half the time that it takes to call a graph around it.
        """
        return ()

    @property
    def jit_compile(self) -> bool:
        """Whether XLA compiles the functions that call the layer."""
        return self.form == XLA

    @property
    def reorganizes(self) -> bool:
        """Whether training moves words to other clusters, as SOHSM's `reorganize` does."""
        return False

    def inner_shapes(self) -> Shapes:
        """Return the shapes of the weights as they are stored."""
        return self.spec.parameter_shapes()

    def value_of(self, name: str) -> Tensor:
        """Return the variable behind a weight, or None if the layer has no weight of that name."""
        weight = getattr(self, name, None)
        return None if weight is None else weight.value

    def named_weights(self) -> Tensors:
        """Return the variables of all weights by name."""
        return {name: self.value_of(name) for name in self.inner_shapes()}

    def call(
        self,
        hidden_ND: Tensor,
        targets_N: Tensor,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        **extra: Tensor,
    ) -> Tensor:
        """Compute the training loss: the negative log-likelihood in nats, or another loss of the method.

        Args:
            hidden_ND: (N, D), any floating dtype; logits and sums are at least float32.
            targets_N: (N,) word ids, or `ignore_index` where a position is padding: it has no loss, no gradient
                and does not count in the mean. The mean over padding alone is 0.
            ignore_index: The target that marks padding.
            reduction: "mean" over the tokens, "sum", or "none" for (N,).
            **extra: Random inputs of the loss, as named by `Definition.extra`; most methods have none.
        """
        real_N = tf.not_equal(targets_N, ignore_index)
        inside_N = tf.where(real_N, targets_N, tf.zeros_like(targets_N))
        if reduction == "none":
            return self._real_losses(hidden_ND, inside_N, real_N, **extra)
        count = 1 if reduction == "sum" else tf.maximum(tf.math.count_nonzero(real_N), 1)
        return self.reduced(hidden_ND, inside_N, real_N, count, **extra)

    def reduced(
        self, hidden_ND: Tensor, targets_N: Tensor, real_N: Tensor, count: Tensor | int, **extra: Tensor
    ) -> Tensor:
        """Return the sum of the losses without padding, divided by `count`. Layers with a shorter way override it."""
        total = tf.reduce_sum(self._real_losses(hidden_ND, targets_N, real_N, **extra))
        return total / tf.cast(count, total.dtype)

    def _real_losses(self, hidden_ND: Tensor, targets_N: Tensor, real_N: Tensor, **extra: Tensor) -> Tensor:
        losses_N = self.losses(hidden_ND, targets_N, **extra)
        return tf.where(real_N, losses_N, tf.zeros_like(losses_N))

    def losses(self, hidden_ND: Tensor, targets_N: Tensor, **extra: Tensor) -> Tensor:
        """Return the (N,) losses that training minimizes."""
        return self.nll(hidden_ND, targets_N)

    def reach(self, targets_N: Tensor, **extra: Tensor) -> Reach:
        """Return the rows of `FEW_ROWS` that the loss of these targets reads. No target may be `ignore_index`."""
        return Reach({}, lambda hidden_ND, tables: self(hidden_ND, targets_N, **extra))

    @abstractmethod
    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) negative log-likelihoods, differentiable."""

    def nll_parts(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, ...]:
        """Return (N,) summands of `nll`: one for each level that is reported on its own, the highest first."""
        return (self.nll(hidden_ND, targets_N),)

    @abstractmethod
    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N, V) normalized log-probabilities over the whole vocabulary."""

    def target_log_probs(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) exact log-probabilities of the targets."""
        return -self.nll(hidden_ND, targets_N)

    def topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words: exact, best first, ties by lower id."""
        return self.search(hidden_ND, k)[:2]

    def search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the results of `topk`, and the (N,) share of the layer's clusters or nodes that it expanded.

        The share is 1 for layers without bounds.
        """
        return *tf.math.top_k(self.log_probs(hidden_ND), k), tf.ones(tf.shape(hidden_ND)[:1])

    def beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of k likely words, following the `width` likeliest clusters or prefixes.

        The width applies to each level. The result is not exact if there are several levels.
        """
        return self.topk(hidden_ND, k)

    def sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words drawn exactly from the distribution, with the uniform numbers of `Layer.sample`."""
        return draw(tf.exp(self.log_probs(hidden_ND)), uniforms_NU[:, 0])

    def to_canonical(self, tensors: Tensors) -> Tensors:
        """Convert weights, gradients or optimizer slots to their canonical form."""
        return dict(tensors)

    def from_canonical(self, tensors: Tensors) -> Tensors:
        """Convert weights, gradients or optimizer slots from their canonical form."""
        return dict(tensors)

    def load_canonical(self, tensors: Tensors) -> None:
        """Assign weights in canonical form."""
        variables = self.named_weights()
        dtype = next(iter(variables.values())).dtype  # the same for all weights
        cast = {name: tf.cast(value, dtype) for name, value in tensors.items()}
        for name, value in self.from_canonical(cast).items():
            variables[name].assign(value)

    def formulation(self) -> str:
        """Return a description of the form that runs; empty if there is only one."""
        return cpp.formulation(self.form)


@cache
def on_gpu() -> bool:
    """Return whether there is a GPU, on which few large operations are faster than loops that do less work.

    Each iteration of a loop is several kernel launches there.
    """
    return bool(tf.config.list_logical_devices("GPU"))


def add_rows(array: Tensor, rows_M: Tensor, added: Tensor) -> Tensor:
    """Add `added` to rows of `array`, on a CPU in place: nothing else may read `array`.

    `tensor_scatter_nd_add` copies the array, which on a CPU costs more than the products that computed it. On a GPU the
    addition in place is not atomic, so that additions to duplicate rows would be lost.
    """
    if on_gpu():
        return tf.tensor_scatter_nd_add(array, rows_M[:, None], added)
    return tf.raw_ops.InplaceAdd(x=array, i=rows_M, v=added)


def look_up(table: Tensor | tf.Variable, ids: Tensor) -> Tensor:
    """Return the rows of a table for these ids.

    After `tf.gather` has read a variable directly, TensorFlow copies it for each later reader of the whole, such as an
    optimizer with weight decay in every step.
    """
    return tf.gather(tf.convert_to_tensor(table), ids)


def in_dtype(tensor: Tensor, dtype: tf.DType) -> Tensor:
    """Cast a tensor if necessary. `tf.cast` takes 0.05 ms even if it has nothing to do."""
    return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Widen half precision to float32, as before exponentials are summed; float32 and float64 stay as they are."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.bfloat16, tf.float16) else tensor


def draw(probabilities_NV: Tensor, uniforms_N: Tensor) -> Tensor:
    """Return (N,) the first column whose cumulative probability exceeds the uniform number times the sum.

    Column 0 if there is none, as for probabilities that are NaN.
    """
    cumulative_NV = tf.cumsum(probabilities_NV, axis=1)
    share_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    # `searchsorted` returns the number of columns if there is none.
    return tf.searchsorted(cumulative_NV, share_N1, side="right")[:, 0] % tf.shape(cumulative_NV)[1]


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ right^T` in the dtype of `right`."""
    return tf.matmul(tf.cast(left, right.dtype), right, transpose_b=True)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of the target of each row."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)


def best_by_id(values_NX: Tensor, ids_NX: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best candidates (N, X) of each row with their ids: best first, ties by lower id.

    `top_k` prefers the first of equal values. If the best candidates contain ties, a few more than k candidates are
    sorted by id first, or all candidates if the last of these still equals the k-th.
    """
    wide = tf.minimum(k + _SPARE, tf.shape(values_NX)[1])
    values_NM, place_NM = tf.math.top_k(values_NX, wide)
    ids_NM = tf.gather(ids_NX, place_NM, batch_dims=1)

    def sorted_best(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        order = tf.argsort(ids, axis=1)
        best_NK, place_NK = tf.math.top_k(tf.gather(values, order, batch_dims=1), k)
        return best_NK, tf.gather(ids, tf.gather(order, place_NK, batch_dims=1), batch_dims=1)

    def best_of_tied() -> tuple[Tensor, Tensor]:
        more = (wide < tf.shape(values_NX)[1]) & tf.reduce_any(tf.equal(values_NM[:, -1], values_NM[:, k - 1]))
        return tf.cond(more, lambda: sorted_best(values_NX, ids_NX), lambda: sorted_best(values_NM, ids_NM))

    tied = tf.reduce_any(tf.equal(values_NM[:, 1 : k + 1], values_NM[:, : tf.minimum(k, wide - 1)]))
    return tf.cond(tied, best_of_tied, lambda: (values_NM[:, :k], ids_NM[:, :k]))
