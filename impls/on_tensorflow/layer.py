"""What every native TensorFlow output layer is: a Keras layer from hidden vectors to losses and log-probabilities."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar, Literal, NamedTuple

import keras
import tensorflow as tf

from vocabench.impls import cpp
from vocabench.impls.forms import Form, on_device
from vocabench.impls.spec import LayerSpec, Shapes

Tensor = Any  # tf.Tensor, which carries no usable annotations
Reduction = Literal["mean", "sum", "none"]
Tensors = dict[str, Tensor]

# A graph of a function, without AutoGraph: it rewrites the source of all that is called, for Python's control flow over
# tensors, of which there is none here, and takes most of the time of a trace.
traced = partial(tf.function, autograph=False)


XLA, OWN_KERNELS = Form("xla", "XLA"), Form("tensorflow", "TensorFlow's own kernels")


class Reach(NamedTuple):
    """A batch's loss as a function of the few rows that it reads.

    Attributes:
        rows: (U,) of each weight that only these rows are read of, each once.
        loss: From the hidden vectors (N, D) and a table (U, ...) of each weight's rows to the mean training loss.
    """

    rows: Tensors
    loss: Callable[[Tensor, Tensors], Tensor]


class OutputLayer(keras.layers.Layer):
    """Base of the native layers: `loss = layer(hidden_ND, targets_N)` inside any model.

    Weights may lie otherwise inside than their canonical form (`impls/spec.py`); `to_canonical` and `from_canonical`
    map whole dictionaries of weights, gradients or optimizer slots either way.
    """

    FORMS: ClassVar[tuple[Form, ...]] = ()  # in order of preference for each kind of device
    FEW_ROWS: ClassVar[tuple[str, ...]] = ()  # weights of which a batch's loss reads few rows

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(dtype=spec.storage, **keyword)
        self.spec = spec
        forms = self.forms(spec)
        self.form = spec.form_of(forms if spec.form or not on_gpu() else on_device(forms, "gpu"))
        for name, shape in self.inner_shapes().items():
            setattr(self, name, self.add_weight(name=name, shape=shape, initializer="zeros", dtype=spec.storage))
        self.built = True

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        """`FORMS`, or those of them that a layer of this spec has."""
        return cls.FORMS

    @property
    def one_operation(self) -> tuple[str, ...]:
        """Of `search` and `beam` those that are one operation of ours for few rows: TensorFlow calls one in half the
        time that a graph around it takes."""
        return ()

    @property
    def jit_compile(self) -> bool:
        """Whether XLA compiles what the layer is called in."""
        return self.form == XLA

    def inner_shapes(self) -> Shapes:
        """Of the weights as they lie inside."""
        return self.spec.parameter_shapes()

    def value_of(self, name: str) -> Tensor:
        """The variable behind a weight, or None where the layer has none of that name."""
        held = getattr(self, name, None)
        return None if held is None else held.value

    def named_weights(self) -> Tensors:
        return {name: self.value_of(name) for name in self.inner_shapes()}

    def call(
        self,
        hidden_ND: Tensor,
        targets_N: Tensor,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        **extra: Tensor,
    ) -> Tensor:
        """Negative log-likelihood in nats, or what else the method trains by.

        Args:
            hidden_ND: (N, D), any floating dtype; logits and sums are float32 at least.
            targets_N: (N,) word ids, or `ignore_index` where a position is padding: it has no loss, no gradient
                and does not count in the mean. The mean over padding alone is 0.
            ignore_index: The number that marks padding.
            reduction: "mean" over the tokens, "sum", or "none" for (N,).
            **extra: The loss's random inputs, as `Definition.extra` names them; most methods have none.
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
        """The sum of all losses but those of padding, over `count`: a layer may know a shorter way to it."""
        total = tf.reduce_sum(self._real_losses(hidden_ND, targets_N, real_N, **extra))
        return total / tf.cast(count, total.dtype)

    def _real_losses(self, hidden_ND: Tensor, targets_N: Tensor, real_N: Tensor, **extra: Tensor) -> Tensor:
        losses_N = self.losses(hidden_ND, targets_N, **extra)
        return tf.where(real_N, losses_N, tf.zeros_like(losses_N))

    def losses(self, hidden_ND: Tensor, targets_N: Tensor, **extra: Tensor) -> Tensor:
        """(N,) what training minimizes."""
        return self.nll(hidden_ND, targets_N)

    def reach(self, targets_N: Tensor, **extra: Tensor) -> Reach:
        """The rows of `FEW_ROWS` that the loss of these targets reads; none of them may be `ignore_index`."""
        return Reach({}, lambda hidden_ND, tables: self(hidden_ND, targets_N, **extra))

    @abstractmethod
    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """(N,) negative log-likelihoods, differentiable."""

    @abstractmethod
    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, V) normalised log-probabilities over the whole vocabulary."""

    def target_log_probs(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """(N,) exact log-probabilities of the targets."""
        return -self.nll(hidden_ND, targets_N)

    def topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Values and ids (N, K) of the k likeliest words: exact, best first, ties by lower id."""
        return self.search(hidden_ND, k)[:2]

    def search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """`topk`, and (N,) which share of its clusters or nodes the layer expanded for it: 1 where it has no bounds."""
        return *tf.math.top_k(self.log_probs(hidden_ND), k), tf.ones(tf.shape(hidden_ND)[:1])

    def beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Values and ids (N, K) of k likely words, following the `width` likeliest clusters or prefixes of a level; not
        exact where there are several levels."""
        return self.topk(hidden_ND, k)

    def sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """(N,) words drawn exactly from the distribution, by the uniform numbers that `Layer.sample` describes."""
        return draw(tf.exp(self.log_probs(hidden_ND)), uniforms_NU[:, 0])

    def to_canonical(self, tensors: Tensors) -> Tensors:
        return dict(tensors)

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return dict(tensors)

    def load_canonical(self, tensors: Tensors) -> None:
        own = self.named_weights()
        dtype = next(iter(own.values())).dtype  # one for all
        cast = {name: tf.cast(value, dtype) for name, value in tensors.items()}
        for name, value in self.from_canonical(cast).items():
            own[name].assign(value)

    def formulation(self) -> str:
        return cpp.formulation(self.form)


@cache
def on_gpu() -> bool:
    """There each turn of a loop is some launches, and a GPU is fast enough to read what is not wanted."""
    return bool(tf.config.list_logical_devices("GPU"))


def add_rows(array: Tensor, rows_M: Tensor, added: Tensor) -> Tensor:
    """`array` with `added` at its rows; on a CPU in place: nothing else may read `array`.

    `tensor_scatter_nd_add` copies it, which on a CPU costs more than the products that made it. On a GPU the addition
    in place is not atomic, so that rows that occur twice would be lost.
    """
    if on_gpu():
        return tf.tensor_scatter_nd_add(array, rows_M[:, None], added)
    return tf.raw_ops.InplaceAdd(x=array, i=rows_M, v=added)


def look_up(table: Tensor | tf.Variable, ids: Tensor) -> Tensor:
    """The rows of a table for these ids. Once `tf.gather` has had a variable itself, TensorFlow copies it for each
    later reader of the whole, as an optimizer with weight decay is at every step."""
    return tf.gather(tf.convert_to_tensor(table), ids)


def in_dtype(tensor: Tensor, dtype: tf.DType) -> Tensor:
    """`tf.cast`, which takes 0.05 ms to see that there is nothing to do."""
    return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half precision is widened before exponentials are summed; float32 and float64 stay as they are."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.bfloat16, tf.float16) else tensor


def draw(probabilities_NV: Tensor, uniforms_N: Tensor) -> Tensor:
    """(N,) the first column whose cumulative probability exceeds the uniform number's share of the sum; column 0 where
    none does, as of probabilities that are no numbers."""
    cumulative_NV = tf.cumsum(probabilities_NV, axis=1)
    share_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    # The one beyond the last where none does.
    return tf.searchsorted(cumulative_NV, share_N1, side="right")[:, 0] % tf.shape(cumulative_NV)[1]


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right^T` in the dtype of `right`."""
    return tf.matmul(tf.cast(left, right.dtype), right, transpose_b=True)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """One negative log-likelihood a row."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)


_SPARE = 8  # candidates looked at beyond the k best, so that ties can be settled among them


def best_by_id(values_NX: Tensor, ids_NX: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row's candidates (N, X), in any order, with their ids: best first, ties by lower id.

    `top_k` prefers the first of equals, so where some are equal candidates are sorted by id: those that a few more than
    k bring, or all of them where the last of these still equals the k-th.
    """
    wide = tf.minimum(k + _SPARE, tf.shape(values_NX)[1])
    values_NM, place_NM = tf.math.top_k(values_NX, wide)
    ids_NM = tf.gather(ids_NX, place_NM, batch_dims=1)

    def sorted_best(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        order = tf.argsort(ids, axis=1)
        best_NK, place_NK = tf.math.top_k(tf.gather(values, order, batch_dims=1), k)
        return best_NK, tf.gather(ids, tf.gather(order, place_NK, batch_dims=1), batch_dims=1)

    def of_tied() -> tuple[Tensor, Tensor]:
        more = (wide < tf.shape(values_NX)[1]) & tf.reduce_any(tf.equal(values_NM[:, -1], values_NM[:, k - 1]))
        return tf.cond(more, lambda: sorted_best(values_NX, ids_NX), lambda: sorted_best(values_NM, ids_NM))

    tied = tf.reduce_any(tf.equal(values_NM[:, 1 : k + 1], values_NM[:, : tf.minimum(k, wide - 1)]))
    return tf.cond(tied, of_tied, lambda: (values_NM[:, :k], ids_NM[:, :k]))
