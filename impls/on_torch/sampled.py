"""The base of losses over sampled words in PyTorch. See `impls/on_numpy/sampled.py` for the definition."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from vocabench.impls.on_numpy import sampled
from vocabench.impls.on_torch.methods.full_softmax import FullSoftmax
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.ops.rows import rows_of
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, at_least_float32
from vocabench.impls.spec import LayerSpec


class SampledLayer(FullSoftmax):
    """Full softmax, trained on the target and the sampled words: `layer(hidden_ND, targets_N, sampled_ids=ids_S)`.

    Where each token has sampled words of its own, the layer takes `sampled_ids=ids_NS`. Batches with a correction of
    their own pass it as `correction=correction_V`.

    Parameters: `weight` (V, D), `bias` (V,), and `log_normaliser` (1,) if it is learned. Buffers: `correction` (V,),
    which is subtracted from each word's score.
    """

    correction: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        dtype = TORCH_DTYPES[spec.dtype]
        if "log_normaliser" in spec.parameter_shapes():
            self.log_normaliser = nn.Parameter(torch.empty(1, dtype=dtype))
        correction = torch.from_numpy(spec.structure["correction"])
        kept_in = at_least_float32(torch.empty(0, dtype=dtype)).dtype
        self.register_buffer("correction", correction.to(kept_in), persistent=False)

    @abstractmethod
    def contrast(self, target_N: Tensor, sampled_NS: Tensor) -> Tensor:
        """Return the (N,) losses from the corrected scores of targets and sampled words; removed words have -inf."""

    def _losses(  # type: ignore[override]
        self, hidden_ND: Tensor, targets_N: Tensor, *, sampled_ids: Tensor, correction: Tensor | None = None
    ) -> Tensor:
        ids_R, sizes = torch.cat([targets_N, sampled_ids.flatten()]), [targets_N.size(0), sampled_ids.numel()]
        correction_V = self.correction if correction is None else correction
        target_ND, sampled_XD = rows_of(self.weight, ids_R, self.row_sparse).split(sizes)
        offset_R = -correction_V[ids_R].to(self.correction.dtype)
        if self.bias is not None:
            offset_R = rows_of(self.bias, ids_R, self.row_sparse) + offset_R
        if "log_normaliser" in self._parameters:
            offset_R = offset_R - self.log_normaliser
        offset_N, offset_X = offset_R.split(sizes)
        cast_ND = hidden_ND.to(self.weight.dtype)
        target_N = (at_least_float32(cast_ND) * target_ND).sum(dim=1) + offset_N
        if sampled_ids.dim() == 1:
            product_NS = products.linear(cast_ND, sampled_XD.to(self.weight.dtype))
        else:
            sampled_NSD = sampled_XD.unflatten(0, sampled_ids.shape)
            # On a CPU, the products in the other order take three to five times as long.
            product_NS = torch.bmm(at_least_float32(cast_ND)[:, None], sampled_NSD.transpose(1, 2))[:, 0]
        sampled_NS = at_least_float32(product_NS) + offset_X.view(sampled_ids.shape)
        if self.spec.options["remove_hits"]:
            sampled_NS = sampled_NS.masked_fill(targets_N[:, None] == sampled_ids, -torch.inf)
        return self.contrast(target_N, sampled_NS)

    def rows_read(  # type: ignore[override]
        self, targets_N: Tensor, *, sampled_ids: Tensor, correction: Tensor | None = None
    ) -> dict[str, Tensor]:
        ids_R = torch.cat([targets_N, sampled_ids.flatten()])
        return {"weight": ids_R} if self.bias is None else {"weight": ids_R, "bias": ids_R}

    def formulation(self) -> str:
        return f"rows of the targets and of {sampled.described(self.spec)}"
