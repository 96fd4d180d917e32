"""Fixtures that several tests share."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from vocabench.harness.run import provenance
from vocabench.impls.errors import Unsupported

_FOLDER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """What JAX compiles in one test is there for the others, in every worker of this run; so are the C++ kernels, and
    the datasets that one makes, in a cache that is the tests' own, and empty as they begin.

    JAX's programs are compiled without LLVM's optimizations, and loops by XLA's older and quicker generator of code:
    the same operations in the same fusions, but for wrappers around single ones, in a third of the time that it would
    take otherwise. Nor is a program split into parts for several threads, which takes longer than to compile it.
    `vocabench check` and the check before each timing compare what users run.
    """
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0 --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true "
        "--xla_cpu_parallel_codegen_split_count=1",
    )
    # Nor is anything compiled by torch.compile, but where tests/impls/methods/test_peers.py asks for it.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # Tracing makes many objects that live on, which would be looked through again and again for garbage.
    gc.set_threshold(50_000, 20, 20)
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist has them from the process that began it
        return
    config.stash[_FOLDER] = folder = tempfile.mkdtemp(prefix="vocabench-tests-")
    os.environ["VOCABENCH_CACHE"] = os.path.join(folder, "cache")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": os.path.join(folder, "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }


def pytest_unconfigure(config: pytest.Config) -> None:
    if _FOLDER in config.stash:
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """What is there before a module's tests, the frameworks above all, is no longer looked through for garbage, which
    takes half a second each time that a task asks for it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def quick_tracing() -> None:
    """Nor do TensorFlow's graphs go through its optimizer, or its errors through what shortens their tracebacks: most
    graphs are traced for one test and run once. Workers do as users do here too."""
    tf = sys.modules.get("tensorflow")
    if tf is not None:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        tf.debugging.disable_traceback_filtering()


@pytest.fixture(autouse=True)
def code_as_it_is() -> None:
    """An edit while the tests run is another code for the test that it falls into, and not for all that follow."""
    provenance.code_fingerprint.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """A method that cannot run on this machine has no test here, and the reason is told."""
    try:
        return (yield)
    except Unsupported as error:
        pytest.skip(str(error))


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder is empty and temporary: where runs are kept by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of datasets is empty and temporary."""
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
