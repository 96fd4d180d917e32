"""The C++ kernels check what they are given: wrong calls are errors and unusual sizes work, without a wrong access."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vocabench.harness import registry
from vocabench.impls import cpp
from vocabench.impls.cpp import compilation

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
ROOT = Path(__file__).parents[3]


def _run(mode, argument, **environment):
    """Execute `kernel_calls` in a child process and return its lines."""
    command = sys.executable, "-m", "tests.impls.cpp.kernel_calls", mode, argument
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    lines = run.stdout.splitlines()
    assert run.returncode == 0, f"signal or status {run.returncode} after {lines[-1:]}: {run.stderr[-4000:]}"
    return lines


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_wrong_sizes_and_indices_are_errors_that_name_what_is_allowed(framework):
    lines = _run("refusals", framework)
    right = [line for line in lines if line.startswith("right ")]
    wrong = [line for line in lines if line.startswith("wrong ")]
    assert [line for line in right if not line.endswith("accepted ")] == []
    # TensorFlow itself checks the shape of the nodes' gradient.
    assert [line for line in wrong if ": allowed: " not in line and "Shape of tensor input" not in line] == []
    assert len(right) > 10
    assert len(wrong) > 60


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_tokens_one_word_odd_widths_and_empty_clusters(framework):
    lines = _run("edges", framework)
    assert [line for line in lines if not line.endswith("accepted ")] == []
    assert len(lines) > 40


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_loss_of_an_index_out_of_range_is_nan_and_other_tokens_are_unaffected(framework):
    *losses, gradients = _run("outside", framework)
    assert [line.partition("\t")[2] for line in losses] == ["NaN without gradient others unchanged"] * 4
    assert gradients.endswith("accepted ")


@pytest.mark.slow
def test_sanitizers_report_nothing(tmp_path):
    """No access outside of an array and no undefined behaviour, for right and wrong arguments, also with NaN."""
    pytest.importorskip("torch")
    compiler, sanitizers = str(cpp.compiler()), "-fsanitize=address,undefined"
    runtimes = [compilation.run(compiler, f"-print-file-name={name}").strip() for name in ("libasan.so", "libubsan.so")]
    if not all(Path(runtime).is_absolute() for runtime in runtimes):
        pytest.skip("needs a compiler with the libraries of AddressSanitizer and UndefinedBehaviorSanitizer")
    flags = "-O1", "-g", sanitizers, "-fno-sanitize-recover=undefined"
    sources = "for_ctypes", "helper_threads", *compilation.KERNELS
    compilation.compile_sources(compiler, "native", dict.fromkeys(sources, flags), tmp_path)
    compilation.link(compiler, [tmp_path], (sanitizers,), tmp_path / "kernels.so")
    lines = _run(
        "sanitized",
        str(tmp_path / "kernels.so"),
        LD_PRELOAD=" ".join(runtimes),
        ASAN_OPTIONS="detect_leaks=0",  # Python itself leaks
        OMP_NUM_THREADS="2",
    )
    assert "'losses': " in lines[-1]
