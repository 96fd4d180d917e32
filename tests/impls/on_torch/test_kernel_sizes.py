"""Sizes for which PyTorch's layers have and prefer kernels, without a device."""

from types import SimpleNamespace

import pytest

from vocabench.harness import layers
from vocabench.harness.measure.workload import zipf_counts

torch = pytest.importorskip("torch")

from vocabench.impls.on_torch.triton import availability
from vocabench.impls.on_torch.triton.availability import KERNELS
from vocabench.impls.on_torch.two_level import cluster_softmax
from vocabench.impls.on_torch.two_level.cluster_softmax import GROUPED, TILES

H100, RTX_4090, T4 = 227 * 2**10, 99 * 2**10, 64 * 2**10  # bytes of shared memory for a program


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(availability, "_installed", lambda: True)


@pytest.mark.parametrize(
    ("method", "dim", "dtype", "has_kernels"),
    [
        ("huffman", 2048, "float32", True),
        ("huffman", 2048, "bfloat16", True),
        ("huffman", 2048, "float64", False),
        ("huffman", 2049, "float32", False),
        ("binary_tree", 2047, "float32", True),
        ("binary_tree", 2048, "float32", False),  # the bias is one more element
        ("sohsm", 1024, "float32", True),
        ("sohsm", 1032, "float32", False),
        ("sohsm", 2048, "bfloat16", True),
        ("class_hsm", 2056, "bfloat16", False),
    ],
)
def test_kernels_exist_for_float32_and_half_precision_vectors_that_fit(method, dim, dtype, has_kernels):
    spec = layers.spec(method, counts=zipf_counts(9), dim=dim, dtype=dtype)
    assert (KERNELS in layers.forms("torch", spec, "cuda")) == has_kernels


@pytest.mark.parametrize(
    ("shared_memory", "dim", "dtype", "form"),
    [
        (H100, 1024, torch.float32, KERNELS),
        (H100, 1032, torch.float32, TILES),
        (H100, 2048, torch.bfloat16, KERNELS),
        (H100, 2056, torch.bfloat16, GROUPED),
        (H100, 64, torch.float64, TILES),
        (RTX_4090, 512, torch.float32, KERNELS),
        (RTX_4090, 520, torch.float32, TILES),
        (RTX_4090, 1024, torch.bfloat16, KERNELS),
        (RTX_4090, 1032, torch.bfloat16, GROUPED),
        (RTX_4090, 1033, torch.bfloat16, TILES),
        (T4, 8, torch.float32, TILES),
    ],
)
def test_two_level_layers_prefer_forms_that_fit_the_gpu(shared_memory, dim, dtype, form, monkeypatch):
    monkeypatch.setattr(availability, "shared_memory", lambda device: shared_memory)
    slab_CSD = SimpleNamespace(is_cuda=True, device=torch.device("cuda"), dtype=dtype, shape=(3, 8, dim))
    name = str(dtype).removeprefix("torch.")
    forms = layers.forms("torch", layers.spec("class_hsm", counts=zipf_counts(9), dim=dim, dtype=name), "cuda")
    assert cluster_softmax.preferred(forms, slab_CSD) == form  # type: ignore[arg-type]


def test_a_layer_on_a_cpu_does_not_query_the_gpu(monkeypatch):
    """A query would initialize CUDA in a process that does not use it."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: pytest.fail("the device was queried"))
    for method in ("sohsm", "class_hsm"):
        spec = layers.spec(method, counts=zipf_counts(9), dim=8)
        assert KERNELS.label not in layers.from_spec("torch", spec, "cpu").formulation()
