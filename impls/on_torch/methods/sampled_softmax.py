"""Sampled softmax in PyTorch. See `impls/on_numpy/methods/sampled_softmax.py` for the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from vocabench.impls.on_torch.sampled import SampledLayer


class SampledSoftmax(SampledLayer):
    """Cross-entropy over the target and the sampled words, with the log expected count subtracted from each score."""

    def contrast(self, target_N: Tensor, sampled_NS: Tensor) -> Tensor:
        return torch.cat([target_N[:, None], sampled_NS], dim=1).logsumexp(dim=1) - target_N


LAYER = SampledSoftmax
