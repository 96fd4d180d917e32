"""The adapter of PyTorch, as `impls/adapter.py` describes it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from vocabench.impls import cpp
from vocabench.impls.adapter import Parallel
from vocabench.impls.contract import Layer
from vocabench.impls.forms import CPU, Form, kind_of, on_device
from vocabench.impls.models.network import Config, Network, network_class
from vocabench.impls.on_torch.contract_layer import TorchLayer
from vocabench.impls.on_torch.device import check_device, devices, precision, synchronize
from vocabench.impls.on_torch.native import layer_class, native
from vocabench.impls.on_torch.ops import cpp_kernels, products
from vocabench.impls.on_torch.tensors import TORCH_DTYPES
from vocabench.impls.spec import LayerSpec

__all__ = [
    "DISTRIBUTION",
    "compute_capability",
    "counts_memory",
    "create_layer",
    "create_network",
    "describe",
    "devices",
    "forms",
    "native",
    "parallel",
    "peak_counted_bytes",
    "prepare_add",
    "prepare_process",
    "prepare_product",
]

DISTRIBUTION = "torch"


def prepare_process() -> None:
    """Flush denormal numbers to zero, as XLA and TensorFlow do by default.

    Late in training most in-cluster probabilities are tiny. Their products with small gradients are denormal, which
    makes a step take four times as long. PyTorch's threads inherit the setting, so this must run before they start.
    """
    torch.set_flush_denormal(True)


def describe(device: str, dtype: str = "float32") -> dict[str, str]:
    """Return the versions and settings that a row of this device and precision keeps as provenance."""
    facts = {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "flush_denormal": str(_flushes_denormals()),
    }
    if kind_of(device) == CPU:
        return facts | {
            "device_name": platform.processor() or platform.machine(),
            "products_of_few": "words first" if products.words_first() else "vectors first",
            "products": "oneDNN" if products.onednn_is_faster() else "MKL",
            "compiler": cpp.version(cpp_kernels.interface()),
        }
    with precision(dtype, check_device(device)):
        return facts | {
            "device_name": torch.cuda.get_device_name(device),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            "tf32": str(torch.backends.cuda.matmul.allow_tf32),
            "cudnn_tf32": str(torch.backends.cudnn.allow_tf32),
        }


def _flushes_denormals() -> bool:
    return float(torch.tensor(1e-30) * torch.tensor(1e-9)) == 0.0


def compute_capability(device: str) -> tuple[int, int]:
    """Return the compute capability of a CUDA device, or (0, 0) for any other device."""
    torch_device = check_device(device)
    return torch.cuda.get_device_capability(torch_device) if torch_device.type == "cuda" else (0, 0)


def forms(spec: LayerSpec, device: str = "cpu") -> tuple[Form, ...]:
    """Return the forms of the layer on `device`, the preferred one first; empty where there is only one way."""
    return on_device(layer_class(spec.method).forms(spec), device)


def create_layer(spec: LayerSpec, device: str = "cpu") -> Layer:
    """Create the layer of `spec` behind the NumPy contract."""
    return TorchLayer(_with_form(spec, device), check_device(device))


def create_network(spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]:
    """Create the network of `config` with the output layer of `spec`."""
    network: Any = network_class("torch", config)
    return network(_with_form(spec, device), config, check_device(device))


def _with_form(spec: LayerSpec, device: str) -> LayerSpec:
    """Return `spec` with the form that it has on a CPU, where the form decides how words are stored."""
    form = spec.form_of(forms(spec, device)) if kind_of(device) == CPU else None
    return replace(spec, form=form.id) if form else spec


def parallel() -> Parallel:
    """Return how words are split over devices."""
    from vocabench.impls.on_torch.parallel.contract import TorchParallel  # few processes need it

    return TorchParallel()


def prepare_product(size: int, device: str, dtype: str) -> Callable[[], object]:
    """Return a function that multiplies two (size, size) matrices once and waits for the result.

    It computes the product in the way that is fastest for the layers.
    """
    torch_device = check_device(device)
    left, right = torch.rand(2, size, size, device=torch_device).to(TORCH_DTYPES[dtype])

    def run() -> None:
        with precision(dtype, torch_device), torch.no_grad():
            products.linear(left, right, kernels=True)
        synchronize(torch_device)

    return run


def prepare_add(size: int, device: str) -> Callable[[], object]:
    """Return a function that adds one float32 array (size,) to another in place and waits for the result."""
    torch_device = check_device(device)
    total, summand = torch.ones(size, device=torch_device), torch.ones(size, device=torch_device)

    def run() -> None:
        total.add_(summand)
        synchronize(torch_device)

    return run


def counts_memory(device: str) -> bool:
    """Return whether PyTorch counts the memory that it uses on `device`, as it does on a GPU."""
    return kind_of(device) != CPU


def peak_counted_bytes(device: str, run: Callable[[], object]) -> int:
    """Return the most memory in use on `device` during `run`, above what was in use before."""
    torch_device = check_device(device)
    torch.cuda.synchronize(torch_device)
    torch.cuda.reset_peak_memory_stats(torch_device)
    before = torch.cuda.memory_allocated(torch_device)
    run()
    torch.cuda.synchronize(torch_device)
    return torch.cuda.max_memory_allocated(torch_device) - before
