"""The memory that a timing cell needs at least, so that one that cannot fit is skipped before it starts."""

from __future__ import annotations

import math
from pathlib import Path

import psutil

from vocabench.impls.errors import Unsupported
from vocabench.impls.spec import LayerSpec, storage

_GIB = 2**30
# Copies of the parameters while agreement is checked: two in float64, the definition's and its gradients, and, in the
# precision of the layer, the parameters, their gradients and those as NumPy arrays.
_FLOAT64_COPIES, _OWN_COPIES = 2, 3
_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_fits(
    spec: LayerSpec, plain: LayerSpec, tokens: int, device: str, root: Path = Path("/"), processes: int = 1
) -> None:
    """Refuse a cell that cannot fit into the memory of this machine.

    Args:
        spec: The layer.
        plain: Full softmax of the same size.
        tokens: Tokens of a batch.
        device: On another device than the CPU, only the check of agreement takes memory of the machine.
        root: The folder that holds `sys/fs/cgroup`.
        processes: Number of processes at a time, each of which checks agreement.

    Raises:
        Unsupported: The cell needs more than there is.
    """
    needed, limit = processes * needed_bytes(spec, plain, tokens, device), memory_bytes(root)
    if needed > limit:
        raise Unsupported(
            f"{spec.method} with vocab={spec.vocab}, dim={spec.dim} in {spec.dtype} needs at least "
            f"{needed / _GIB:.1f} GiB: allowed: {limit / _GIB:.1f} GiB, the memory of this machine"
        )


def needed_bytes(spec: LayerSpec, plain: LayerSpec, tokens: int, device: str) -> int:
    """Return the bytes of this machine's memory that a cell needs at least: to check agreement, or to time."""
    own = _element_bytes(spec)
    parameters, plain_parameters = _parameters(spec), _parameters(plain)
    on_cpu = device == "cpu"
    checking = parameters * (8 * _FLOAT64_COPIES + own * (_OWN_COPIES if on_cpu else 1))
    # Both layers with their gradients, and the logits of full softmax with theirs.
    timing = 2 * own * (parameters + plain_parameters) + 2 * own * tokens * plain.vocab if on_cpu else 0
    return max(checking, timing)


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory of this machine, or the part of it that this process may use."""
    limits = [psutil.virtual_memory().total]
    for name in _LIMITS:
        try:
            limits.append(int((root / name).read_text()))
        except (OSError, ValueError):  # not this version of control groups, or no limit
            continue
    return min(limits)


def _parameters(spec: LayerSpec) -> int:
    return sum(math.prod(shape) for shape in spec.parameter_shapes().values())


def _element_bytes(spec: LayerSpec) -> int:
    return {"bfloat16": 2, "float32": 4, "float64": 8}[storage(spec.dtype)]
