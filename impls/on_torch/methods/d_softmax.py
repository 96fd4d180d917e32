"""Differentiated softmax in PyTorch. See `impls/on_numpy/methods/d_softmax.py` for the definition."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.ops.once import once_differentiable
from vocabench.impls.on_torch.ops.rows import mean_row, rows_of
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, Tensors, at_least_float32
from vocabench.impls.on_torch.tracing import is_tracing
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
        pairs = ctx.saved_tensors  # activation checkpointing computes them once
        inputs, weights = pairs[::2], pairs[1::2]
        parts = dlogits_NV.split([len(weight) for weight in weights], dim=1)
        dpairs = []
        for part, inputs_NE, weight in zip(parts, inputs, weights, strict=True):
            dpairs += [part @ weight, products.weight_gradient(part, inputs_NE)]
        return dlogits_NV.sum(dim=0), *dpairs


def _product_dtype(parameter: Tensor) -> torch.dtype:
    """Return the dtype of products: autocast does not apply to products that are written to a given array."""
    device = parameter.device.type
    casts = torch.is_autocast_enabled(device) and parameter.dtype != torch.float64
    return torch.get_autocast_dtype(device) if casts else parameter.dtype


class DifferentiatedSoftmax(OutputLayer):
    """log P(w | h) = h_b.W_w + bias_w - logsumexp over the words of all bands, for w in band b with the slice h_b of h
    (Chen, Grangier, Auli 2016).

    Parameters: `band{b}_weight` (words of band b, E_b); `bias` (V,), band after band like the logits, or None.
    Buffers: `word` (V,) of each column of the logits; `place` (V,), the column of each word.
    """

    bias: nn.Parameter | None
    word: Tensor
    place: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        for name, shape in spec.parameter_shapes().items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=TORCH_DTYPES[spec.dtype])))
        if not spec.has_bias:
            self.register_parameter("bias", None)
        self.bands = int(spec.structure["band"].max()) + 1
        self.register_buffer("word", torch.from_numpy(bands.words_by_band(spec.structure["band"])), persistent=False)
        self.register_buffer("place", torch.from_numpy(bands.places(spec.structure["band"])), persistent=False)

    @property
    def _bias_V(self) -> Tensor:
        """The biases (V,), band after band, or zeros for a layer without."""
        return self._main_parameter().new_zeros(self.spec.vocab) if self.bias is None else self.bias

    def _of_bands(self, kind: str) -> list[Tensor]:
        return [self.get_parameter(f"band{band}_{kind}") for band in range(self.bands)]

    def _inputs(self, hidden_ND: Tensor) -> list[Tensor]:
        """Return the (N, E) inputs of each band."""
        return list(hidden_ND.split([weight.shape[1] for weight in self._of_bands("weight")], dim=1))

    def _band_logits(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N, V) logits, band after band."""
        bias_V = self._bias_V
        pairs = zip(self._inputs(hidden_ND.to(bias_V.dtype)), self._of_bands("weight"), strict=True)
        bias, *factors = (factor.to(_product_dtype(bias_V)) for factor in (bias_V, *itertools.chain(*pairs)))
        if is_tracing():  # a trace cannot write into parts of an array
            parts_NS = [inputs_NE @ weight.T for inputs_NE, weight in zip(factors[::2], factors[1::2], strict=True)]
            return at_least_float32(torch.cat(parts_NS, dim=1) + bias)
        return at_least_float32(_BandLogits.apply(bias, *factors))  # type: ignore[arg-type]

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return F.cross_entropy(self._band_logits(hidden_ND), self.place[targets_N], reduction="none")

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return F.log_softmax(self._band_logits(hidden_ND), dim=1).index_select(1, self.place)

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        return self._band_logits(hidden_ND).index_select(1, self.place)

    def _target_logits(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        bias_V, column_N = self._bias_V, self.place[targets_N]
        inputs, target_N, start = self._inputs(hidden_ND.to(bias_V.dtype)), rows_of(bias_V, column_N), 0
        for inputs_NE, weight in zip(inputs, self._of_bands("weight"), strict=True):
            inside_N = (column_N >= start) & (column_N < start + len(weight))
            weight_NE = rows_of(weight, (column_N - start).clamp(0, len(weight) - 1))
            target_N = target_N + ((at_least_float32(inputs_NE) * weight_NE).sum(dim=1)).where(inside_N, 0.0)
            start += len(weight)
        return target_N

    def _mean_logits(self, hidden_ND: Tensor) -> Tensor:
        bias_V, vocab = self._bias_V, self.spec.vocab
        inputs, mean_N = self._inputs(hidden_ND.to(bias_V.dtype)), mean_row(bias_V)
        for inputs_NE, weight in zip(inputs, self._of_bands("weight"), strict=True):
            mean_N = mean_N + at_least_float32(inputs_NE) @ (mean_row(weight) * (len(weight) / vocab))
        return mean_N

    def to_canonical(self, tensors: Tensors) -> Tensors:
        return tensors | {"bias": tensors["bias"][self.place]} if "bias" in tensors else dict(tensors)

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return tensors | {"bias": tensors["bias"][self.word]} if "bias" in tensors else dict(tensors)


LAYER = DifferentiatedSoftmax
