"""Peers, implementations by others: what they need, what is said where it is missing, and how they are called."""

import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import sysconfig
import types
from typing import Any

import numpy as np
import pytest

from vocabench.harness import cli, layers
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run import pool, results_files
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.store import Store
from vocabench.harness.run.suites import Suite
from vocabench.impls.errors import Unsupported

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

KERNELS = {  # and the names of their packages on the index
    "liger_cross_entropy": "liger_kernel",
    "cut_cross_entropy": "cut_cross_entropy",
    "quack_cross_entropy": "quack-kernels",
}
COUNTS = zipf_counts(97)


def make(method, dtype="bfloat16", **options):
    return layers.create("torch", method, counts=COUNTS, dim=24, seed=5, dtype=dtype, **options)


def stand_in(name: str, **content: object) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__dict__.update(content)
    return module


@pytest.fixture
def calls(monkeypatch) -> list[dict[str, Any]]:
    """The packages by their published signatures, in plain PyTorch on any device; what they were asked for."""
    import torch
    from torch.nn import functional as F

    from vocabench.impls.on_torch import peers

    seen: list[dict[str, Any]] = []

    class LigerFusedLinearCrossEntropyLoss(torch.nn.Module):
        def __init__(
            self,
            ce_weight=None,
            ignore_index=-100,
            lse_square_scale=0.0,
            label_smoothing=0.0,
            reduction="mean",
            softcap=None,
            return_z_loss=False,
        ):
            super().__init__()
            assert (ce_weight, lse_square_scale, label_smoothing) == (None, 0.0, 0.0)
            assert (softcap, return_z_loss) == (None, False)
            self.kept: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}

        def forward(self, lin_weight, _input, target, bias=None):
            seen.append(self.kept)
            return F.cross_entropy(F.linear(_input, lin_weight, bias).float(), target, **self.kept)

    def linear_cross_entropy(
        e, c, targets, bias=None, ignore_index=-100, softcap=None, reduction="mean", shift=0, impl="cce"
    ):
        assert (softcap, shift) == (None, 0)
        assert e.dtype == c.dtype == torch.bfloat16
        kept: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
        seen.append({**kept, "impl": impl})
        return F.cross_entropy(F.linear(e, c, bias).float(), targets, **kept)

    def chunked_linear_cross_entropy(
        x, weight, target, chunk_size=4096, ignore_index=-100, reduction="mean", tuned=True
    ):
        assert (chunk_size % 8, len(x) % 8, len(weight) % 8, x.size(1) % 8) == (0, 0, 0, 0)
        return linear_cross_entropy_func(x, weight, None, target, ignore_index, reduction, chunked=True)

    def linear_cross_entropy_func(
        x, weight, bias, target, ignore_index=-100, reduction="mean", inplace_backward=False, chunked=False
    ):
        assert x.dtype == weight.dtype == torch.bfloat16
        assert not inplace_backward
        kept: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
        seen.append({**kept, "chunked": chunked})
        return F.cross_entropy(F.linear(x, weight, bias).float(), target, **kept)

    transformers = stand_in(
        "liger_kernel.transformers", LigerFusedLinearCrossEntropyLoss=LigerFusedLinearCrossEntropyLoss
    )
    modules = {
        "liger_kernel": stand_in("liger_kernel", __path__=[], transformers=transformers),
        "liger_kernel.transformers": transformers,
        "cut_cross_entropy": stand_in("cut_cross_entropy", linear_cross_entropy=linear_cross_entropy),
        "quack": stand_in("quack", __path__=[]),
        "quack.linear_cross_entropy": stand_in(
            "quack.linear_cross_entropy",
            chunked_linear_cross_entropy=chunked_linear_cross_entropy,
            linear_cross_entropy_func=linear_cross_entropy_func,
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(peers, "runs_on", lambda tensor: True)
    return seen


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("liger_cross_entropy", "float32"),
        ("liger_cross_entropy", "bfloat16"),
        ("cut_cross_entropy", "bfloat16"),
        ("quack_cross_entropy", "bfloat16"),
    ],
)
def test_another_packages_kernel_is_called_as_it_wants_and_agrees(method, dtype, calls):
    layer = make(method, dtype)
    inputs = batch(COUNTS, tokens=60, dim=24, seed=6)
    assert [str(c) for c in agreement.check_layer(layer, inputs, k=10) if not c.agrees] == []
    assert calls
    assert all(call["reduction"] == "sum" for call in calls)


