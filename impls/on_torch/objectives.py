"""Losses with label smoothing, z-loss and capped logits, and entropies, without an (N, V) array.

Where all log-probabilities or logits are needed, they are computed for some tokens at a time, and again in the backward
pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vocabench.impls.calls import Objective

_AT_ONCE = 2**24  # log-probabilities that are computed at a time


def in_blocks(compute: Callable[..., Tensor], vocab: int, *by_token: Tensor) -> Tensor:
    """Return `compute` of all tokens, from blocks of tokens whose (B, V) arrays are not kept for the backward pass."""
    tokens, width = by_token[0].size(0), max(1, _AT_ONCE // vocab)
    # A program that is exported for any number of tokens cannot be cut into blocks.
    if (torch.compiler.is_exporting() and isinstance(tokens, torch.SymInt)) or tokens <= width:
        return compute(*by_token)
    blocks = zip(*(array.split(width) for array in by_token), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([compute(*block) for block in blocks])
    parts = [checkpoint(compute, *block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    return torch.cat(parts)  # type: ignore[arg-type]


def entropy(log_probs_NV: Tensor) -> Tensor:
    """Return the (N,) entropies in nats."""
    return -(log_probs_NV.exp() * log_probs_NV).sum(dim=1)


def entropy_within(scores_NGS: Tensor) -> Tensor:
    """Return the (N, G) entropies in nats of the members of each group, from their scores; -inf in empty slots."""
    log_within_NGS = scores_NGS.log_softmax(dim=2)
    return -(log_within_NGS.exp() * log_within_NGS.masked_fill(scores_NGS.isneginf(), 0.0)).sum(dim=2)


def capped(logits_NV: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(logits_NV / softcap)


def losses_of_logits(logits_NV: Tensor, targets_N: Tensor, objective: Objective) -> Tensor:
    """Return the (N,) losses from logits that have been capped."""
    target_N = logits_NV.gather(1, targets_N[:, None])[:, 0]
    return losses_of_sums(logits_NV.logsumexp(dim=1), target_N, lambda: logits_NV.mean(dim=1), objective)


def losses_of_sums(
    log_sum_N: Tensor, target_N: Tensor, mean_logits: Callable[[], Tensor], objective: Objective
) -> Tensor:
    """Return the (N,) losses from the log-sum-exp of the logits, the targets' logits and the mean logits."""
    losses_N = log_sum_N - target_N
    if objective.label_smoothing:
        losses_N = losses_N + objective.label_smoothing * (target_N - mean_logits())
    return losses_N + objective.z_loss * log_sum_N.square() if objective.z_loss else losses_N
