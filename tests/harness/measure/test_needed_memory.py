"""The memory that a timing cell needs at least."""

from functools import partial

import psutil
import pytest

from vocabench.harness import layers
from vocabench.harness.measure.needed_memory import check_fits, memory_bytes, needed_bytes
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite
from vocabench.impls.errors import Unsupported

MIB = 2**20


def specs(method="fused_softmax", vocab=1000, dim=256, dtype="float32"):
    spec = partial(layers.spec, vocab=vocab, dim=dim, dtype=dtype, bias=False)
    return spec(method), spec("full_softmax")


def with_limit(folder, text):
    file = folder / "sys/fs/cgroup/memory.max"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return folder


def test_a_cell_needs_the_definition_or_both_layers_with_the_logits():
    parameters = 1000 * 256
    assert needed_bytes(*specs(), tokens=10, device="cpu") == parameters * (2 * 8 + 3 * 4)
    assert needed_bytes(*specs(), tokens=10**5, device="cpu") == 4 * 4 * parameters + 2 * 4 * 10**8
    assert needed_bytes(*specs(dtype="bfloat16"), tokens=10**5, device="cuda") == parameters * (2 * 8 + 2)


def test_the_memory_is_that_of_the_machine_or_of_the_control_group(tmp_path):
    assert memory_bytes(tmp_path) == psutil.virtual_memory().total
    assert memory_bytes(with_limit(tmp_path, f"{MIB}\n")) == MIB
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert memory_bytes(tmp_path) == psutil.virtual_memory().total


def test_a_cell_that_does_not_fit_is_unsupported_and_says_what_it_needs(tmp_path):
    check_fits(*specs(), 10, "cpu", with_limit(tmp_path, str(64 * MIB)))
    with pytest.raises(
        Unsupported,
        match=r"fused_softmax with vocab=100000, dim=256 in float32 needs at least 0\.7 GiB: allowed: 0\.1 GiB, the",
    ):
        check_fits(*specs(vocab=100_000), 10, "cpu", tmp_path)


def test_the_suite_of_language_models_has_their_shapes_in_both_precisions():
    cells = Suite.load("llm").cells(Selection(frameworks=["torch"]))
    assert {(cell.dim, cell.vocab) for cell in cells} == {
        (768, 50257), (4096, 151936), (4096, 128256), (2560, 262208), (2880, 201088), (7168, 129280)
    }  # fmt: skip
    assert {cell.precision for cell in cells} == {"float32", "bfloat16"}
    decoded = [cell for cell in cells if "topk_seconds" in cell.settings["quantities"]]
    assert {cell.settings["decode_rows"] for cell in decoded} == {64}
    assert all({"sample1_seconds", "nucleus_sample1_seconds"} <= {*cell.settings["quantities"]} for cell in decoded)
    assert {cell.options.get("bias") for cell in cells if cell.method == "full_softmax"} == {False}
    gpu = Suite.load("llm").cells(Selection(frameworks=["torch"], device="cuda", tokens=8192))
    assert {cell.tokens for cell in gpu} == {8192}
