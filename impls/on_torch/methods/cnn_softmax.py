"""CNN softmax in PyTorch. See `impls/on_numpy/methods/cnn_softmax.py` for the definition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.on_numpy.methods.cnn_softmax import WIDTHS, before
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, at_least_float32
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures.windows import WIDEST, windows

_MAX = 2  # the code of mode "max" in `torch.embedding_bag`


class CnnSoftmax(OutputLayer):
    """log P(w | h) = log softmax(h (f P^T / sqrt 4F + r M^T / sqrt R)^T + b)[w], where f (V, 4 F) are the pooled
    filters over each word's characters.

    Parameters: `char_embedding` (A, E), `conv{k}_weight` (F, k, E) and `conv{k}_bias` (F,) for k = 1..4,
    `char_projection` (D, 4 F), `bias` (V,) unless it is left out, and with a correction `correction_weight` (V, R) and
    `correction_projection` (D, R).

    Each call computes the scores (U, X) of the words' U distinct windows. The features (V, X) of a word are the highest
    score of each filter. If X + R is below D, the hidden vectors are projected to that width; otherwise the word
    vectors (V, D) are computed. These, the gradient of the scores and (V, X) ids are kept in memory.
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
        """Return the (V, X) features."""
        biases = [at_least_float32(self.get_parameter(f"conv{k}_bias")) for k in WIDTHS]
        # The bias is the same for all windows, so it is added after the maximum.
        return F.relu(_Highest.apply(self._scores(), self.ids, self.starts) + torch.cat(biases))

    def _scores(self) -> Tensor:
        """Return the (U, X) scores of each window and filter, at least in float32, since gradients are summed.

        One product computes the filters of all widths: narrow filters are padded with zeros.
        """
        dtype = self._main_parameter().dtype
        weights = [F.pad(self._scaled(f"conv{k}_weight"), (0, 0, before(k), WIDEST - k - before(k))) for k in WIDTHS]
        weight_XY = torch.cat(weights).flatten(1).to(dtype)
        embedding_AE = F.pad(at_least_float32(self.get_parameter("char_embedding")), (0, 0, 1, 0))  # row 0 is padding
        windows_UY = F.embedding(self.windows, embedding_AE).flatten(1).to(dtype)
        return at_least_float32(products.linear(windows_UY, weight_XY))

    def _scaled(self, name: str) -> Tensor:
        """Return a matrix divided by the square root of the number of terms of its products, at least in float32."""
        weight = at_least_float32(self.get_parameter(name))
        return weight / weight[0].numel() ** 0.5

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        bias_V, dtype = getattr(self, "bias", None), self._main_parameter().dtype
        features_VY, projection_DY = self._features().to(dtype), self._scaled("char_projection")
        if self._corrects:
            features_VY = torch.cat([features_VY, self.get_parameter("correction_weight")], dim=1)
            projection_DY = torch.cat([projection_DY, self._scaled("correction_projection")], dim=1)
        projection_DY = projection_DY.to(dtype)
        # The narrower of the two is multiplied with the whole vocabulary.
        if features_VY.shape[1] < self.spec.dim:
            return at_least_float32(products.linear(products.product(hidden_ND, projection_DY), features_VY, bias_V))
        return at_least_float32(products.linear(hidden_ND, products.linear(features_VY, projection_DY), bias_V))

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return F.cross_entropy(self._logits(hidden_ND), targets_N, reduction="none")

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return F.log_softmax(self._logits(hidden_ND), dim=1)


class _Highest(torch.autograd.Function):
    """(V, X) highest scores of each word; the gradient goes to the first of equal ones.

    This is `F.embedding_bag` with a faster backward pass.
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
