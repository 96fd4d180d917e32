"""What every native PyTorch output layer is: an `nn.Module` from hidden vectors to losses and log-probabilities."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls import cpp
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.ops.topk import exact_topk
from vocabench.impls.on_torch.triton import availability
from vocabench.impls.spec import LayerSpec

Reduction = Literal["mean", "sum", "none"]
Tensors = dict[str, Tensor]

TORCH_DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}

_ALIGNED = 8  # numbers of half precision, 16 bytes: of rows that are no multiple a GPU's fastest products are not taken


class OutputLayer(nn.Module):
    """Base of the native layers: `loss = layer(hidden_ND, targets_N)` inside any model.

    Parameters may lie otherwise inside than their canonical form (`impls/spec.py`); `to_canonical` and `from_canonical`
    map whole dictionaries of parameters, gradients or optimizer slots either way.
    """

    FORMS: ClassVar[tuple[str, ...]] = ()  # the ways that there are to compute the layer; the fastest on our CPUs first

    # Whether gradients that reach few rows of a parameter are sparse tensors, as those of `nn.Embedding(sparse=True)`;
    # a layer that reaches most rows gives dense ones all the same.
    row_sparse = False

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.spec = spec
        self._forms = self.forms(spec)
        spec.form_of(self._forms)  # raises BadInput for a form that there is not

    @property
    def form(self) -> str:
        """The form that the layer is computed in, where it lies now."""
        return availability.form_of(self.spec.form, self._forms, next(self.parameters()))

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[str, ...]:
        """`FORMS`, or those of them that a layer of this spec has."""
        return cls.FORMS

    def forward(
        self,
        hidden_ND: Tensor,
        targets_N: Tensor,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        **extra: Tensor,
    ) -> Tensor:
        """Negative log-likelihood in nats, or what else the method trains by.

        Args:
            hidden_ND: (N, D), any floating dtype; logits and sums are float32 at least.
            targets_N: (N,) word ids, or `ignore_index` where a position is padding: it has no loss, no gradient
                and does not count in the mean. The mean over padding alone is 0.
            reduction: "mean" over the tokens, "sum", or "none" for (N,).
            **extra: The loss's random inputs, as `Definition.extra` names them; most methods have none.
        """
        padding_N = targets_N == ignore_index
        inside_N = targets_N.masked_fill(padding_N, 0)
        if reduction == "none":
            return self.losses(hidden_ND, inside_N, **extra).masked_fill(padding_N, 0.0)
        return self.reduced(hidden_ND, inside_N, padding_N, mean=reduction == "mean", **extra)

    def reduced(
        self, hidden_ND: Tensor, targets_N: Tensor, padding_N: Tensor, *, mean: bool, **extra: Tensor
    ) -> Tensor:
        """The sum of all losses but those of padding, or their mean: a layer may know a shorter way to it."""
        return reduced(self.losses(hidden_ND, targets_N, **extra), padding_N, mean=mean)

    def losses(self, hidden_ND: Tensor, targets_N: Tensor, **extra: Tensor) -> Tensor:
        """(N,) what training minimizes."""
        return self.nll(hidden_ND, targets_N)

    @abstractmethod
    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """(N,) negative log-likelihoods, differentiable."""

    def target_log_probs(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """(N,) exact log-probabilities of the targets."""
        return -self.nll(hidden_ND, targets_N)

    @abstractmethod
    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, V) normalised log-probabilities over the whole vocabulary."""

    @torch.no_grad()
    def topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Values and ids (N, K) of the k likeliest words: exact, best first, ties by lower id."""
        return self.search(hidden_ND, k)[:2]

    @torch.no_grad()
    def search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """`topk`, and (N,) which share of its clusters or nodes the layer expanded for it: 1 where it has no bounds."""
        return *exact_topk(self.log_probs(hidden_ND), k), torch.ones(len(hidden_ND), device=hidden_ND.device)

    def beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Values and ids (N, K) of k likely words, following the `width` likeliest clusters or prefixes of a level; not
        exact where there are several levels."""
        return self.topk(hidden_ND, k)

    @torch.no_grad()
    def sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """(N,) words drawn exactly from the distribution, by the uniform numbers that `Layer.sample` describes."""
        return draw(self.log_probs(hidden_ND).exp_(), uniforms_NU[:, 0])

    def rows_read(self, targets_N: Tensor, **extra: Tensor) -> dict[str, Tensor]:
        """The rows that the loss of these targets reads, of each parameter that has `row_sparse` gradients."""
        return {}

    def to_canonical(self, tensors: Tensors) -> Tensors:
        return dict(tensors)

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return dict(tensors)

    def formulation(self) -> str:
        return cpp.formulation(self.form)

    @torch.no_grad()
    def load_canonical(self, tensors: Tensors) -> None:
        own = dict(self.named_parameters())
        like = next(iter(own.values()))  # one dtype and device for all
        for name, value in self.from_canonical({n: v.to(like) for n, v in tensors.items()}).items():
            own[name].copy_(value)


def draw(probabilities_NV: Tensor, uniforms_N: Tensor) -> Tensor:
    """(N,) the first column whose cumulative probability exceeds the uniform number's share of the sum; column 0 where
    none does, as of probabilities that are no numbers."""
    cumulative_NV = probabilities_NV.cumsum(dim=1)
    share_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    # The one beyond the last where none does.
    return torch.searchsorted(cumulative_NV, share_N1, right=True)[:, 0].remainder_(cumulative_NV.shape[1])


def nll_of_products(
    hidden_ND: Tensor, weight_CD: Tensor, bias_C: Tensor | None, targets_N: Tensor, *, kernels: bool = False
) -> Tensor:
    """(N,) negative log-likelihoods of the targets by the logits h W^T + b, in float32 at least; `kernels` as
    `products.linear` has it."""
    if not availability.runs_on(weight_CD):
        logits_NC = products.linear(hidden_ND, weight_CD, bias_C, kernels=kernels)
        return F.cross_entropy(at_least_float32(logits_NC), targets_N, reduction="none")
    from vocabench.impls.on_torch.triton import softmax_kernels  # imports Triton, which not every installation has

    classes = len(weight_CD)
    if weight_CD.dtype.itemsize == 2 and classes % _ALIGNED:
        weight_CD, bias_C = _aligned(weight_CD), None if bias_C is None else _aligned(bias_C)
    return softmax_kernels.nll(products.linear(hidden_ND, weight_CD, bias_C), targets_N, classes)


def _aligned(of_classes: Tensor) -> Tensor:
    """Rows of zeros added, so that those of the logits are aligned.

    By `cat`: its gradient is a slice, where that of `F.pad` is a copy.
    """
    return torch.cat([of_classes, of_classes.new_zeros(-len(of_classes) % _ALIGNED, *of_classes.shape[1:])])


def reduced(losses_N: Tensor, padding_N: Tensor, *, mean: bool) -> Tensor:
    """The sum of all losses but those of padding, or their mean."""
    if losses_N.dtype == torch.float32 and availability.runs_on(losses_N):
        from vocabench.impls.on_torch.triton import softmax_kernels

        return softmax_kernels.reduced(losses_N, padding_N, mean)
    return losses_N.masked_fill(padding_N, 0.0).sum() / counted(padding_N, mean=mean)


def counted(padding_N: Tensor, *, mean: bool) -> Tensor | int:
    """What a sum of losses is divided by; of padding alone, 1."""
    return (~padding_N).sum().clamp(min=1) if mean else 1


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half precision is widened before exponentials are summed; float32 and float64 stay as they are."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
