"""A conformer encoder in PyTorch.

See `impls/models/recognizer.py` for the formulas. Shape letters: B utterances, F frames of features, M mels, S frames
after the convolutions, H heads, E = D / H, P = 2 S offsets between frames.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.models.recognizer import NORM_EPSILON, RecognizerConfig, frames_after, sinusoids
from vocabench.impls.on_torch.models._transformer import Attention, FeedForward


class Sinusoids(nn.Module):
    """Sinusoids of integers, from a table that grows to the longest requested range."""

    table: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(0, dim), persistent=False)

    def around(self, size: int) -> Tensor:
        """Return the (P, D) sinusoids of size - 1 down to -size."""
        half = len(self.table) // 2
        if size > half:
            half = max(size, 2 * half)
            positions = np.arange(half - 1, -half - 1, -1)
            self.table = torch.from_numpy(sinusoids(positions, self.table.shape[1])).to(self.table)
        return self.table[half - size : half + size]

    def between(self, start: int, end: int) -> Tensor:
        """Return the (T, D) sinusoids of start up to end - 1, for start >= 0."""
        return self.around(end)[: end - start].flip(0)


class Front(nn.Module):
    """Two strided convolutions from features (B, F, M) to frames (B, S, D)."""

    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, config.channels, 3, stride=2)
        self.conv2 = nn.Conv2d(config.channels, config.channels, 3, stride=2)
        self.out = nn.Linear(config.channels * int(frames_after(config.mels)), config.dim)

    def forward(self, features_BFM: Tensor) -> Tensor:
        x_BCSM = F.relu_(self.conv2(F.relu_(self.conv1(features_BFM[:, None]))))
        return self.out(x_BCSM.transpose(1, 2).flatten(2)) * self.out.out_features**0.5


class RelativeAttention(Attention):
    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__(config)
        self.position = nn.Linear(config.dim, config.dim, bias=False)
        self.content_bias = nn.Parameter(torch.empty(config.heads, config.dim // config.heads))
        self.position_bias = nn.Parameter(torch.empty(config.heads, config.dim // config.heads))

    def forward(self, x_BSD: Tensor, real_B11S: Tensor, offsets_PD: Tensor) -> Tensor:
        normed_BSD = self.norm(x_BSD)
        query_BHSE = self.split(self.query(normed_BSD))
        position_BHSE = (query_BHSE + self.position_bias[:, None]) * query_BHSE.shape[3] ** -0.5
        offsets_HEP = self.split(self.position(offsets_PD)[None])[0].transpose(1, 2)
        scores_BHSS = by_frame(position_BHSE @ offsets_HEP).masked_fill(~real_B11S, -torch.inf)
        return self.attend(query_BHSE + self.content_bias[:, None], self.keys_values(normed_BSD), scores_BHSS)


def by_frame(scores_BHSP: Tensor) -> Tensor:
    """Return the (B, H, S, S) scores of frames i with offsets i - j, from the scores with all offsets S - 1 down to -S.

    Each row begins one place further left than the previous one. This is a view whose rows are one element shorter.
    """
    size = scores_BHSP.shape[2]
    return scores_BHSP.flatten(2)[..., size - 1 : -1].unflatten(2, (size, 2 * size - 1))[..., :size]


class Convolution(nn.Module):
    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__()
        dim, kernel = config.dim, config.kernel
        self.norm = nn.LayerNorm(dim, NORM_EPSILON)
        self.add_module("in", nn.Linear(dim, 2 * dim))
        self.depth = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.mid = nn.LayerNorm(dim, NORM_EPSILON)
        self.out = nn.Linear(dim, dim)

    def forward(self, x_BSD: Tensor, padding_BS1: Tensor) -> Tensor:
        x_BSD = F.glu(self.get_submodule("in")(self.norm(x_BSD)), dim=2).masked_fill(padding_BS1, 0.0)
        x_BSD = self.depth(x_BSD.transpose(1, 2)).transpose(1, 2)
        return self.out(F.silu(self.mid(x_BSD)))


class EncoderBlock(nn.Module):
    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__()
        self.feed1 = FeedForward(config, nn.SiLU())
        self.attention = RelativeAttention(config)
        self.conv = Convolution(config)
        self.feed2 = FeedForward(config, nn.SiLU())
        self.norm = nn.LayerNorm(config.dim, NORM_EPSILON)

    def forward(self, x_BSD: Tensor, real_BS: Tensor, offsets_PD: Tensor) -> Tensor:
        x_BSD = torch.add(x_BSD, self.feed1(x_BSD), alpha=0.5)
        x_BSD = x_BSD + self.attention(x_BSD, real_BS[:, None, None, :], offsets_PD)
        x_BSD = x_BSD + self.conv(x_BSD, ~real_BS[:, :, None])
        x_BSD = torch.add(x_BSD, self.feed2(x_BSD), alpha=0.5)
        return self.norm(x_BSD)
