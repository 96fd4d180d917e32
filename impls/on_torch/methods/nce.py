"""Noise-contrastive estimation in PyTorch. See `impls/on_numpy/methods/nce.py` for the definition."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from vocabench.impls.on_torch.sampled import SampledLayer


class NoiseContrastiveEstimation(SampledLayer):
    """-log sigma(x_t) - sum over the sampled words of log sigma(-x_w), with x = s - log Z - log expected count."""

    def contrast(self, target_N: Tensor, sampled_NS: Tensor) -> Tensor:
        return F.softplus(-target_N) + F.softplus(sampled_NS).sum(dim=1)


LAYER = NoiseContrastiveEstimation
