"""The C++ kernels: they agree in each framework, and layers work without them where they cannot be compiled."""

import dataclasses
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.impls.cpp import kernel_calls
from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run import worker
from vocabench.impls import cpp
from vocabench.impls.cpp import CPP, Interface, compilation
from vocabench.impls.forms import Form

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)


SOURCES = Path(cpp.__file__).parent
FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dim", [48, 19])
@pytest.mark.parametrize("method", ["sohsm", "class_hsm"])
def test_layers_agree_with_their_definition(framework, method, dim):
    spec = layers.spec(method, counts=zipf_counts(400), dim=dim, seed=2)
    if method == "sohsm":
        spec = layers.spec(method, counts=spec.counts, dim=dim, seed=2, bias=True)
    assert layers.forms(framework, spec)[0] == CPP
    layer = layers.from_spec(framework, dataclasses.replace(spec, form=CPP.id))
    assert layer.formulation().startswith(CPP.label)
    checks = agreement.check_layer(layer, batch(spec.counts, tokens=160, dim=dim, seed=2), k=12)
    assert [str(check) for check in checks if not check.agrees] == []
    assert checks


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("outside", [11, -1])
def test_fused_softmax_refuses_a_target_that_is_not_a_word(framework, outside):
    given = kernel_calls.arguments(kernel_calls.Sizes(words=(11,)))
    fused = kernel_calls.calls(framework)["fused"]
    fused(given)
    with pytest.raises(Exception, match="a target is none of the") as error:
        fused(given | {"targets": kernel_calls.with_first(given["targets"], outside)})
    assert not isinstance(error.value, AssertionError)


def test_fused_softmax_comes_first_if_it_supports_the_width():
    forms = Form("a", "a"), Form("b", "b")
    assert cpp.with_fused_softmax(forms, 48) == (CPP, *forms)
    assert cpp.with_fused_softmax(forms, 40) == forms


def test_the_kernel_projects_few_rows():
    assert cpp.projects_fastest(1)
    assert cpp.projects_fastest(128)
    assert not cpp.projects_fastest(129)
    assert not cpp.projects_fastest(None)


def _torch_topk(layer, hidden_ND, k):
    import torch

    return [array.numpy() for array in layer.native.topk(torch.from_numpy(hidden_ND), k)]


def _tensorflow_topk(layer, hidden_ND, k):
    return layer.native.topk(hidden_ND, k)


def _jax_topk(layer, hidden_ND, k):
    return layer.native.topk(layer._params, layer._structure, hidden_ND, k)


TOPK = {"torch": _torch_topk, "tensorflow": _tensorflow_topk, "jax": _jax_topk}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("rows", [1, 60])
@pytest.mark.parametrize("projection", ["none", "residual"])
def test_a_row_with_nan_gets_valid_ids_and_does_not_affect_other_rows(framework, rows, projection):
    """The contract refuses such rows, but the native layer in a user's model may get them."""
    spec = layers.spec("sohsm", counts=zipf_counts(9000), dim=16, seed=2, projection=projection, bias=True)
    layer = layers.from_spec(framework, dataclasses.replace(spec, form=CPP.id))
    hidden_ND = batch(spec.counts, tokens=rows, dim=16, seed=2).hidden_ND.astype(np.float32)
    expected_NK, ids_NK = (np.array(array) for array in TOPK[framework](layer, hidden_ND, 7))
    hidden_ND = hidden_ND.copy()
    hidden_ND[-1, 3] = np.nan
    values_NK, nan_ids_NK = (np.array(array) for array in TOPK[framework](layer, hidden_ND, 7))
    assert np.isnan(values_NK[-1]).all()
    assert ((nan_ids_NK[-1] >= 0) & (nan_ids_NK[-1] < 9000)).all()
    np.testing.assert_array_equal(nan_ids_NK[:-1], ids_NK[:-1])
    np.testing.assert_allclose(values_NK[:-1], expected_NK[:-1], rtol=1e-6)


MANY = 2**46  # nodes, or clusters without slots, of width 0: their states exceed the address space


def _exhaust_torch():
    import torch

    from vocabench.impls.on_torch.ops import cpp_kernels

    paths = cpp.Paths(*(torch.zeros(shape, dtype=torch.int32) for shape in ((0, 1), (0, 1), (0,))))
    return cpp_kernels.path_gradients(torch.zeros(0, 1), torch.zeros(0, 0), torch.zeros(MANY, 0), paths)


def _exhaust_tensorflow():
    import tensorflow as tf

    from vocabench.impls.on_tensorflow.ops import cpp_kernels

    empty = tf.zeros([0, 0]), tf.zeros([0, MANY]), tf.zeros([MANY, 0, 0])
    return cpp_kernels.likeliest(*empty, None, tf.zeros([MANY, 0], tf.int32), 1)


