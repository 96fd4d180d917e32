"""Words drawn from a distribution that a temperature, the k best words or the likeliest words restrict."""

from __future__ import annotations

import torch
from torch import Tensor

from vocabench.impls.calls import Sampling
from vocabench.impls.on_torch.ops import cpp_kernels
from vocabench.impls.on_torch.tensors import draw

_BELOW_ONE = 1 - 2.0**-24  # the largest float32 below 1
COLDEST = 1e-30  # a temperature at which only the likeliest words remain


def drawn_part(log_sum_NP: Tensor, uniforms_N: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a part of the words for each token, and return it with the uniform number that draws a word of the part.

    Args:
        log_sum_NP: Log-sum-exp of the logits of each part, whose words are consecutive.
        uniforms_N: Uniform numbers; each takes the word whose cumulative probability exceeds it.
    """
    share_NP = log_sum_NP.softmax(dim=1)
    part_N = draw(share_NP, uniforms_N)
    before_N = (share_NP.cumsum(dim=1) - share_NP).gather(1, part_N[:, None])[:, 0]
    left_N = (uniforms_N - before_N) / share_NP.gather(1, part_N[:, None])[:, 0]
    return part_N, left_N.clamp_(0, _BELOW_ONE)


def of_all(log_probs_NV: Tensor, uniforms_N: Tensor, sampling: Sampling) -> Tensor:
    """Return (N,) words drawn from all words, by a temperature and perhaps `top_p`."""
    if sampling.top_p is None:
        return draw(_tempered(log_probs_NV, sampling.temperature), uniforms_N)
    if cpp_kernels.draws_from(log_probs_NV):
        return cpp_kernels.nucleus(log_probs_NV, uniforms_N, max(sampling.temperature, COLDEST), sampling.top_p)
    # A stable sort keeps the lower of equally likely ids first.
    values_NV, ids_NV = log_probs_NV.sort(dim=1, descending=True, stable=True)
    return of_best(values_NV, ids_NV, uniforms_N, sampling)


def of_best(values_NK: Tensor, ids_NK: Tensor, uniforms_N: Tensor, sampling: Sampling) -> Tensor:
    """Return (N,) words drawn from some words, by a temperature and perhaps `top_p`.

    Args:
        values_NK: Log-probabilities, best first.
        ids_NK: Their words.
        uniforms_N: Uniform numbers; each takes the first word whose cumulative probability exceeds it.
        sampling: The options.
    """
    probabilities_NK = _tempered(values_NK, sampling.temperature)
    if sampling.top_p is not None:
        before_NK = probabilities_NK.cumsum(dim=1) - probabilities_NK
        before_NK[:, 0] = 0.0  # the likeliest word is always kept, whatever the rounding
        probabilities_NK = probabilities_NK.masked_fill(before_NK >= sampling.top_p, 0.0)
    return ids_NK.gather(1, draw(probabilities_NK, uniforms_N)[:, None])[:, 0]


def _tempered(log_probs_NK: Tensor, temperature: float) -> Tensor:
    """Return probabilities that are normalized over the given words."""
    below_NK = log_probs_NK - log_probs_NK.amax(dim=1, keepdim=True)  # a tiny temperature would overflow without this
    return torch.softmax(below_NK / max(temperature, COLDEST), dim=1)
