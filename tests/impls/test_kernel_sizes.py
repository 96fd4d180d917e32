"""For which vectors PyTorch's layers have kernels, by what a device has room for; no device is asked."""

import pytest

from harness import layers
from harness.workload import zipf_counts

torch = pytest.importorskip("torch")

from impls.on_torch import _triton  # noqa: E402

H100, RTX_4090, T4 = 227 * 2**10, 99 * 2**10, 64 * 2**10  # bytes of shared memory that a program may take


@pytest.mark.parametrize(
    ("room", "method", "dim", "dtype", "there"),
    [
        (H100, "huffman", 2048, "float32", True),
        (H100, "huffman", 2048, "bfloat16", True),
        (H100, "huffman", 2048, "float64", False),
        (H100, "huffman", 2049, "float32", False),
        (H100, "binary_tree", 2047, "float32", True),
        (H100, "binary_tree", 2048, "float32", False),  # the bias is one number more
        (H100, "sohsm", 1024, "float32", True),
        (H100, "sohsm", 1032, "float32", False),
        (H100, "sohsm", 2048, "bfloat16", True),
        (H100, "class_hsm", 2056, "bfloat16", False),
        (RTX_4090, "sohsm", 512, "float32", True),
        (RTX_4090, "sohsm", 520, "float32", False),
        (RTX_4090, "sohsm", 1024, "bfloat16", True),
        (RTX_4090, "class_hsm", 1032, "bfloat16", False),
        (RTX_4090, "huffman", 2048, "float32", True),
        (T4, "sohsm", 8, "float32", False),
    ],
)
def test_kernels_are_for_vectors_of_float32_and_half_precision_that_fit(room, method, dim, dtype, there, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(_triton, "_installed", lambda: True)
    monkeypatch.setattr(_triton, "shared_memory", lambda: room)
    spec = layers.spec(method, counts=zipf_counts(9), dim=dim, dtype=dtype)
    assert ("Triton kernels" in layers.forms("torch", spec, "cuda")) == there
