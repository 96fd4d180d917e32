"""Precisions of matrix products: TF32 where it is asked for and never else, on devices that are stood in for."""

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vocabench.harness import cli, layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.tolerances import UNITS
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run import results_files, worker
from vocabench.harness.run.cells import Cell
from vocabench.impls.contract import WORK, Layer
from vocabench.impls.cpp import CPP
from vocabench.impls.errors import Unsupported
from vocabench.impls.models.bag_model import BagModel, BagModelConfig
from vocabench.impls.models.language_model import LanguageModel, LanguageModelConfig
from vocabench.impls.models.summarizer import SummarizerConfig

pytestmark = pytest.mark.many_cells

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
SWITCHED = [name for name in FRAMEWORKS if name in ("torch", "tensorflow")]
COUNTS = zipf_counts(97)
BATCH = batch(COUNTS, tokens=60, dim=16, seed=1)
TEXT_BT = np.arange(40, dtype=np.int32).reshape(4, 10)


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


def spec(dtype: str, method: str = "full_softmax", **options: object):
    return layers.spec(method, counts=COUNTS, dim=16, vocab=None, seed=5, dtype=dtype, **options)


@pytest.fixture
def ampere(monkeypatch) -> None:
    """Every device has TF32."""
    for framework in FRAMEWORKS:
        monkeypatch.setattr(registry.adapter(framework), "compute_capability", lambda device: (8, 0))


@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_a_device_without_tf32_is_told(framework):
    config = LanguageModelConfig(embedding=8, hidden=16)
    line = f"tf32 in {framework} on cpu: needs a CUDA device of compute capability 8.0 or newer"
    with pytest.raises(Unsupported, match=line):
        layers.from_spec(framework, spec("tf32"))
    with pytest.raises(Unsupported, match=line):
        layers.create_network(framework, spec("tf32"), config)


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((8, 9), True), ((10, 0), True)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_which_devices_have_tf32(framework, capability, has, monkeypatch):
    monkeypatch.setattr(registry.adapter(framework), "compute_capability", lambda device: capability)
    with contextlib.nullcontext() if has else pytest.raises(Unsupported):
        layers.from_spec(framework, spec("tf32"))


@needs("jax")
def test_jax_tells_the_compute_capability_of_a_device(monkeypatch):
    from vocabench.impls.on_jax import adapter

    monkeypatch.setattr(adapter, "check_device", lambda device: SimpleNamespace(compute_capability="12.1"))
    assert adapter.compute_capability("cuda") == (12, 1)


@pytest.mark.lengthy
def test_cells_in_tf32_are_skipped_without_a_device_that_has_it(in_empty_folder, capsys):
    for framework in FRAMEWORKS:
        selection = ["-f", framework, "-m", "full_softmax", "--precision", "tf32", "--out", "rows.jsonl"]
        assert cli.main(["run", "check", *selection]) == 0
    rows = results_files.rows(in_empty_folder / "rows.jsonl")
    assert [row.status for row in rows] == ["skipped"] * len(FRAMEWORKS)
    assert all("needs a CUDA device of compute capability 8.0 or newer" in row.message for row in rows)


# JAX: the precision stands in the program itself.
HIGHEST = "precision = [HIGHEST, HIGHEST]"
JAX_PRECISIONS = {"float32": HIGHEST, "tf32": "precision = [HIGH, HIGH]"}
# A factor of one column or row, as in the sums that are written as products with ones: `arrays.plus_bias`.
ONES = re.compile(r"tensor<(\d+x1|1x\d+|\d+)x[a-z]+\d+>")


class Lowered(Exception):
    """Instead of a compiled function's result: its program, under the settings of the call."""


def products(owner: object, name: str, use: Callable[[], object]) -> list[str]:
    """The matrix products of `owner.<name>`, a compiled function that `use` calls."""
    compiled = getattr(owner, name)

    def lower(*arguments: Any, **named: Any) -> None:
        raise Lowered(compiled.lower(*arguments, **named).as_text())

    setattr(owner, name, lower)
    with pytest.raises(Lowered) as lowered:
        use()
    setattr(owner, name, compiled)
    return [line for line in str(lowered.value).splitlines() if "stablehlo.dot_general" in line]


