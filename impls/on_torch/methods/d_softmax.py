"""Differentiated softmax in PyTorch. See `impls/on_numpy/methods/d_softmax.py` for the definition."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vocabench.impls.on_torch.layer import TORCH_DTYPES, OutputLayer, Tensors, at_least_float32
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import bands


class _BandLogits(torch.autograd.Function):
    """(N, V) logits, band after band; each product is written to its columns.

    Concatenating the bands would copy all logits, which takes a tenth to a fifth of a training step.
    """

    @staticmethod
    def forward(ctx, bias, *pairs: Tensor) -> Tensor:  # type: ignore[override]
        inputs, weights = pairs[::2], pairs[1::2]
        ctx.save_for_backward(*pairs)
        logits_NV = bias.new_empty(len(inputs[0]), len(bias))
        sizes = [len(weight) for weight in weights]
        parts = zip(logits_NV.split(sizes, dim=1), bias.split(sizes), inputs, weights, strict=True)
        for part, part_bias, inputs_NE, weight in parts:
            torch.addmm(part_bias, inputs_NE, weight.T, out=part)
        return logits_NV

    @staticmethod
    @once_differentiable
    def backward(ctx, dlogits_NV):  # type: ignore[override]
        inputs, weights = ctx.saved_tensors[::2], ctx.saved_tensors[1::2]
        parts = dlogits_NV.split([len(weight) for weight in weights], dim=1)
        dpairs = []
        for part, inputs_NE, weight in zip(parts, inputs, weights, strict=True):
            dpairs += [part @ weight, part.T @ inputs_NE]
        return dlogits_NV.sum(dim=0), *dpairs


def _product_dtype(parameter: Tensor) -> torch.dtype:
    """Return the dtype of products: autocast does not apply to products that are written to a given array."""
    device = parameter.device.type
    casts = torch.is_autocast_enabled(device) and parameter.dtype != torch.float64
    return torch.get_autocast_dtype(device) if casts else parameter.dtype


class DifferentiatedSoftmax(OutputLayer):
    """log P(w | h) = h_b.W_w + bias_w - logsumexp over the words of all bands, for w in band b with the slice h_b of h
    (Chen, Grangier, Auli 2016).

    Parameters: `band{b}_weight` (words of band b, E_b); `bias` (V,), band after band like the logits. Buffers: `word`
    (V,) of each column of the logits; `place` (V,), the column of each word.
    """

    bias: Tensor
    word: Tensor
    place: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        for name, shape in spec.parameter_shapes().items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=TORCH_DTYPES[spec.dtype])))
        self.bands = int(spec.structure["band"].max()) + 1
        self.register_buffer("word", torch.from_numpy(bands.words_by_band(spec.structure["band"])))
        self.register_buffer("place", torch.from_numpy(bands.places(spec.structure["band"])))

    def _of_bands(self, kind: str) -> list[Tensor]:
        return [self.get_parameter(f"band{band}_{kind}") for band in range(self.bands)]

    def _inputs(self, hidden_ND: Tensor) -> list[Tensor]:
        """Return the (N, E) inputs of each band."""
        return list(hidden_ND.split([weight.shape[1] for weight in self._of_bands("weight")], dim=1))

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N, V) logits, band after band."""
        pairs = zip(self._inputs(hidden_ND.to(self.bias.dtype)), self._of_bands("weight"), strict=True)
        factors = (factor.to(_product_dtype(self.bias)) for factor in (self.bias, *itertools.chain(*pairs)))
        return at_least_float32(_BandLogits.apply(*factors))  # type: ignore[arg-type]

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return F.cross_entropy(self._logits(hidden_ND), self.place[targets_N], reduction="none")

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        return F.log_softmax(self._logits(hidden_ND), dim=1).index_select(1, self.place)

    def to_canonical(self, tensors: Tensors) -> Tensors:
        return tensors | {"bias": tensors["bias"][self.place]}

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return tensors | {"bias": tensors["bias"][self.word]}


LAYER = DifferentiatedSoftmax
