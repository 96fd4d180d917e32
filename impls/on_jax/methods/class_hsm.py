"""Class-based hierarchical softmax in JAX. See `impls/on_numpy/methods/class_hsm.py` for the definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vocabench.impls.forms import Form
from vocabench.impls.on_jax import objectives
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.ops.arrays import Array, Tree, draw, pick, product
from vocabench.impls.on_jax.two_level import cluster_softmax
from vocabench.impls.on_jax.two_level.levels import Level, followed
from vocabench.impls.on_numpy.methods import class_hsm
from vocabench.impls.spec import LayerSpec


class ClassHierarchicalSoftmax(OutputLayer):
    """log P(w | h) = log P(c | h) + log P(w | c, h). With three levels, log P(c | h) = log P(s | h) + log P(c | s, h).

    Parameters: `class_weight` (C, D) and `class_bias` (C,) of the highest level, named `superclass_...` if there are
    superclasses; those of `Level` for the levels below. With the option `bias=False`, no level has biases.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self._kinds = ("weight", "bias") if spec.has_bias else ("weight",)
        (self._top, _), *below = class_hsm.names(spec)
        self.levels = [
            Level(name, shelves, self.form) for (name, _), shelves in zip(below, class_hsm.shelves(spec), strict=True)
        ]

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return cluster_softmax.forms(spec.dtype, spec.dim)

    def placement(self) -> Tree:
        return {key: array for level in self.levels for key, array in level.structure().items()}

    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        total_N, member_N = jnp.zeros((), hidden_ND.dtype), targets_N
        for level in reversed(self.levels):
            total_N = total_N + level.nll(params, structure, hidden_ND, member_N)
            member_N = level.group(structure)[member_N]
        logits_NC = self._top_logits(params, hidden_ND)
        return total_N + jax.nn.logsumexp(logits_NC, axis=1) - pick(logits_NC, member_N)

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        return self._joint(params, structure, hidden_ND, len(self.levels))

    def _entropy(self, params: Tree, structure: Tree, hidden_ND: Array, softcap: float | None) -> Array:
        """Return the (N,) entropies: that of the top level, and for each other the mean of those within a group."""
        entropy_N = objectives.entropy(self._joint(params, structure, hidden_ND, 0))
        for depth, level in enumerate(self.levels):
            log_group_NC = self._joint(params, structure, hidden_ND, depth)
            entropy_N += level.mean_entropy(params, structure, hidden_ND, log_group_NC)
        return entropy_N

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of classes expanded."""
        log_class_NC = self._joint(params, structure, hidden_ND, len(self.levels) - 1)
        return self.levels[-1].search(params, structure, hidden_ND, log_class_NC, k)

    def _beam(self, params: Tree, structure: Tree, hidden_ND: Array, k: int, width: int) -> tuple[Array, Array]:
        """Return values and ids (N, K) of k likely words, of the `width` likeliest members of each level above."""
        log_NC = self._joint(params, structure, hidden_ND, 0)
        for level in self.levels[:-1]:
            log_within_NM = level.log_within(params, structure, hidden_ND)
            log_NC = followed(log_NC, width)[:, level.group(structure)] + log_within_NM
        return self.levels[-1].beam(params, structure, hidden_ND, log_NC, k, width)

    def _sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """Draw (N,) words, with one uniform number for each level."""
        chosen_N = draw(jnp.exp(self._joint(params, structure, hidden_ND, 0)), uniforms_NU[:, 0]).astype(jnp.int32)
        for number, level in enumerate(self.levels, start=1):
            chosen_N = level.sample(params, structure, hidden_ND, chosen_N, uniforms_NU[:, number])
        return chosen_N

    def _top_logits(self, params: Tree, hidden_ND: Array) -> Array:
        return self._plus_bias(product(hidden_ND, params[f"{self._top}_weight"]), params, f"{self._top}_bias")

    def _joint(self, params: Tree, structure: Tree, hidden_ND: Array, depth: int) -> Array:
        """Return (N, M) log P of each member of a level, the levels above included."""
        log_NM = jax.nn.log_softmax(self._top_logits(params, hidden_ND), axis=1)
        for level in self.levels[:depth]:
            log_NM = log_NM[:, level.group(structure)] + level.log_within(params, structure, hidden_ND)
        return log_NM

    def formulation(self) -> str:
        return f"{self.form}, on {len(self.levels[-1].shelves)} slabs of classes of about one size"

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        canonical = {f"{self._top}_{kind}": tree[f"{self._top}_{kind}"] for kind in self._kinds}
        for level in self.levels:
            canonical |= {f"{level.name}_{kind}": level.to_canonical(structure, tree, kind) for kind in self._kinds}
        return canonical

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        params = {f"{self._top}_{kind}": tree[f"{self._top}_{kind}"] for kind in self._kinds}
        for level in self.levels:
            for kind in self._kinds:
                params |= level.from_canonical(structure, tree[f"{level.name}_{kind}"], kind)
        return params

    def _in_own_layout(self, structure: Tree, name: str, by_word_VD: Array) -> Tree:
        return self.levels[-1].from_canonical(structure, by_word_VD, "weight")


LAYER = ClassHierarchicalSoftmax
