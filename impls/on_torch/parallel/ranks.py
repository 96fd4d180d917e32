"""The ranks of a process group over which the words of a layer are split, and what they exchange.

All ranks hold the same hidden vectors and targets. Each computes with its own words, and a few numbers for each token
make the results those of the whole vocabulary. Logits never leave their rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh

from vocabench.impls.errors import BadInput
from vocabench.impls.on_torch.ops.once import once_differentiable
from vocabench.impls.on_torch.tensors import at_least_float32


class LostRank(RuntimeError):
    """Another rank of the process group has ended, or has not answered within the timeout of the group."""


class Ranks:
    """The ranks of a process group, seen from one of them.

    Attributes:
        group: The process group.
        rank: This rank, from 0.
        size: Number of ranks.
    """

    def __init__(self, group: distributed.ProcessGroup | DeviceMesh) -> None:
        if not distributed.is_available() or not distributed.is_initialized():
            raise BadInput("group without torch.distributed: allowed: after torch.distributed.init_process_group")
        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                raise BadInput(f"group is a mesh of {group.ndim} axes: allowed: one axis, as of mesh['vocab']")
            group = group.get_group()
        if not isinstance(group, distributed.ProcessGroup):
            raise BadInput(f"group is a {type(group).__name__}: allowed: a ProcessGroup or a DeviceMesh of one axis")
        self.group = group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        if self.rank < 0:
            raise BadInput("group does not have this process: allowed: a group of which the process is a rank")

    def __deepcopy__(self, memo: object) -> Ranks:
        return self  # a process has one connection to its group

    @contextmanager
    def _exchange(self, call: str) -> Iterator[None]:
        """Turn the failure of a collective call, whose message depends on the backend, into one clear line."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise LostRank(
                f"{call} of rank {self.rank} of {self.size}: another rank has ended or does not answer ({reason})"
            ) from None

    # Without gradients.
    def add_up(self, own: Tensor) -> Tensor:
        """Replace a tensor by its sum over all ranks, in place, and return it."""
        with self._exchange("all_reduce"):
            distributed.all_reduce(own, group=self.group)
        return own

    def highest(self, own: Tensor) -> Tensor:
        """Return the elementwise maximum over all ranks."""
        highest = own.clone()
        with self._exchange("all_reduce"):
            distributed.all_reduce(highest, op=distributed.ReduceOp.MAX, group=self.group)
        return highest

    def stacked(self, own: Tensor) -> Tensor:
        """Return the tensors of all ranks, which have one shape, as (R, ...)."""
        parts = own.new_empty(self.size, *own.shape)
        with self._exchange("all_gather"):
            distributed.all_gather(list(parts.unbind()), own.contiguous(), group=self.group)
        return parts

    def objects(self, own: object) -> list[Any]:
        """Return an object of each rank, which can be pickled."""
        objects: list[Any] = [None] * self.size
        with self._exchange("all_gather"):
            distributed.all_gather_object(objects, own, group=self.group)
        return objects

    def concatenated(self, own: Tensor, sizes: list[int]) -> Tensor:
        """Return the tensors of all ranks, which differ in the size of the first axis, one after the other."""
        padded = own.new_zeros(max(sizes), *own.shape[1:])
        padded[: len(own)] = own
        return torch.cat([part[:size] for part, size in zip(self.stacked(padded), sizes, strict=True)])

    def joined(self, log_sum_N: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-sum-exp (N,) over the words of all ranks, and the targets' logits (N,).

        Three numbers for each token cross the wire: the highest log-sum-exp of a rank, the sum relative to it, and the
        logit of the target.

        Args:
            log_sum_N: Log-sum-exp over the words of this rank.
            target_N: The target's logit, and 0 on every rank but one.
        """
        highest_N = self.highest(log_sum_N)
        sums_2N = self.add_up(torch.stack([(log_sum_N - highest_N).exp_(), target_N]))
        return sums_2N[0].log_().add_(highest_N), sums_2N[1]

    # With gradients. What follows them is computed alike on all ranks.
    def nll(self, log_sum_N: Tensor, target_N: Tensor) -> Tensor:
        """Return the (N,) negative log-likelihoods over the words of all ranks; arguments as in `joined`."""
        log_sum_N, target_N = self.joined_with_gradients(log_sum_N, target_N)
        return log_sum_N - target_N

    def joined_with_gradients(self, log_sum_N: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        return _Joined.apply(log_sum_N, target_N, self)  # type: ignore[return-value]


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, log_sum_N, target_N, ranks: Ranks) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        joined_N, target_N = ranks.joined(log_sum_N, target_N)
        ctx.save_for_backward((log_sum_N - joined_N).exp_())  # this rank's share of the probability
        return joined_N, target_N

    @staticmethod
    @once_differentiable
    def backward(ctx, djoined_N, dtarget_N):  # type: ignore[override]
        return djoined_N * ctx.saved_tensors[0], dtarget_N, None


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, ranks: Ranks) -> Tensor:  # type: ignore[override]
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx, dtensor):  # type: ignore[override]
        # Summed in float32, so that the result does not depend on the number of ranks in half precision.
        total = at_least_float32(dtensor).clone(memory_format=torch.contiguous_format)
        return ctx.ranks.add_up(total).to(dtensor.dtype), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, ranks: Ranks) -> Tensor:  # type: ignore[override]
        return ranks.add_up(tensor.clone(memory_format=torch.contiguous_format))

    @staticmethod
    @once_differentiable
    def backward(ctx, dtensor):  # type: ignore[override]
        return dtensor, None


class _Concatenated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, sizes: list[int], ranks: Ranks) -> Tensor:  # type: ignore[override]
        ctx.first, ctx.own = sum(sizes[: ranks.rank]), len(own)
        return ranks.concatenated(own, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx, dall):  # type: ignore[override]
        return dall.narrow(0, ctx.first, ctx.own), None, None


def copied(tensor: Tensor, ranks: Ranks) -> Tensor:
    """Return a tensor that is the same on all ranks, for use with their words, and sum its gradient over them."""
    return _Copied.apply(tensor, ranks)  # type: ignore[return-value]


def summed(tensor: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum over all ranks of what each computed from its words."""
    return _Summed.apply(tensor, ranks)  # type: ignore[return-value]


def concatenated(own: Tensor, sizes: list[int], ranks: Ranks) -> Tensor:
    """Return what `Ranks.concatenated` does, with gradients."""
    return _Concatenated.apply(own, sizes, ranks)  # type: ignore[return-value]


def entries(values_NV: Tensor, columns_N: Tensor) -> Tensor:
    """Return the (N,) entries of these columns."""
    return values_NV.gather(1, columns_N[:, None])[:, 0]


def own_entries(values_NV: Tensor, columns_N: Tensor) -> Tensor:
    """Return the (N,) entries of these columns, and 0 where the column is -1: a word of another rank."""
    return entries(values_NV, columns_N.clamp(min=0)).where(columns_N >= 0, 0.0)