@pytest.mark.parametrize("method", KERNELS)
def test_padding_reductions_and_mixed_precision_of_another_packages_kernel(method, calls):
    import torch

    native, full = make(method).native, make("full_softmax").native
    full.load_canonical(native.to_canonical(dict(native.named_parameters())))
    inputs = batch(COUNTS, tokens=12, dim=24, seed=7)
    hidden_ND = torch.tensor(inputs.hidden_ND, dtype=torch.float32, requires_grad=True)
    targets_N = torch.tensor(inputs.targets_N)
    targets_N[[0, 7]] = 3
    for padding in (-100, 3):
        for reduction in ("mean", "sum", "none"):
            asked: Any = {"ignore_index": padding, "reduction": reduction}
            ours, theirs = native(hidden_ND, targets_N, **asked), full(hidden_ND.bfloat16(), targets_N, **asked)
            assert ours.dtype == torch.float32
            torch.testing.assert_close(ours, theirs)
    assert {call["ignore_index"] for call in calls} == {-100}  # whichever target marks padding here
    alone = native(hidden_ND, torch.full_like(targets_N, -100))
    alone.backward()
    assert float(alone.detach()) == 0
    assert hidden_ND.grad is not None
    assert not hidden_ND.grad.any()


def test_the_form_of_cut_cross_entropy_is_an_option(calls):
    layer = make("cut_cross_entropy", impl="cce_exact")
    layer.loss(np.zeros((1, 24)), [0])
    assert calls[-1]["impl"] == "cce_exact"


@pytest.mark.parametrize(
    ("vocab", "tokens", "bias", "chunked"),
    [(96, 16, False, True), (96, 16, True, False), (97, 16, False, False), (96, 15, False, False)],
)
def test_quack_goes_through_the_batch_in_chunks_where_it_can(vocab, tokens, bias, chunked, calls):
    counts = zipf_counts(vocab)
    layer = layers.create("torch", "quack_cross_entropy", counts=counts, dim=24, seed=5, dtype="bfloat16", bias=bias)
    inputs = batch(counts, tokens=tokens, dim=24, seed=6)
    assert [str(c) for c in agreement.check_layer(layer, inputs, k=10) if not c.agrees] == []
    assert {call["chunked"] for call in calls} == {chunked}


@pytest.mark.parametrize("method", KERNELS)
def test_the_row_of_another_packages_kernel_has_its_version(method, calls, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", {KERNELS[method]: "7.8.9"}.get)
    assert make(method).formulation() == f"{KERNELS[method]} 7.8.9"


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("liger_cross_entropy", "'pip install liger-kernel'"),
        ("cut_cross_entropy", 'cut-cross-entropy @ git+https://github.com/apple/ml-cross-entropy.git"'),
        ("quack_cross_entropy", "'pip install quack-kernels'"),
    ],
)
def test_a_missing_package_is_told_with_what_installs_it(method, line, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "found" if name == "torch" else None)
    with pytest.raises(Unsupported, match=r"needs a CUDA device and .* not installed here") as raised:
        make(method)
    assert line in str(raised.value)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_a_missing_optax_is_told(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "optax" else find_spec(name, *more)
    )
    with pytest.raises(
        Unsupported, match=r"optax_cross_entropy needs optax, .* not installed here: .*'pip install optax'"
    ):
        layers.create("jax", "optax_cross_entropy", counts=COUNTS, dim=24)


@pytest.mark.parametrize(
    ("framework", "method", "package"),
    [("jax", "optax_cross_entropy", "optax"), ("tensorflow", "keras_cross_entropy", "keras")],
)
def test_the_row_of_a_frameworks_usual_loss_has_the_version_of_its_package(framework, method, package):
    pytest.importorskip(framework)
    layer = layers.create(framework, method, counts=COUNTS, dim=24)
    assert f"{package} {importlib.metadata.version(package)}" in layer.formulation()


@pytest.mark.parametrize(
    ("method", "dtype", "allowed"),
    [
        ("liger_cross_entropy", "float64", "float32, tf32, bfloat16"),
        ("cut_cross_entropy", "float32", "bfloat16"),
        ("quack_cross_entropy", "float32", "bfloat16"),
    ],
)
def test_what_a_kernel_does_not_compute_in_is_told(method, dtype, allowed, calls):
    with pytest.raises(Unsupported, match=f"{method} in {dtype}: allowed: {allowed}"):
        make(method, dtype)


