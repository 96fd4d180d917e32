"""For which vectors PyTorch's layers have kernels, and take them by themselves; no device is asked."""

from types import SimpleNamespace

import pytest

from vocabench.harness import layers
from vocabench.harness.measure.workload import zipf_counts

torch = pytest.importorskip("torch")

from vocabench.impls.on_torch.triton import availability
from vocabench.impls.on_torch.triton.availability import KERNELS
from vocabench.impls.on_torch.two_level import cluster_softmax

H100, RTX_4090, T4 = 227 * 2**10, 99 * 2**10, 64 * 2**10  # bytes of shared memory that a program may take


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(availability, "_installed", lambda: True)


@pytest.mark.parametrize(
    ("method", "dim", "dtype", "there"),
    [
        ("huffman", 2048, "float32", True),
        ("huffman", 2048, "bfloat16", True),
        ("huffman", 2048, "float64", False),
        ("huffman", 2049, "float32", False),
        ("binary_tree", 2047, "float32", True),
        ("binary_tree", 2048, "float32", False),  # the bias is one number more
        ("sohsm", 1024, "float32", True),
        ("sohsm", 1032, "float32", False),
        ("sohsm", 2048, "bfloat16", True),
        ("class_hsm", 2056, "bfloat16", False),
    ],
)
def test_kernels_are_for_vectors_of_float32_and_half_precision_that_fit(method, dim, dtype, there):
    spec = layers.spec(method, counts=zipf_counts(9), dim=dim, dtype=dtype)
    assert ("Triton kernels" in layers.forms("torch", spec, "cuda")) == there


@pytest.mark.parametrize(
    ("room", "dim", "dtype", "form"),
    [
        (H100, 1024, torch.float32, "Triton kernels"),
        (H100, 1032, torch.float32, "tiles of 32 tokens"),
        (H100, 2048, torch.bfloat16, "Triton kernels"),
        (H100, 2056, torch.bfloat16, "grouped_mm"),
        (H100, 64, torch.float64, "tiles of 32 tokens"),
        (RTX_4090, 512, torch.float32, "Triton kernels"),
        (RTX_4090, 520, torch.float32, "tiles of 32 tokens"),
        (RTX_4090, 1024, torch.bfloat16, "Triton kernels"),
        (RTX_4090, 1032, torch.bfloat16, "grouped_mm"),
        (RTX_4090, 1033, torch.bfloat16, "tiles of 32 tokens"),
        (T4, 8, torch.float32, "tiles of 32 tokens"),
    ],
)
def test_what_two_level_layers_take_by_themselves_on_a_gpu(room, dim, dtype, form, monkeypatch):
    monkeypatch.setattr(availability, "shared_memory", lambda device: room)
    slab_CSD = SimpleNamespace(is_cuda=True, device="cuda", dtype=dtype, shape=(3, 8, dim))
    name = str(dtype).removeprefix("torch.")
    known = layers.forms("torch", layers.spec("class_hsm", counts=zipf_counts(9), dim=dim, dtype=name), "cuda")
    assert cluster_softmax.form_of("", known, slab_CSD) == form  # type: ignore[arg-type]
    assert cluster_softmax.form_of("asked for", known, slab_CSD) == "asked for"  # type: ignore[arg-type]


def test_a_layer_on_a_cpu_asks_no_gpu(monkeypatch):
    """That would start CUDA in a process that has no use for it."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: pytest.fail("the device was asked"))
    for method in ("sohsm", "class_hsm"):
        spec = layers.spec(method, counts=zipf_counts(9), dim=8)
        assert KERNELS not in layers.from_spec("torch", spec, "cpu").formulation()