def assert_precisions(found: list[str], dtype: str) -> None:
    """Assert that each product has the precision asked for; a sum that is written as a product may be exact."""
    others = [line for line in found if JAX_PRECISIONS[dtype] not in line]
    assert [line for line in others if not (ONES.search(line) and HIGHEST in line)] == []


@needs("jax")
@pytest.mark.parametrize("dtype", JAX_PRECISIONS)
@pytest.mark.parametrize("method", registry.methods("jax"))
def test_every_product_of_a_jax_layer_has_the_precision_asked_for(method, dtype, ampere):
    own = spec(dtype, method)
    form = next(
        (form.id for form in layers.forms("jax", own) if form != CPP), ""
    )  # the C++ kernels' products are not JAX's
    layer: Any = layers.from_spec("jax", replace(own, form=form))
    hidden_ND, targets_N = BATCH.hidden_ND, BATCH.targets_N
    there_and_back = products(layer, "_grads_of", lambda: layer.loss_and_grads(hidden_ND, targets_N))
    assert len(there_and_back) >= 3
    loss = "_loss_of" if own.definition.train_only_loss else "_target_log_probs_of"
    found = [
        *there_and_back,
        *products(layer, loss, lambda: layer.loss(hidden_ND, targets_N)),
        *products(layer, "_log_probs_of", lambda: layer.log_probs(hidden_ND)),
        *products(layer, "_search_of", lambda: layer.topk(hidden_ND, 5)),
    ]
    for work, function in {
        "layer": "_grads_of",
        "topk": "_search_of",
        "beam": "_beam_of",
        "sample": "_sample_of",
    }.items():
        found += products(layer, function, layer.prepare(work, hidden_ND, targets_N))
    assert_precisions(found, dtype)


@needs("jax")
@pytest.mark.parametrize("dtype", JAX_PRECISIONS)
def test_every_product_of_a_jax_network_has_the_precision_asked_for(dtype, ampere):
    config = LanguageModelConfig(embedding=8, hidden=16)
    model: Any = layers.create_network("jax", spec(dtype, "sohsm"), config)
    text = TEXT_BT[:, :-1], TEXT_BT[:, 1:]
    found = products(model, "_step", lambda: model.step(*text, carry=False))
    found += products(model, "_evaluate", lambda: model.evaluate(*text, carry=False))
    assert len(found) > 8
    assert_precisions(found, dtype)


@needs("jax")
def test_the_precision_changes_nothing_of_what_jax_compiles_for_a_cpu():
    import jax

    from vocabench.impls.on_jax import adapter

    layer: Any = layers.from_spec("jax", spec("float32", "sohsm"))
    inputs = layer._on_device(BATCH.hidden_ND, BATCH.targets_N)

    def compiled() -> str:
        again = jax.jit(lambda *given: layer._grads_of(*given))  # else the first program is found again
        text = again.lower(layer._params, layer._structure, *inputs).compile().as_text() or ""
        # Without where in Python it comes from, and what was asked for.
        text = re.sub(r", (metadata=\{.*?\}|operand_precision=\{highest,highest\})", "", text)
        return re.sub(r"(?m)^\d.*\n", "", text)

    texts = []
    for settings in (contextlib.nullcontext(), adapter.precision("float32")):
        with settings:
            texts.append(compiled())
    assert texts[0] == texts[1]


@needs("jax")
def test_jaxs_lstm_by_cudnn_is_taken_in_float32_and_tf32_and_has_their_precision():
    from jax.experimental import rnn

    from vocabench.impls.on_jax import adapter
    from vocabench.impls.on_jax.models import _lstm

    gpu = SimpleNamespace(platform="gpu")
    assert [_lstm.form_for(gpu, dtype) for dtype in ("float32", "tf32")] == [_lstm.cudnn_lstm] * 2
    for dtype, allowed in (("float32", False), ("tf32", True)):
        with adapter.precision(dtype):
            assert rnn._lstm_cudnn_allow_tf32(None) is allowed


# PyTorch and TensorFlow: switches of the whole process, which CPUs do not read.
def switches(framework: str) -> tuple[bool, ...]:
    if framework == "torch":
        import torch

        return (bool(torch.backends.cuda.matmul.allow_tf32), bool(torch.backends.cudnn.allow_tf32))
    from vocabench.impls.on_tensorflow.adapter import tf

    return (tf.config.experimental.tensor_float_32_execution_enabled(),)