def _exhaust_jax():
    import jax
    import jax.numpy as jnp

    from vocabench.impls.on_jax.ops import cpp_kernels

    # XLA skips operations without results. The states are allocated before the size of the second array is checked.
    empty = jnp.zeros((1, 0)), jnp.zeros((1, 1)), jnp.zeros((MANY, 0, 0))
    return jax.block_until_ready(cpp_kernels.likeliest(*empty, None, jnp.zeros((MANY, 0), jnp.int32), 1))


EXHAUSTING = {"torch": _exhaust_torch, "tensorflow": _exhaust_tensorflow, "jax": _exhaust_jax}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_kernel_without_memory_gives_an_oom_row_and_the_process_continues(framework):
    assert layers.forms(framework, layers.spec("sohsm", counts=zipf_counts(90), dim=16))[0] == CPP
    with pytest.raises(Exception, match=r"no memory for the C\+\+ kernels") as error:
        EXHAUSTING[framework]()
    assert worker._status_of(error.value) == "oom"


def test_the_version_names_the_compiler(monkeypatch):
    interface = Interface("for_ctypes")
    assert cpp.version(interface).split()[0] == str(cpp.compiler()).rpartition("/")[2]
    monkeypatch.setenv("CXX", "none")
    assert cpp.version(interface) == "none (CXX is 'none')"


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (
            subprocess.CalledProcessError(1, ["g++"], stderr="kernels.cpp:3: error: no such thing\nmore"),
            "no such thing",
        ),
        (subprocess.TimeoutExpired(["g++"], 60), "timed out"),
        (OSError("cannot be run"), "cannot be run"),
    ],
)
def test_a_failed_compilation_is_a_warning(monkeypatch, failure, message):
    def run(*command):
        raise failure

    monkeypatch.setattr(compilation, "run", run)
    interface = Interface("for_ctypes", flags=("-DNOT_USED_BEFORE", message))
    with pytest.warns(UserWarning, match=rf"no C\+\+ kernels, layers take their framework's products: .*{message}"):
        assert cpp.library(interface) is None
    assert cpp.library(interface) is None  # warns only once


@pytest.fixture
def compiled_sources(monkeypatch, empty_cache):
    """Return the names of the sources compiled so far, by a compiler that writes empty files."""
    names = []

    def run(*command):
        if "-o" in command:
            Path(command[command.index("-o") + 1]).touch()
        if "-c" in command:
            names.extend(Path(source).stem for source in command if source.endswith(".cpp"))
        return ""

    monkeypatch.setattr(compilation, "run", run)
    return names


def _library(interface, threads):
    """Return a library's path, without the memory of this process."""
    return cpp.library.__wrapped__(Interface(interface, threads), load=str)


INTERFACES = [("for_ctypes", "openmp_threads"), ("for_jax", "helper_threads"), ("for_tensorflow", "helper_threads")]


def test_interfaces_that_are_compiled_at_once_share_the_kernels(compiled_sources):
    with ThreadPoolExecutor() as executor:
        libraries = list(executor.map(lambda given: _library(*given), 2 * INTERFACES))
    assert len(set(libraries)) == 3
    assert None not in libraries
    of_interfaces = ["for_ctypes", "for_jax", "for_tensorflow", "helper_threads", "helper_threads", "openmp_threads"]
    assert sorted(compiled_sources) == sorted([*compilation.KERNELS, *of_interfaces])


def test_a_cached_library_needs_no_objects(compiled_sources, empty_cache):
    library = _library(*INTERFACES[0])
    (objects,) = empty_cache.glob("kernels/objects-*")
    shutil.rmtree(objects)
    compiled_sources.clear()
    assert _library(*INTERFACES[0]) == library
    assert compiled_sources == []


SHARING = """
#include <chrono>
#include <thread>
#include "threads.h"

using namespace vocabench;

int main() {
    std::atomic<int> wrong{0};
    const auto call = [&](int caller) {
        for (int turn = 0; turn < 3000; ++turn) {
            const int count = (7 * turn + caller) % 40;
            int done[40] = {};
            share_work(1 + (turn + caller) % 5, count, [&](int64_t number) { done[number] += 1; });
            for (int number = 0; number < 40; ++number) wrong += done[number] != (number < count);
            if (turn % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // helpers fall asleep
        }
    };
    std::thread first(call, 1), second(call, 2);
    call(3);
    first.join();
    second.join();
    return wrong > 0;
}
"""


APART = """
#include <pthread.h>
#include <sched.h>
#include <chrono>
#include <thread>
#include "threads.h"

using namespace vocabench;

void move_to(int cpu) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    pthread_setaffinity_np(pthread_self(), sizeof only, &only);
}

int main() {
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    int together = 0;
    for (int turn = 0; turn < 40; ++turn) {
        int cpu[2];
        std::atomic<int> arrived{0};
        share_work(2, 2, [&](int64_t piece) {
            cpu[piece] = sched_getcpu();
            ++arrived;
            while (arrived < 2) std::this_thread::yield();
        });
        together += cpu[0] == cpu[1];
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the helper falls asleep
        move_to(cpu[0] == sched_getcpu() ? cpu[1] : cpu[0]);          // the helper's CPU
        pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
    }
    return together > 10;  // the system may move the caller in between
}
"""


