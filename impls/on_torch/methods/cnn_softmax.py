"""CNN softmax in PyTorch. See `impls/on_numpy/methods/cnn_softmax.py` for the definition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.on_numpy.methods.cnn_softmax import WIDTHS, before
from vocabench.impls.on_torch.layer import TORCH_DTYPES, OutputLayer, at_least_float32
from vocabench.impls.on_torch.ops import products
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures.windows import WIDEST, windows

_MAX = 2  # what `torch.embedding_bag` calls the largest


class CnnSoftmax(OutputLayer):
    """log P(w | h) = log softmax(h (f P^T / sqrt 4F + r M^T / sqrt R)^T + b)[w], with f the pooled filters over the
    characters of every word.

    Parameters: `char_embedding` (A, E), `conv{k}_weight` (F, k, E) and `conv{k}_bias` (F,) for k = 1..4,
    `char_projection` (D, 4 F), `correction_weight` (V, R) and `correction_projection` (D, R) where there is a
    correction, `bias` (V,).

    Every call makes the scores (U, X) of the U different windows that the words have, of which each word takes the
    highest a filter: (V, X) features. Where X + R is below D the hidden vectors are projected to that, else the words'
    vectors (V, D) are made. Held are these, the scores' gradient and (V, X) ids.
    """

    windows: Tensor
    ids: Tensor
    starts: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        dtype = TORCH_DTYPES[spec.dtype]
        for name, shape in spec.parameter_shapes().items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype)))
        windows_UK, ids_VT = windows(spec.structure["characters"])
        own_VT = torch.from_numpy(ids_VT >= 0)
        length_V = own_VT.sum(dim=1)
        self.register_buffer("windows", torch.from_numpy(windows_UK), persistent=False)
        self.register_buffer("ids", torch.from_numpy(ids_VT)[own_VT].long(), persistent=False)
        self.register_buffer("starts", length_V.cumsum(dim=0) - length_V, persistent=False)
        self._corrects = "correction_weight" in spec.parameter_shapes()

    def _features(self) -> Tensor:
        """(V, X)"""
        biases = [at_least_float32(self.get_parameter(f"conv{k}_bias")) for k in WIDTHS]
        # A bias is the same at every place: it can wait until one is chosen.
        return F.relu(_Highest.apply(self._scores(), self.ids, self.starts) + torch.cat(biases))

    def _scores(self) -> Tensor:
        """(U, X) of each window and filter, in float32 at least, as gradients are summed.

        All widths are one product: filters short of the widest are filled up.
        """
        dtype = self.get_parameter("bias").dtype
        weights = [F.pad(self._scaled(f"conv{k}_weight"), (0, 0, before(k), WIDEST - k - before(k))) for k in WIDTHS]
        weight_XY = torch.cat(weights).flatten(1).to(dtype)
        embedding_AE = F.pad(at_least_float32(self.get_parameter("char_embedding")), (0, 0, 1, 0))  # row 0 is padding
        windows_UY = F.embedding(self.windows, embedding_AE).flatten(1).to(dtype)
        return at_least_float32(products.linear(windows_UY, weight_XY))

    def _scaled(self, name: str) -> Tensor:
        """A matrix over the square root of how many terms its products have, in float32 at least."""
        weight = at_least_float32(self.get_parameter(name))
        return weight / weight[0].numel() ** 0.5

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        bias_V = self.get_parameter("bias")
        dtype = bias_V.dtype
        features_VY, projection_DY = self._features().to(dtype), self._scaled("char_projection")
        if self._corrects:
            features_VY = torch.cat([features_VY, self.get_parameter("correction_weight")], dim=1)
            projection_DY = torch.cat([projection_DY, self._scaled("correction_projection")], dim=1)
        projection_DY = projection_DY.to(dtype)
        # Whichever is narrower meets the vocabulary.
        if features_VY.shape[1] < self.spec.dim:
            return at_least_float32(products.linear(products.product(hidden_ND, projection_DY), features_VY, bias_V))
        return at_least_float32(products.linear(hidden_ND, products.linear(features_VY, projection_DY), bias_V))

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return F.cross_entropy(self._logits(hidden_ND), targets_N, reduction="none")

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        return F.log_softmax(self._logits(hidden_ND), dim=1)


class _Highest(torch.autograd.Function):
    """(V, X) the highest of each word's scores; the gradient goes to the first that is as high.

    `F.embedding_bag` without its gradient, which takes longer.
    """

    @staticmethod
    def forward(ctx: Any, scores_UX: Tensor, ids_S: Tensor, starts_V: Tensor) -> Tensor:
        highest_VX, _, _, winner_VX = torch.embedding_bag(scores_UX, ids_S, starts_V, mode=_MAX)
        ctx.save_for_backward(winner_VX)
        ctx.windows = len(scores_UX)
        return highest_VX

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (dhighest_VX,), (winner_VX,) = upstream, ctx.saved_tensors
        dscores_UX = dhighest_VX.new_zeros(ctx.windows, dhighest_VX.shape[1])
        return dscores_UX.scatter_add_(0, winner_VX, dhighest_VX), None, None


LAYER = CnnSoftmax