@pytest.fixture
def on_cuda(ampere, monkeypatch) -> Iterator[None]:
    """Switches are set as on a CUDA device."""
    for framework in SWITCHED:
        adapter = registry.adapter(framework)
        device: Any = "/GPU:0"
        if framework == "torch":
            import torch

            device = torch.device("cuda:0")
            monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)  # which a PyTorch for CPUs refuses
        real = adapter.precision
        for module in (adapter, sys.modules[real.__module__]):
            monkeypatch.setattr(module, "precision", lambda dtype, _, real=real, device=device: real(dtype, device))
    eagerly = tf_eagerly if "tensorflow" in SWITCHED else contextlib.nullcontext
    with eagerly():
        yield


@contextlib.contextmanager
def tf_eagerly() -> Iterator[None]:
    """Python is run at each call, and not only where a function is traced."""
    from vocabench.impls.on_tensorflow.adapter import tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def watched(framework: str, owner: Any, monkeypatch) -> list[tuple[bool, ...]]:
    """The switches whenever the native layer of `owner` computes a loss or finds words, there or back."""
    seen: list[tuple[bool, ...]] = []
    native = owner.native if isinstance(owner, Layer) else getattr(owner, "network", owner).output
    if framework == "torch":
        next(native.parameters()).register_hook(lambda grad: seen.append(switches(framework)))
    for name in ("_nll", "_log_probs", "_search", "_beam", "_sample"):
        real = getattr(native, name)

        def call(*arguments: Any, real: Any = real, **named: Any) -> Any:
            seen.append(switches(framework))
            return real(*arguments, **named)

        monkeypatch.setattr(native, name, call)
    return seen


def use(owner: Any) -> None:
    """Each way in, once."""
    if isinstance(owner, Layer):
        for work in WORK:
            owner.prepare(work, BATCH.hidden_ND, BATCH.targets_N)()
        owner.loss(BATCH.hidden_ND, BATCH.targets_N)
        owner.loss_and_grads(BATCH.hidden_ND, BATCH.targets_N)
        owner.log_probs(BATCH.hidden_ND)
        owner.topk(BATCH.hidden_ND, 5)
    elif isinstance(owner, LanguageModel):
        owner.step(TEXT_BT[:, :-1], TEXT_BT[:, 1:], carry=False)
        owner.evaluate(TEXT_BT[:, :-1], TEXT_BT[:, 1:], carry=False)
        owner.prime(TEXT_BT, 5)
    elif isinstance(owner, BagModel):
        owner.step(TEXT_BT, TEXT_BT[:, 0])
        owner.evaluate(TEXT_BT, TEXT_BT[:, 0])
    else:
        owner.step(TEXT_BT, TEXT_BT)
        owner.evaluate(TEXT_BT, TEXT_BT)


def made(framework: str, kind: str, dtype: str) -> Any:
    if kind == "layer":
        return layers.from_spec(framework, spec(dtype))
    if kind == "language model":
        return layers.create_network(framework, spec(dtype), LanguageModelConfig(embedding=8, hidden=16))
    if kind == "bag model":
        return layers.create_network(framework, spec(dtype), BagModelConfig(inputs=97))
    return layers.create_network(framework, spec(dtype), SummarizerConfig(sources=97, end=0, embedding=8, hidden=16))


@pytest.mark.parametrize("kind", ["layer", "language model", "bag model", "summarizer"])
@pytest.mark.parametrize("framework", SWITCHED)
def test_switches_are_those_of_whoever_computes_and_then_the_callers(framework, kind, on_cuda, monkeypatch):
    before = switches(framework)
    owners = {dtype: made(framework, kind, dtype) for dtype in ("tf32", "float32", "bfloat16")}
    seen = {dtype: watched(framework, owner, monkeypatch) for dtype, owner in owners.items()}
    for dtype in ("float32", "tf32", "float32", "bfloat16"):
        seen[dtype].clear()
        use(owners[dtype])
        assert switches(framework) == before
        assert len(seen[dtype]) >= 2
        assert set(seen[dtype]) == {(dtype == "tf32",) * len(before)}


@pytest.mark.parametrize("framework", SWITCHED)
def test_switches_are_the_callers_again_after_an_error(framework, on_cuda):
    before = switches(framework)
    layer = layers.from_spec(framework, spec("tf32"))
    with pytest.raises(ValueError, match="k=98"):
        layer.topk(BATCH.hidden_ND, 98)
    with pytest.raises(RuntimeError), registry.adapter(framework).precision("tf32", layer.device):
        raise RuntimeError
    assert switches(framework) == before


