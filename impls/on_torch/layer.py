"""The base of the native PyTorch output layers: an `nn.Module` from hidden vectors to losses and log-probabilities."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP
from vocabench.impls.forms import CPU, GPU, Form, kind_of, on_device
from vocabench.impls.on_torch.ops import cpp_kernels, products
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

# Elements of half precision: 16 bytes. A GPU's fastest products need rows that are a multiple of this.
_ALIGNED = 8


class OutputLayer(nn.Module):
    """Base of the native layers: `loss = layer(hidden_ND, targets_N)` inside any model.

    A layer may store its parameters in another layout than their canonical form (`impls/spec.py`). `to_canonical` and
    `from_canonical` convert whole dictionaries of parameters, gradients or optimizer slots.

    Attributes:
        FORMS: The forms that a layer of this class can have, in order of preference for each kind of device.
        row_sparse: Whether gradients that reach few rows of a parameter are sparse tensors, as those of
            `nn.Embedding(sparse=True)`. A layer that reaches most rows gives dense gradients all the same.
    """

    FORMS: ClassVar[tuple[Form, ...]] = ()
    row_sparse = False

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.spec = spec
        self._forms = self.forms(spec)
        self._requested = spec.form_of(self._forms) if spec.form else None
        self._forms_on = {kind: on_device(self._forms, kind) for kind in (CPU, GPU)}

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        """Return the forms that a layer of this spec has, in order of preference for each kind of device."""
        return cls.FORMS

    @property
    def form(self) -> Form | None:
        """The requested form, or else the preferred one on the device where the parameters are now."""
        if self._requested is not None or not self._forms:
            return self._requested
        words = self._main_parameter()
        return next(form for form in self._forms_on[kind_of(words.device.type)] if self._runs(form, words))

    def _main_parameter(self) -> Tensor:
        """Return the parameter whose device and dtype decide on the form."""
        return next(self.parameters())

    def _runs(self, form: Form, parameter: Tensor) -> bool:
        """Return whether the form can compute with this parameter, whose dtype may differ from the spec's by now."""
        return form != CPP or cpp_kernels.runs_on(parameter)

    @property
    def reorganizes(self) -> bool:
        """Whether training moves words to other clusters, as SOHSM's `reorganize` does."""
        return False

    def forward(
        self,
        hidden_ND: Tensor,
        targets_N: Tensor,
        *,
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
        padding_N = targets_N == ignore_index
        inside_N = targets_N.masked_fill(padding_N, 0)
        if reduction == "none":
            return self.losses(hidden_ND, inside_N, **extra).masked_fill(padding_N, 0.0)
        return self.reduced(hidden_ND, inside_N, padding_N, mean=reduction == "mean", **extra)

    def reduced(
        self, hidden_ND: Tensor, targets_N: Tensor, padding_N: Tensor, *, mean: bool, **extra: Tensor
    ) -> Tensor:
        """Return the sum or mean of the losses without padding. Layers override it where there is a shorter way."""
        return reduced(self.losses(hidden_ND, targets_N, **extra), padding_N, mean=mean)

    def losses(self, hidden_ND: Tensor, targets_N: Tensor, **extra: Tensor) -> Tensor:
        """Return the (N,) losses that training minimizes."""
        return self.nll(hidden_ND, targets_N)

    @abstractmethod
    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) negative log-likelihoods, differentiable."""

    def nll_parts(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, ...]:
        """Return (N,) summands of `nll`: one for each level that is reported on its own, the highest first."""
        return (self.nll(hidden_ND, targets_N),)

    def training_loss(
        self, hidden_ND: Tensor, targets_N: Tensor, host_targets_N: NDArray[np.integer], **extra: Tensor
    ) -> Tensor:
        """Return the mean training loss. A layer that reorganizes also records statistics of the batch.

        Args:
            hidden_ND: (N, D).
            targets_N: (N,) on the device.
            host_targets_N: The same targets on the host, so that nothing waits for the device.
            **extra: As in `forward`.
        """
        return self(hidden_ND, targets_N, **extra)

    def reorganize(self, rng: np.random.Generator, *slots: Tensors) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Move words to new clusters, in a layer that reorganizes.

        Args:
            rng: Draws the order in which words are placed.
            *slots: The optimizer's state by parameter name, changed in place.

        Returns:
            The cluster of each word (V,) before and after.
        """
        raise NotImplementedError(f"{self.spec.method} has no clusters to reorganize")

    def target_log_probs(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) exact log-probabilities of the targets."""
        return -self.nll(hidden_ND, targets_N)

    @abstractmethod
    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N, V) normalized log-probabilities over the whole vocabulary."""

    @torch.no_grad()
    def topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words: exact, best first, ties by lower id."""
        return self.search(hidden_ND, k)[:2]

    @torch.no_grad()
    def search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `topk` returns, and the (N,) share of clusters or nodes expanded: 1 for layers without bounds."""
        return *exact_topk(self.log_probs(hidden_ND), k), torch.ones(len(hidden_ND), device=hidden_ND.device)

    def beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of k likely words from the `width` likeliest clusters or prefixes of each level.

        The result is not exact where there are several levels.
        """
        return self.topk(hidden_ND, k)

    @torch.no_grad()
    def sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words drawn exactly from the distribution, given the uniforms that `Layer.sample` describes."""
        return draw(self.log_probs(hidden_ND).exp_(), uniforms_NU[:, 0])

    def rows_read(self, targets_N: Tensor, **extra: Tensor) -> dict[str, Tensor]:
        """Return the rows that the loss reads, for each parameter with `row_sparse` gradients."""
        return {}

    def to_canonical(self, tensors: Tensors) -> Tensors:
        return dict(tensors)

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return dict(tensors)

    def formulation(self) -> str:
        """Return a description of how the layer is computed, for its row."""
        return cpp.formulation(self.form)

    @torch.no_grad()
    def load_canonical(self, tensors: Tensors) -> None:
        parameters = dict(self.named_parameters())
        like = next(iter(parameters.values()))  # all have one dtype and device
        for name, value in self.from_canonical({n: v.to(like) for n, v in tensors.items()}).items():
            parameters[name].copy_(value)


