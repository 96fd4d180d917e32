"""Layers whose words are split over ranks, behind the NumPy contract: one process for each rank, on one machine."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torch import distributed

from vocabench.impls import cpus
from vocabench.impls.contract import Layer
from vocabench.impls.forms import CPU, kind_of
from vocabench.impls.on_torch.contract_layer import TorchLayer
from vocabench.impls.on_torch.parallel.native import methods, parallel
from vocabench.impls.spec import LayerSpec

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # read when the libraries load
_PATIENCE = timedelta(minutes=10)  # a rank that ends is noticed at once by its parent, which ends the others


class Rank:
    """One rank of a process group of all processes, as `impls.adapter.Part` describes it."""

    def __init__(self, devices: int, device: str, rank: int, folder: str) -> None:
        is_cpu = kind_of(device) == CPU
        self._device = torch.device("cpu" if is_cpu else f"cuda:{rank}")
        if not is_cpu:
            torch.cuda.set_device(self._device)
        distributed.init_process_group(
            "gloo" if is_cpu else "nccl",
            init_method=f"file://{folder}/ranks",
            rank=rank,
            world_size=devices,
            timeout=_PATIENCE,
        )

    def create_layer(self, spec: LayerSpec) -> Layer:
        assert distributed.group.WORLD is not None
        return TorchLayer(spec, self._device, parallel(spec, distributed.group.WORLD, self._device))

    def highest(self, value: float) -> float:
        values = torch.tensor([value], dtype=torch.float64, device=self._device)
        distributed.all_reduce(values, op=distributed.ReduceOp.MAX)
        return float(values)

    def parameters_of_device(self, layer: Layer) -> int:
        assert isinstance(layer, TorchLayer)
        return sum(parameter.numel() for parameter in layer.native.parameters())

    def leave(self) -> None:
        distributed.destroy_process_group()


class TorchParallel:
    """Words over the ranks of a process group, as `impls.adapter.Parallel` describes it."""

    def methods(self) -> list[str]:
        return methods()

    def environments(self, devices: int, device: str) -> list[dict[str, str]]:
        given = os.environ.get(_THREADS[0], "")
        threads = str(max(1, (int(given) if given.isdecimal() else cpus.usable()) // devices))
        return [dict.fromkeys(_THREADS, threads) if kind_of(device) == CPU else {} for _ in range(devices)]

    def join(self, devices: int, device: str, rank: int, folder: str) -> Rank:
        return Rank(devices, device, rank, folder)
