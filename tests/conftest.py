"""Settings of all tests, and fixtures that several of them share."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import cell_selection
from tests.session_checks import GradientsOfGraphs, SkippedTests, WorkerMemory
from vocabench.harness.run import provenance
from vocabench.impls.errors import Unsupported

_FOLDER = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expected-skips",
        type=Path,
        metavar="FILE",
        help="fail if a test is skipped for a reason that FILE does not list (see tests/session_checks.py)",
    )
    cell_selection.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Set up caches that the workers of this run share: JAX's compiled programs, C++ kernels and built datasets.

    They are temporary unless `VOCABENCH_TEST_CACHE` names a folder, in which the next run finds them again.

    JAX compiles with LLVM's optimizations off and with XLA's older and quicker code generator. Both execute the same
    operations in the same fusions, in a third of the compile time. A program is not split for parallel compilation,
    which takes longer than compiling it in one piece. `vocabench check` and the check before each timing compile as
    users do.
    """
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0 --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true "
        "--xla_cpu_parallel_codegen_split_count=1",
    )
    # Only tests/impls/methods/test_peers.py compiles with torch.compile.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # Tracing creates many long-lived objects, which frequent collections would scan again and again.
    gc.set_threshold(50_000, 20, 20)
    config.pluginmanager.register(WorkerMemory(), "worker-memory")
    config.pluginmanager.register(cell_selection, "cell-selection")
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist inherits the caches of the process that started it
        return
    config.pluginmanager.register(SkippedTests(config.getoption("--expected-skips")), "skipped-tests")
    folder = os.environ.get("VOCABENCH_TEST_CACHE", "")
    if not folder:
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
    """Exclude existing objects, most of them the frameworks' own, from garbage collections during a module.

    Scanning them takes half a second whenever a task collects garbage.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def quick_tracing() -> None:
    """Disable TensorFlow's graph optimizer and the filtering of its tracebacks, and free graphs that nothing uses.

    Most graphs are traced for one test and executed once. Worker processes are not affected.
    """
    tf = sys.modules.get("tensorflow")
    if tf is not None:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        tf.debugging.disable_traceback_filtering()
        GradientsOfGraphs.install(sys.modules["tensorflow.python.framework.ops"])


@pytest.fixture(autouse=True)
def fresh_code_fingerprint() -> None:
    """Compute the fingerprint of the code for each test, so that an edit during the run affects only one test."""
    provenance.fingerprint_with.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test whose method does not support this machine, with the method's reason."""
    try:
        return (yield)
    except Unsupported as error:
        pytest.skip(str(error))


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty temporary folder the current one, where runs are stored by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty temporary folder that is used as the cache of datasets and kernels."""
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