def test_a_kernel_on_the_cpu_is_told(calls, monkeypatch):
    monkeypatch.setattr("vocabench.impls.on_torch.peers.runs_on", lambda tensor: tensor.is_cuda)
    with pytest.raises(Unsupported, match="liger_cross_entropy on cpu: allowed: a CUDA device"):
        make("liger_cross_entropy").loss(np.zeros((1, 24)), [0])
    assert not calls


def test_a_missing_compiler_is_told(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unsupported, match=r"needs a C\+\+ compiler \(no-such-compiler\), not found here"):
        make("compiled_cross_entropy")


def test_missing_headers_are_told(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "env")  # which every machine has
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(Unsupported, match=r"needs Python's headers \(.*Python\.h\), not found here"):
        make("compiled_cross_entropy")


def test_what_cannot_run_here_is_skipped_and_fails_nothing(in_empty_folder, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    selection = ["-f", "torch", "-m", "compiled_cross_entropy", "--out", "rows.jsonl"]
    assert cli.main(["check", *selection]) == 0
    assert "0 of 0 cells agree, 3 skipped" in capsys.readouterr().out
    rows = results_files.rows(in_empty_folder / "rows.jsonl")
    assert [row.status for row in rows] == ["skipped"] * 3
    message = rows[0].message
    assert message.startswith("compiled_cross_entropy needs a C++ compiler (no-such-compiler)")
    assert cli.main(["table", "--run", "rows.jsonl"]) == 0
    assert "no-such-compiler" in capsys.readouterr().out


@pytest.mark.lengthy
def test_a_skipped_cell_is_measured_again_when_asked_for(in_empty_folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    run = ["run", "check", "-f", "torch", "-m", "compiled_cross_entropy", "--precision", "float64", "--out", "r.jsonl"]
    lines = []
    for again in ([], [], ["--retry"]):
        assert cli.main([*run, *again]) == 0
        lines.append(len((in_empty_folder / "r.jsonl").read_text().splitlines()))
    assert lines == [1, 1, 2]


@pytest.mark.lengthy
def test_every_layer_is_traced_as_a_whole_and_has_recompilations_of_its_own(monkeypatch):
    """More layers and sizes than PyTorch recompiles one function for, by a backend that needs no compiler."""
    import torch

    make("compiled_cross_entropy")  # skipped where there is nothing to compile with
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")
    traced = []

    def backend(graph, inputs):
        traced.append(len(inputs))
        return graph

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    for dim in range(2, 12):
        spec = layers.spec("compiled_cross_entropy", counts=COUNTS, dim=dim, dtype="float64")
        layer = layers.from_spec("torch", spec)
        for tokens in (5, 6, 7):
            inputs = batch(COUNTS, tokens=tokens, dim=dim, seed=0)
            assert [str(c) for c in agreement.check_layer(layer, inputs, k=3) if not c.agrees] == []
    assert len(traced) >= 20
    assert len(traced) < 60  # one for any number of tokens, not one for each


@pytest.mark.slow
def test_a_compiled_loss_agrees_and_is_timed(in_empty_folder, monkeypatch):
    """By torch.compile itself, in a worker, whose folder of compiled code is gone with it."""
    make("compiled_cross_entropy")  # skipped where there is nothing to compile with
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(in_empty_folder / "compiled"))  # which the worker is not to use
    settings = {"quantities": "layer_seconds,peak_bytes", "processes": "1", "rounds": "6", "budget": "0"}
    selection = Selection(["torch"], ["compiled_cross_entropy"], [600], settings=settings)
    cells = Suite.load("cpu").cells(selection)
    with Store(in_empty_folder / "rows.jsonl") as store:
        (row,) = pool.run(cells, store, deadline=600, progress=lambda cell, text: None)
    assert (row.status, row.message) == ("ok", "")
    seconds = {measurement.quantity: measurement.value for measurement in row.measurements}
    assert seconds["compile_seconds"] > 10 * seconds["layer_seconds"] > 0
    assert [path.name for path in in_empty_folder.iterdir()] == ["rows.jsonl"]