THROWING = """
#include <chrono>
#include <new>
#include <thread>
#include "threads.h"

using namespace vocabench;

// Once both threads have begun, the caller's piece throws, or the helper's.
bool reaches_the_caller(bool from_caller) {
    const auto caller = std::this_thread::get_id();
    std::atomic<int> begun{0};
    std::atomic<bool> other_has_finished{false};
    try {
        share_work(2, 2, [&](int64_t) {
            ++begun;
            while (begun < 2) std::this_thread::yield();
            if ((std::this_thread::get_id() == caller) == from_caller) throw std::bad_alloc();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            other_has_finished = true;
        });
    } catch (const std::bad_alloc &) {
        return other_has_finished;
    }
    return false;
}

bool starts_no_other_piece() {
    std::atomic<int> begun{0};
    try {
        share_work(2, 1 << 30, [&](int64_t) {
            if (++begun == 5) throw std::bad_alloc();
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        });
    } catch (const std::bad_alloc &) {
        return begun < 1 << 20;
    }
    return false;
}

int main() {
    for (int turn = 0; turn < 20; ++turn)
        if (!reaches_the_caller(true) || !reaches_the_caller(false) || !starts_no_other_piece()) return 1;
    return 0;
}
"""

FORKED = """
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <thread>
#include "threads.h"

using namespace vocabench;

// Returns only if two threads take part.
void meet() {
    std::atomic<int> arrived{0};
    share_work(2, 2, [&](int64_t) {
        ++arrived;
        while (arrived < 2) std::this_thread::yield();
    });
}

int main() {
    meet();
    std::atomic<bool> stop{false};
    std::thread caller([&] {
        while (!stop) share_work(2, 2, [](int64_t) { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
    });
    int status = 0;
    for (int turn = 0; turn < 20 && !status; ++turn) {
        const pid_t child = fork();
        if (!child) {
            alarm(20);
            meet();
            meet();
            _exit(0);
        }
        waitpid(child, &status, 0);
    }
    stop = true;
    caller.join();
    meet();
    return status != 0;
}
"""

SCRATCH = """
#include <thread>
#include "scratch.h"

using namespace vocabench;

struct Use {};
struct Other {};

template <class Any>
float *from_template(size_t size) { return scratch<Use>(size); }

int main() {
    float *kept = scratch<Use>(10);
    bool right = from_template<int>(4) == kept && from_template<char>(10) == kept && scratch<Other>(10) != kept;
    std::thread([&] { right = right && from_template<int>(10) != kept; }).join();
    from_template<int>(1000)[999] = 1;
    return !(right && from_template<char>(1000)[999] == 1);
}
"""

HELPERS, OPENMP = ("helper_threads.cpp",), ("openmp_threads.cpp", "-fopenmp")


@pytest.mark.many_cells
@pytest.mark.parametrize(
    ("program", "threads"),
    [
        pytest.param(SHARING, HELPERS, id="each_piece_runs_once_for_concurrent_callers"),
        pytest.param(APART, HELPERS, id="a_helper_leaves_the_cpu_of_the_caller"),
        pytest.param(THROWING, HELPERS, id="an_exception_reaches_the_caller_when_all_have_stopped"),
        pytest.param(THROWING, OPENMP, id="an_exception_in_openmp_threads"),
        pytest.param(FORKED, HELPERS, id="a_forked_child_has_its_own_helpers"),
        pytest.param(SCRATCH, (), id="a_thread_has_one_scratch_buffer_per_use"),
    ],
)
def test_threads(program, threads, tmp_path):
    if program is APART and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    (tmp_path / "program.cpp").write_text(program)
    source = [f"{SOURCES}/{name}" for name in threads[:1]]
    _compile(tmp_path, "-O1", "-pthread", *source, *threads[1:])
    subprocess.run(tmp_path / "program", check=True, timeout=120)


def test_a_use_that_is_local_to_a_function_does_not_compile(tmp_path):
    """Two functions that declare it would have different buffers."""
    (tmp_path / "program.cpp").write_text(
        '#include "scratch.h"\nint main() { return !vocabench::scratch<struct Use>(1); }'
    )
    with pytest.raises(subprocess.CalledProcessError) as error:
        _compile(tmp_path)
    assert "incomplete type" in error.value.stderr


def _compile(folder, *flags):
    command = str(cpp.compiler()), "-std=gnu++17", f"-I{SOURCES}", *flags, "program.cpp", "-o", "program"
    subprocess.run(command, cwd=folder, check=True, timeout=120, capture_output=True, text=True)
