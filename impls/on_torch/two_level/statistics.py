"""The statistics q(w, c), from which SOHSM re-organizes itself (Shen et al. 2017, equation 9), on the device.

`impls/structures/statistics.py` defines the weights of old values and new samples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, distributed


def update(
    statistics_VC: Tensor, seen_V: Tensor, log_cluster_NC: Tensor, targets_N: Tensor, frequency_V: Tensor, kind: str
) -> None:
    """Update `statistics_VC` and `seen_V` in place with a batch.

    Args:
        statistics_VC: The moving averages of log2 P(c | h) over the occurrences of each word.
        seen_V: How often each word was a target so far.
        log_cluster_NC: log P(c | h).
        targets_N: int64 targets; those outside the vocabulary change nothing.
        frequency_V: float32 counts of the words in the training text, at least 1.
        kind: One of `statistics.SMOOTHINGS`.
    """
    vocab = len(seen_V)
    real_N = (targets_N >= 0) & (targets_N < vocab)
    words_N = targets_N.where(real_N, 0)
    times_V = torch.zeros_like(seen_V).index_add_(0, words_N, real_N.to(seen_V.dtype))
    keep_N, share_N = _weights(times_V[words_N], seen_V[words_N], frequency_V[words_N], kind)
    seen_V += times_V
    rows_N = torch.arange(len(words_N), device=words_N.device)
    first_N = torch.zeros_like(seen_V).scatter_(0, words_N, rows_N)[words_N]  # one row of the batch for each word
    weight_N1 = (share_N / math.log(2)).masked_fill(~real_N, 0.0)[:, None]
    new_NC = keep_N[:, None] * statistics_VC[words_N].float()
    sums_NC = torch.zeros_like(new_NC).index_add_(0, first_N, log_cluster_NC.float() * weight_N1)
    statistics_VC[words_N] = (new_NC + sums_NC[first_N]).to(statistics_VC.dtype)  # equal values in equal rows


def _weights(times_N: Tensor, seen_N: Tensor, frequency_N: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return the weight of each word's old value, and of each of its tokens in this batch."""
    new_N = times_N.clamp(min=1).float()
    decay_N = new_N * (-torch.log(frequency_N) if kind == "printed" else torch.log1p(-1 / frequency_N))
    keep_N, all_N = decay_N.exp(), -torch.expm1(decay_N)
    if kind == "running":
        total_N = seen_N + new_N
        keep_N, all_N = torch.minimum(seen_N / total_N, keep_N), torch.maximum(new_N / total_N, all_N)
    absent_N = times_N == 0
    return keep_N.masked_fill(absent_N, 1.0), (all_N / new_N).masked_fill(absent_N, 0.0)


def joined(log_cluster_NC: Tensor, targets_N: Tensor, group: distributed.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Return the batches of all processes of the group, in the order of their ranks and with -1 as padding."""
    processes = distributed.get_world_size(group)
    size = torch.tensor([len(targets_N)], device=targets_N.device)
    sizes = [torch.empty_like(size) for _ in range(processes)]
    distributed.all_gather(sizes, size, group=group)
    added = int(torch.cat(sizes).max()) - len(targets_N)
    own = (
        torch.nn.functional.pad(log_cluster_NC.float(), (0, 0, 0, added)),
        torch.nn.functional.pad(targets_N, (0, added), value=-1),
    )
    made = []
    for part in own:
        parts = [torch.empty_like(part) for _ in range(processes)]
        distributed.all_gather(parts, part.contiguous(), group=group)
        made.append(torch.cat(parts))
    return made[0], made[1]