def draw(probabilities_NV: Tensor, uniforms_N: Tensor) -> Tensor:
    """Return the (N,) first columns whose cumulative probability exceeds the uniform's share of the row's sum.

    The column is 0 where no cumulative probability exceeds it, as in rows that contain NaN.
    """
    cumulative_NV = probabilities_NV.cumsum(dim=1)
    share_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    # `searchsorted` returns V where no column exceeds the share.
    return torch.searchsorted(cumulative_NV, share_N1, right=True)[:, 0].remainder_(cumulative_NV.shape[1])


def nll_of_products(
    hidden_ND: Tensor, weight_CD: Tensor, bias_C: Tensor | None, targets_N: Tensor, *, kernels: bool = False
) -> Tensor:
    """Return the (N,) negative log-likelihoods of the targets under the logits h W^T + b, at least in float32.

    Args:
        hidden_ND: Hidden vectors.
        weight_CD: A row for each class.
        bias_C: Biases, or None.
        targets_N: Class ids.
        kernels: Whether the C++ kernels may compute the products, as in `products.linear`.
    """
    if not availability.runs_on(weight_CD):
        logits_NC = products.linear(hidden_ND, weight_CD, bias_C, kernels=kernels)
        return F.cross_entropy(at_least_float32(logits_NC), targets_N, reduction="none")
    from vocabench.impls.on_torch.triton import softmax_kernels  # imports Triton, which may not be installed

    classes = len(weight_CD)
    if weight_CD.dtype.itemsize == 2 and classes % _ALIGNED:
        weight_CD, bias_C = _aligned(weight_CD), None if bias_C is None else _aligned(bias_C)
    return softmax_kernels.nll(products.linear(hidden_ND, weight_CD, bias_C), targets_N, classes)


def _aligned(by_class: Tensor) -> Tensor:
    """Append rows of zeros, so that the rows of the logits are aligned.

    This uses `cat` because its gradient is a slice, whereas the gradient of `F.pad` is a copy.
    """
    return torch.cat([by_class, by_class.new_zeros(-len(by_class) % _ALIGNED, *by_class.shape[1:])])


def reduced(losses_N: Tensor, padding_N: Tensor, *, mean: bool) -> Tensor:
    """Return the sum or the mean of all losses that are not padding."""
    if losses_N.dtype == torch.float32 and availability.runs_on(losses_N):
        from vocabench.impls.on_torch.triton import softmax_kernels

        return softmax_kernels.reduced(losses_N, padding_N, mean)
    return losses_N.masked_fill(padding_N, 0.0).sum() / counted(padding_N, mean=mean)


def counted(padding_N: Tensor, *, mean: bool) -> Tensor | int:
    """Return the divisor of a sum of losses: the number of tokens, at least 1, for a mean, and 1 for a sum."""
    return (~padding_N).sum().clamp(min=1) if mean else 1


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert half precision to float32, as is needed before exponentials are summed."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
