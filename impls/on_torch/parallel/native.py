"""The layer of each method whose words can be split over the ranks of a process group."""

from __future__ import annotations

import importlib

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from vocabench.impls.errors import BadInput
from vocabench.impls.on_torch.parallel.layer import ParallelLayer
from vocabench.impls.on_torch.parallel.ranks import Ranks
from vocabench.impls.spec import LayerSpec

# The module of this package that has the layer of a method.
_MODULES = dict.fromkeys(("full_softmax", "inplace_softmax", "fused_softmax"), "softmax") | {
    "sohsm": "sohsm",
    "huffman": "huffman",
}


def methods() -> list[str]:
    """Return the methods whose words can be split."""
    return list(_MODULES)


def parallel(
    spec: LayerSpec, group: distributed.ProcessGroup | DeviceMesh, device: torch.device | str
) -> ParallelLayer:
    """Create this rank's part of the layer of `spec`, with its initial parameters, on a device.

    Raises:
        BadInput: The method cannot be split, or the group or the layer does not suit.
    """
    if spec.method not in _MODULES:
        raise BadInput(f"{spec.method} with a group: allowed: {', '.join(_MODULES)}")
    module = importlib.import_module(f"vocabench.impls.on_torch.parallel.{_MODULES[spec.method]}")
    layer = module.LAYER(spec, Ranks(group))
    layer.load_canonical({name: torch.from_numpy(value) for name, value in spec.initial_parameters().items()})
    return layer.to(device)