@pytest.mark.parametrize("framework", SWITCHED)
def test_on_a_cpu_no_switch_is_touched(framework, ampere, monkeypatch):
    before = switches(framework)
    layer = layers.from_spec(framework, spec("tf32"))
    seen = watched(framework, layer, monkeypatch)
    layer.loss(BATCH.hidden_ND, BATCH.targets_N)
    assert set(seen) == {before}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_ceiling_of_a_row_in_tf32_is_tf32s(framework, ampere, monkeypatch):
    adapter = registry.adapter(framework)
    entered, real = [], adapter.precision
    monkeypatch.setattr(adapter, "precision", lambda dtype, *where: entered.append(dtype) or real(dtype, *where))
    product = adapter.prepare_product(8, "cpu", "tf32")
    entered.clear()
    product()
    assert entered == ["tf32"]


def test_a_row_tells_its_own_precision_s_settings(monkeypatch):
    asked = []
    adapter = registry.adapter("numpy")
    monkeypatch.setattr(adapter, "describe", lambda *given: asked.append(given) or {})
    monkeypatch.setattr(adapter, "devices", lambda: ["cpu", "cuda"])
    cell = Cell("check", "agreement", "numpy", "full_softmax", 0, 0, 0, device="cuda", precision="tf32")
    worker._measure({"cell": cell.to_json()}, SimpleNamespace(write=len, flush=lambda: None))  # type: ignore[arg-type]
    assert asked == [("cuda", "tf32")]


@needs("torch")
def test_pytorchs_provenance_is_read_where_the_row_computed(monkeypatch):
    import torch

    from vocabench.impls.on_torch import adapter

    monkeypatch.setattr(adapter, "check_device", torch.device)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    for dtype, told in (("float32", "False"), ("tf32", "True"), ("bfloat16", "False")):
        facts = adapter.describe("cuda:0", dtype)
        assert (facts["device_name"], facts["tf32"], facts["cudnn_tf32"]) == ("a card", told, told)


@needs("tensorflow")
def test_tensorflows_provenance_is_read_where_the_row_computed(monkeypatch):
    from vocabench.impls.on_tensorflow import adapter

    monkeypatch.setattr(adapter, "check_device", lambda device: "/GPU:0")
    monkeypatch.setattr(adapter, "details", lambda device: {"device_name": "a card", "compute_capability": (9, 0)})
    assert adapter.compute_capability("cuda:0") == (9, 0)
    for dtype, told in (("float32", "False"), ("tf32", "True"), ("bfloat16", "False")):
        assert adapter.describe("cuda:0", dtype)["tf32"] == told


# The arithmetic of TF32 itself, in PyTorch on the CPU: factors of products lose 13 bits of mantissa.
@needs("torch")
@pytest.mark.parametrize("rounds", [True, False], ids=["rounded", "cut off"])
@pytest.mark.parametrize("method", registry.methods("torch"))
def test_products_of_tf32_are_within_its_tolerance(method, rounds, ampere, monkeypatch):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten: Any = torch.ops.aten
    kinds = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten._grouped_mm, aten.convolution, aten.mv, aten.dot}
    multiplied = []

    def narrowed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return value
        bits = value.contiguous().view(torch.int32)
        kept = (bits + (0xFFF + ((bits >> 13) & 1) if rounds else 0)) & ~0x1FFF
        return torch.empty_strided(value.shape, value.stride()).copy_(kept.view(torch.float32))

    class TensorCores(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket in kinds:
                multiplied.append(func)
                first = 1 if func.overloadpacket in (aten.addmm, aten.baddbmm) else 0  # what is added is no factor
                args = (*args[:first], *map(narrowed, args[first : first + 2]), *args[first + 2 :])
            return func(*args, **kwargs or {})

    layer = layers.from_spec("torch", spec("tf32", method))
    inputs = batch(COUNTS, tokens=301, dim=16, seed=2)
    with TensorCores():
        found = agreement.check_layer(layer, inputs, k=10)
    assert [str(c) for c in found if not c.agrees] == []
    assert multiplied
    finer = UNITS["float32"].value / UNITS["tf32"].value
    assert any(c.relative > finer * c.tolerance for c in found)  # float32 itself would be no test
