"""Class-based hierarchical softmax in TensorFlow. See `impls/on_numpy/methods/class_hsm.py` for the definition."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from vocabench.impls.forms import Form
from vocabench.impls.on_numpy.methods import class_hsm
from vocabench.impls.on_tensorflow import objectives
from vocabench.impls.on_tensorflow.layer import OutputLayer
from vocabench.impls.on_tensorflow.ops.tensors import (
    Tensor,
    Tensors,
    at_least_float32,
    cross_entropy,
    draw,
    in_xla,
    product,
)
from vocabench.impls.on_tensorflow.two_level import cluster_softmax
from vocabench.impls.on_tensorflow.two_level.levels import Level, followed
from vocabench.impls.spec import LayerSpec, Shapes


class ClassHierarchicalSoftmax(OutputLayer):
    """log P(w | h) = log P(c | h) + log P(w | c, h), with log P(c | h) = log P(s | h) + log P(c | s, h) if there are
    three levels.

    Weights: `class_weight` or `superclass_weight` (C, D) and `class_bias` or `superclass_bias` (C,) of the highest
    level, and the weights of `Level` for each level below. With the option `bias=False`, no level has biases.
    """

    def __init__(self, spec: LayerSpec, **keyword: Any) -> None:
        (top, _), *below = class_hsm.names(spec)
        self._kinds = ("weight", "bias") if spec.has_bias else ("weight",)
        levels = [
            Level(name, shelves, self.value_of, lambda: self.form, self._kinds)
            for (name, _), shelves in zip(below, class_hsm.shelves(spec), strict=True)
        ]
        canonical = spec.parameter_shapes()
        self._inner_shapes = {f"{top}_{kind}": canonical[f"{top}_{kind}"] for kind in self._kinds}
        for level in levels:
            self._inner_shapes |= level.inner_shapes(spec.dim)
        super().__init__(spec, **keyword)
        self._top, self.levels = top, levels

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return cluster_softmax.forms(spec.dtype)

    def inner_shapes(self) -> Shapes:
        return self._inner_shapes

    def _word_slots(self) -> Tensors:
        return self.levels[-1].members_by_weight()

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        if in_xla():
            return self._nll_of_all_words(hidden_ND, targets_N)
        parts, member_N = [], targets_N
        for level in reversed(self.levels):
            parts.append(level.nll(hidden_ND, member_N))
            member_N = tf.gather(level.group, member_N)
        return tf.add_n([*parts, cross_entropy(self._top_logits(hidden_ND), member_N)])

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return self._joint(hidden_ND, len(self.levels))

    def _entropy(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        """Return the (N,) entropies: that of the top level, and for each other the mean of those within a group."""
        entropy_N = objectives.entropy(self._joint(hidden_ND, 0))
        for depth, level in enumerate(self.levels):
            entropy_N += level.mean_entropy(hidden_ND, self._joint(hidden_ND, depth))
        return entropy_N

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of classes expanded."""
        if in_xla():
            return super()._search(hidden_ND, k)
        return self.levels[-1].search(hidden_ND, self._joint(hidden_ND, len(self.levels) - 1), k)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of k likely words, following the `width` likeliest members of higher levels."""
        if in_xla():
            return super()._beam(hidden_ND, k, width)
        log_NC = self._joint(hidden_ND, 0)
        for level in self.levels[:-1]:
            log_NC = tf.gather(followed(log_NC, width), level.group, axis=1) + level.log_within(hidden_ND)
        return self.levels[-1].beam(hidden_ND, log_NC, k, width)

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words. Each uniform number draws the member of one level."""
        if in_xla():
            return super()._sample(hidden_ND, uniforms_NU)
        chosen_N = draw(tf.exp(self._joint(hidden_ND, 0)), uniforms_NU[:, 0])
        for number, level in enumerate(self.levels, start=1):
            chosen_N = level.sample(hidden_ND, chosen_N, uniforms_NU[:, number])
        return chosen_N

    def _top_logits(self, hidden_ND: Tensor) -> Tensor:
        weight, bias = self.value_of(f"{self._top}_weight"), self.bias_of(f"{self._top}_bias")
        return at_least_float32(product(hidden_ND, weight) + bias)

    def _joint(self, hidden_ND: Tensor, depth: int) -> Tensor:
        """Return (N, M) log P of each member of a level, including all levels above."""
        log_NM = tf.nn.log_softmax(self._top_logits(hidden_ND))
        for level in self.levels[:depth]:
            log_NM = tf.gather(log_NM, level.group, axis=1) + level.log_within(hidden_ND)
        return log_NM

    def formulation(self) -> str:
        return f"{self.form}, on {len(self.levels[-1].shelves)} slabs of classes of about one size"

    def to_canonical(self, tensors: Tensors) -> Tensors:
        converted = {f"{self._top}_{kind}": tensors[f"{self._top}_{kind}"] for kind in self._kinds}
        for level in self.levels:
            converted |= level.to_canonical(tensors)
        return converted

    def from_canonical(self, tensors: Tensors) -> Tensors:
        converted = {f"{self._top}_{kind}": tensors[f"{self._top}_{kind}"] for kind in self._kinds}
        for level in self.levels:
            converted |= level.from_canonical(tensors)
        return converted


LAYER = ClassHierarchicalSoftmax
