"""The hooks that the native TensorFlow layers implement: the computations behind the public calls of `layer.py`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from vocabench.impls import calls, cpp
from vocabench.impls.calls import Objective
from vocabench.impls.cpp import CPP
from vocabench.impls.forms import GPU, Form, on_device
from vocabench.impls.on_tensorflow import objectives, tying
from vocabench.impls.on_tensorflow.inputs import Targets
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, draw, must_be_portable, on_gpu
from vocabench.impls.on_tensorflow.saving import Saveable
from vocabench.impls.spec import LayerSpec, Shapes, check_like
from vocabench.impls.tying import tied_name

XLA, OWN_KERNELS = Form("xla", "XLA"), Form("tensorflow", "TensorFlow's own kernels")


class Reach(NamedTuple):
    """The loss of a batch as a function of the few rows that it reads.

    Attributes:
        rows: Row numbers (U,) by weight name, without duplicates, for the weights of which only these rows are read.
        loss: Maps hidden vectors (N, D) and a table (U, ...) of the rows of each such weight to the mean training loss.
    """

    rows: Tensors
    loss: Callable[[Tensor, Tensors], Tensor]


class Hooks(Saveable):
    """What a layer is made of, and what each method implements.

    The weights may be stored differently from their canonical form (`impls/spec.py`). `to_canonical` and
    `from_canonical` convert dictionaries of weights, gradients or optimizer slots.
    """

    FORMS: ClassVar[tuple[Form, ...]] = ()  # in order of preference for each kind of device
    FEW_ROWS: ClassVar[tuple[str, ...]] = ()  # weights of which the loss of a batch reads few rows

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        super().__init__(spec, **keyword)
        forms = self.forms(spec)
        self._chosen = spec.form_of(forms if spec.form or not on_gpu() else on_device(forms, GPU))
        self._portable = next((form for form in forms if form != CPP), None)
        for name, shape in self.inner_shapes().items():
            setattr(self, name, self.add_weight(name=name, shape=shape, initializer="zeros", dtype=spec.storage))
        self.built = True

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        """Return the forms of a layer of this spec, on all kinds of device."""
        return cls.FORMS

    @property
    def form(self) -> Form | None:
        """The form that computes the layer.

        C++ kernels have no counterpart in XLA, and are unknown where a saved model is served. A function that XLA
        compiles or that is exported takes the preferred form without them.
        """
        return self._portable if self._chosen == CPP and must_be_portable() else self._chosen

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

    def present_spec(self) -> LayerSpec:
        """Return the specification with the present structure, which training may have changed."""
        return self.spec

    def inner_shapes(self) -> Shapes:
        """Return the shapes of the weights as they are stored."""
        return self.spec.parameter_shapes()

    def value_of(self, name: str) -> Tensor:
        """Return the variable behind a weight, or None if the layer has no weight of that name.

        Vectors of words that are tied to an embedding and stored by slot are a tensor.
        """
        if self.tied_words is not None and name in (slots := self._word_slots()):
            return tying.by_slot(self.tied_words.value, slots[name])
        weight = getattr(self, name, None)
        return None if weight is None else weight.value

    def bias_of(self, name: str = "bias") -> Tensor:
        """Return the variable behind a bias, or zeros for a layer without biases."""
        value = self.value_of(name)
        return tf.zeros(self.spec.definition.shapes(self.spec)[name], self.spec.storage) if value is None else value

    def named_weights(self) -> Tensors:
        """Return the values of `value_of` by name."""
        return {name: self.value_of(name) for name in self.inner_shapes()}

    # Implemented by the layers, for (N, D) hidden vectors in the dtype of the weights and (N,) int32 words.
    @abstractmethod
    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) negative log-likelihoods, differentiable."""

    @abstractmethod
    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N, V) normalized log-probabilities over the whole vocabulary."""

    def _reduced(
        self, hidden_ND: Tensor, targets_N: Tensor, real_N: Tensor, count: Tensor | int, **extra: Tensor
    ) -> Tensor:
        """Return the sum of the losses without padding, divided by `count`. Layers with a shorter way override it."""
        losses_N = self._training_losses(hidden_ND, targets_N, **extra)
        total = tf.reduce_sum(tf.where(real_N, losses_N, tf.zeros_like(losses_N)))
        return total / tf.cast(count, total.dtype)

    def _training_losses(self, hidden_ND: Tensor, targets_N: Tensor, **extra: Tensor) -> Tensor:
        """Return the (N,) losses that training minimizes. Keras has an attribute `_losses`."""
        return self._nll(hidden_ND, targets_N)

    def _nll_parts(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, ...]:
        """Return (N,) summands of `_nll`: one for each level that is reported on its own, the highest first."""
        return (self._nll(hidden_ND, targets_N),)

    def _mean_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N,) means over all words of their log-probabilities."""

        def of_block(hidden_BD: Tensor) -> Tensor:
            return tf.reduce_mean(self._log_probs(hidden_BD), axis=1)

        return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND)

    def _nll_of_all_words(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) negative log-likelihoods from all log-probabilities.

        XLA needs sizes that it knows, and those of the tokens of each cluster depend on the targets.
        """
        return -tf.gather(self._log_probs(hidden_ND), targets_N, batch_dims=1)

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        return *tf.math.top_k(self._log_probs(hidden_ND), k), tf.ones(tf.shape(hidden_ND)[:1])

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        return self._search(hidden_ND, k)[:2]

    def _path_beam(self, hidden_ND: Tensor, k: int, width: int, levels: int) -> tuple[Tensor, Tensor]:
        return self._beam(hidden_ND, k, width)

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        return draw(tf.exp(self._log_probs(hidden_ND)), uniforms_NU[:, 0])

    # Implemented by layers that reorganize.
    def _observed(self, loss: Callable[[], Tensor], batch: Targets) -> Tensor:
        """Return a loss of the batch, and record statistics of the batch."""
        raise NotImplementedError(f"{self.spec.method} has no clusters to reorganize")

    # Implemented by layers with one softmax over the vocabulary.
    def _logits(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N, V) logits, words in order of their ids, at least in float32."""
        raise NotImplementedError(f"{self.spec.method} has no softmax over the whole vocabulary")

    def _target_logits(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) logits of the targets."""
        return tf.gather(self._logits(hidden_ND), targets_N, batch_dims=1)

    def _mean_logits(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N,) means over all words of their logits."""
        return tf.reduce_mean(self._logits(hidden_ND), axis=1)

    # Made of these.
    def _objective_losses(self, hidden_ND: Tensor, targets_N: Tensor, objective: Objective, **extra: Tensor) -> Tensor:
        """Return the (N,) losses of `Objective`, at padding too."""
        softcap = objective.softcap
        if softcap is not None:

            def of_block(hidden_BD: Tensor, targets_B: Tensor) -> Tensor:
                logits_BV = objectives.capped(self._logits(hidden_BD), softcap)
                return objectives.losses_of_logits(logits_BV, targets_B, objective)

            return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND, targets_N)
        return calls.objective_losses(
            self.spec.definition,
            objective,
            self._training_losses(hidden_ND, targets_N, **extra),
            mean_log_probs=lambda: self._mean_log_probs(hidden_ND),
            target_logits=lambda: self._target_logits(hidden_ND, targets_N),
            mean_logits=lambda: self._mean_logits(hidden_ND),
        )

    def _capped_log_probs(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        if softcap is None:
            return self._log_probs(hidden_ND)
        return tf.nn.log_softmax(objectives.capped(self._logits(hidden_ND), softcap))

    def _entropy(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        """Return the (N,) entropies of the distributions in nats."""
        return objectives.entropy(self._capped_log_probs(hidden_ND, softcap))

    # For training and conversion.
    def reach(self, targets_N: Tensor, **extra: Tensor) -> Reach:
        """Return the rows of `FEW_ROWS` that the loss of these targets reads. No target may be `ignore_index`."""
        return self.whole_reach(targets_N, **extra)

    def whole_reach(self, targets_N: Tensor, **extra: Tensor) -> Reach:
        """Return a reach without tables, whose loss reads the weights themselves."""

        def loss(hidden_ND: Tensor, tables: Tensors) -> Tensor:
            real_N = tf.ones_like(targets_N, tf.bool)
            return self._reduced(hidden_ND, targets_N, real_N, tf.size(targets_N), **extra)

        return Reach({}, loss)

    def to_canonical(self, tensors: Tensors) -> Tensors:
        """Convert weights, gradients or optimizer slots to their canonical form."""
        return dict(tensors)

    def from_canonical(self, tensors: Tensors) -> Tensors:
        """Convert weights, gradients or optimizer slots from their canonical form."""
        return dict(tensors)

    def load_canonical(self, tensors: Tensors) -> None:
        """Assign weights in canonical form.

        Raises:
            BadInput: They have other names or shapes than those of the layer.
        """
        check_like(self.spec, {name: value.shape for name, value in tensors.items()})
        cast = {name: tf.cast(value, self.spec.storage) for name, value in tensors.items()}
        tied = {} if self.tied_words is None else self._word_slots()
        for name, value in self.from_canonical(cast).items():
            if name not in tied:
                self.value_of(name).assign(value)
        if self.tied_words is not None:
            self.tied_words.assign(cast[tied_name(self.spec)])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec.sizes()})"

    def formulation(self) -> str:
        """Return a description of the form that runs; empty if there is only one."""
        return cpp.formulation(self.form)
