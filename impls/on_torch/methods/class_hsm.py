"""Class-based hierarchical softmax in PyTorch. See `impls/on_numpy/methods/class_hsm.py` for the definition."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.forms import Form
from vocabench.impls.on_numpy.methods import class_hsm
from vocabench.impls.on_torch import objectives
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.losses import nll_of_products
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, Tensors, at_least_float32, draw
from vocabench.impls.on_torch.two_level import cluster_softmax
from vocabench.impls.on_torch.two_level.decoding import followed
from vocabench.impls.on_torch.two_level.levels import Level
from vocabench.impls.spec import LayerSpec


class ClassHierarchicalSoftmax(OutputLayer):
    """log P(w | h) = log P(c | h) + log P(w | c, h). With three levels, log P(c | h) = log P(s | h) + log P(c | s, h).

    Parameters: `top_weight` (C, D) and `top_bias` (C,) of the highest level, classes or superclasses; those of `Level`
    for each lower level, in `levels`. With the option `bias=False`, no level has biases.
    """

    top_bias: nn.Parameter | None

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        dtype = TORCH_DTYPES[spec.dtype]
        (self._top, _), *below = class_hsm.names(spec)
        self._names = [name for name, _ in below]
        top = spec.parameter_shapes()[f"{self._top}_weight"]
        self.top_weight = nn.Parameter(torch.zeros(top, dtype=dtype))
        self.top_bias = nn.Parameter(torch.zeros(top[0], dtype=dtype)) if spec.has_bias else None
        self._kinds = ("weight", "bias") if spec.has_bias else ("weight",)
        self.levels = nn.ModuleList(
            Level(shelves, spec.dim, dtype, self._requested, self._kinds) for shelves in class_hsm.shelves(spec)
        )

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return cluster_softmax.forms(0, spec.dim, TORCH_DTYPES[spec.dtype])

    @property
    def form(self) -> Form:
        return self._below[-1].form

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        total_N, member_N = None, targets_N
        for level in reversed(self._below):
            nll_N = level.nll(hidden_ND, member_N)
            total_N, member_N = nll_N if total_N is None else total_N + nll_N, level.group[member_N]
        assert total_N is not None
        return total_N + nll_of_products(hidden_ND, self.top_weight, self.top_bias, member_N)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return self._joint(hidden_ND, len(self.levels))

    def _entropy(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        """Return the (N,) entropies: that of the top level, and for each other the mean of those within a group."""
        entropy_N = objectives.entropy(self._joint(hidden_ND, 0))
        for depth, level in enumerate(self._below):
            entropy_N = entropy_N + level.mean_entropy(hidden_ND, self._joint(hidden_ND, depth))
        return entropy_N

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of classes expanded."""
        return self._below[-1].search(hidden_ND, self._joint(hidden_ND, len(self.levels) - 1), k)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words within the `width` likeliest groups of each level."""
        log_NC = self._joint(hidden_ND, 0)
        for level in self._below[:-1]:
            log_NC = followed(log_NC, width)[:, level.group] + level.log_within(hidden_ND)
        return self._below[-1].beam(hidden_ND, log_NC, k, width)

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words, drawn with one uniform for each level."""
        chosen_N = draw(self._joint(hidden_ND, 0).exp_(), uniforms_NU[:, 0])
        for number, level in enumerate(self._below, start=1):
            chosen_N = level.sample(hidden_ND, chosen_N, uniforms_NU[:, number])
        return chosen_N

    def word_vectors(self, ids: Tensor) -> Tensor:
        return self._below[-1].vectors(ids.flatten()).view(*ids.shape, self.spec.dim)

    @property
    def _below(self) -> list[Level]:
        return list(self.levels)  # type: ignore[arg-type]

    def _top_logits(self, hidden_ND: Tensor) -> Tensor:
        return products.linear(hidden_ND, self.top_weight, self.top_bias)

    def _joint(self, hidden_ND: Tensor, depth: int) -> Tensor:
        """Return (N, M) log P of each member of the level at this depth, jointly with its ancestors."""
        log_NM = F.log_softmax(at_least_float32(self._top_logits(hidden_ND)), dim=1)
        for level in self._below[:depth]:
            log_NM = log_NM[:, level.group] + level.log_within(hidden_ND)
        return log_NM

    def formulation(self) -> str:
        words = self._below[-1]
        return f"{self.form.label} on {len(words.shelves)} slabs of classes of about one size"

    def to_canonical(self, tensors: Tensors) -> Tensors:
        canonical = {f"{self._top}_{kind}": tensors[f"top_{kind}"] for kind in self._kinds}
        for number, (name, level) in enumerate(zip(self._names, self._below, strict=True)):
            prefix = f"levels.{number}."
            of_level = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            canonical |= {f"{name}_{kind}": value for kind, value in level.to_canonical(of_level).items()}
        return canonical

    def from_canonical(self, tensors: Tensors) -> Tensors:
        parameters = {f"top_{kind}": tensors[f"{self._top}_{kind}"] for kind in self._kinds}
        for number, (name, level) in enumerate(zip(self._names, self._below, strict=True)):
            of_level = level.from_canonical({kind: tensors[f"{name}_{kind}"] for kind in self._kinds})
            parameters |= {f"levels.{number}.{key}": value for key, value in of_level.items()}
        return parameters


LAYER = ClassHierarchicalSoftmax
