"""The C++ kernels: every framework's agree, by every compiler, and what cannot be compiled is done without."""

import dataclasses
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run import worker
from vocabench.impls import cpp
from vocabench.impls.cpp import CPP

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)


def _of_torch(layer, hidden_ND, targets_N):
    import torch

    layer(torch.from_numpy(hidden_ND).requires_grad_(), torch.from_numpy(targets_N))


def _of_tensorflow(layer, hidden_ND, targets_N):
    layer(hidden_ND, targets_N)


def _of_jax(layer, hidden_ND, targets_N):
    import jax

    structure = layer.structure()
    params = layer.from_canonical(
        structure, {n: v.astype(np.float32) for n, v in layer.spec.initial_parameters().items()}
    )
    jax.block_until_ready(jax.grad(layer.loss)(params, structure, hidden_ND, targets_N))


LOSSES = {"torch": _of_torch, "tensorflow": _of_tensorflow, "jax": _of_jax}


@pytest.mark.parametrize("framework", [name for name in registry.installed_frameworks() if name != "numpy"])
@pytest.mark.parametrize("dim", [48, 19])
@pytest.mark.parametrize("method", ["sohsm", "class_hsm"])
def test_layers_agree_with_their_definition(framework, method, dim):
    spec = layers.spec(method, counts=zipf_counts(400), dim=dim, seed=2)
    if method == "sohsm":
        spec = layers.spec(method, counts=spec.counts, dim=dim, seed=2, bias=True)
    assert layers.forms(framework, spec)[0] == CPP
    layer = layers.from_spec(framework, dataclasses.replace(spec, form=CPP))
    assert layer.formulation().startswith(CPP)
    found = agreement.check_layer(layer, batch(spec.counts, tokens=160, dim=dim, seed=2), k=12)
    assert [str(check) for check in found if not check.agrees] == []
    assert found


@pytest.mark.parametrize("framework", [name for name in registry.installed_frameworks() if name != "numpy"])
def test_a_target_that_is_no_word_is_refused_by_fused_softmax(framework):
    """Next to the layer, which the contract keeps from such targets: in a model of one's own."""
    adapter = registry.adapter(framework)
    spec = dataclasses.replace(layers.spec("fused_softmax", counts=zipf_counts(90), dim=16), form=CPP)
    layer, inputs = adapter.native(spec), batch(spec.counts, tokens=4, dim=16, seed=2)
    for outside in (90, -1):
        targets_N = np.array([1, outside, 2, 3])
        with pytest.raises(Exception, match="a target is none of the") as refused:
            LOSSES[framework](layer, inputs.hidden_ND.astype(np.float32), targets_N)
        assert not isinstance(refused.value, AssertionError)


def test_fused_softmax_is_first_where_vectors_are_whole():
    assert cpp.with_fused_softmax(("a", "b"), 48) == (CPP, "a", "b")
    assert cpp.with_fused_softmax(("a", "b"), 40) == ("a", "b")


def test_few_rows_are_projected_by_the_kernel():
    assert cpp.projects_fastest(1)
    assert cpp.projects_fastest(128)
    assert not cpp.projects_fastest(129)
    assert not cpp.projects_fastest(None)


def _topk_of_torch(layer, hidden_ND, k):
    import torch

    return [found.numpy() for found in layer.native.topk(torch.from_numpy(hidden_ND), k)]


def _topk_of_tensorflow(layer, hidden_ND, k):
    return layer.native.topk(hidden_ND, k)


def _topk_of_jax(layer, hidden_ND, k):
    return layer.native.topk(layer._params, layer._structure, hidden_ND, k)


TOPK = {"torch": _topk_of_torch, "tensorflow": _topk_of_tensorflow, "jax": _topk_of_jax}


@pytest.mark.parametrize("framework", [name for name in registry.installed_frameworks() if name != "numpy"])
@pytest.mark.parametrize("rows", [1, 60])
@pytest.mark.parametrize("projection", ["none", "residual"])
def test_rows_that_are_no_numbers_get_words_too_and_leave_the_others_theirs(framework, rows, projection):
    """Next to the layer, which the contract keeps from such rows: in a model of one's own."""
    spec = layers.spec("sohsm", counts=zipf_counts(9000), dim=16, seed=2, projection=projection, bias=True)
    layer = layers.from_spec(framework, dataclasses.replace(spec, form=CPP))
    hidden_ND = batch(spec.counts, tokens=rows, dim=16, seed=2).hidden_ND.astype(np.float32)
    expected_NK, ids_NK = (np.array(found) for found in TOPK[framework](layer, hidden_ND, 7))
    hidden_ND = hidden_ND.copy()
    hidden_ND[-1, 3] = np.nan
    values_NK, found_NK = (np.array(found) for found in TOPK[framework](layer, hidden_ND, 7))
    assert np.isnan(values_NK[-1]).all()
    assert ((found_NK[-1] >= 0) & (found_NK[-1] < 9000)).all()
    np.testing.assert_array_equal(found_NK[:-1], ids_NK[:-1])
    np.testing.assert_allclose(values_NK[:-1], expected_NK[:-1], rtol=1e-6)


MANY = 2**46  # clusters of no numbers, more than a process has addresses for


def _search_torch():
    import torch

    from vocabench.impls.on_torch.ops import cpp_kernels
    from vocabench.impls.on_torch.two_level.word_rows import WordRows

    one, none = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
    rows = WordRows(none, none.expand(MANY), slots=1, in_slab=False)
    return cpp_kernels.likeliest(one, one, one, None, none[None], rows, 1)


def _search_tensorflow():
    import tensorflow as tf

    from vocabench.impls.on_tensorflow.ops import cpp_kernels

    empty = tf.zeros([1, 0]), tf.zeros([1, 1]), tf.zeros([MANY, 1, 0])
    return cpp_kernels.likeliest(*empty, None, tf.zeros([1, 1], tf.int32), 1)


def _search_jax():
    import jax
    import jax.numpy as jnp

    from vocabench.impls.on_jax.ops import cpp_kernels

    empty = jnp.zeros((1, 0)), jnp.zeros((1, 1)), jnp.zeros((MANY, 1, 0))
    return jax.block_until_ready(cpp_kernels.likeliest(*empty, None, jnp.zeros((1, 1), jnp.int32), 1))


SEARCHES = {"torch": _search_torch, "tensorflow": _search_tensorflow, "jax": _search_jax}


@pytest.mark.parametrize("framework", [name for name in registry.installed_frameworks() if name != "numpy"])
def test_a_kernel_without_memory_is_an_oom_row_and_the_process_goes_on(framework):
    assert layers.forms(framework, layers.spec("sohsm", counts=zipf_counts(90), dim=16))[0] == CPP
    with pytest.raises(Exception, match=r"no memory for the C\+\+ kernels") as failed:
        SEARCHES[framework]()
    assert worker._status_of(failed.value) == "oom"


def test_the_version_of_the_compiler_is_told(monkeypatch):
    assert cpp.version().split()[0] == str(cpp.compiler()).rpartition("/")[2]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cpp.version() == "none"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (
            subprocess.CalledProcessError(1, ["g++"], stderr="kernels.cpp:3: error: no such thing\nmore"),
            "no such thing",
        ),
        (subprocess.TimeoutExpired(["g++"], 60), "timed out"),
        (OSError("cannot be run"), "cannot be run"),
    ],
)
def test_what_cannot_be_compiled_is_told_and_done_without(monkeypatch, failure, said):
    def run(*command):
        raise failure

    monkeypatch.setattr(cpp, "_run", run)
    flags = ("-DNOT_ASKED_FOR_BEFORE", said)
    with pytest.warns(UserWarning, match=rf"no C\+\+ kernels, layers take their framework's products: .*{said}"):
        assert cpp.library("for_ctypes", flags) is None
    assert cpp.library("for_ctypes", flags) is None  # told once only


SHARING = """
#include <thread>
#include "threads.h"

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
    std::thread one(call, 1), other(call, 2);
    call(3);
    one.join();
    other.join();
    return wrong > 0;
}
"""


APART = """
#include <chrono>
#include <thread>
#include "threads.h"

void go_to(int cpu) {
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
        std::atomic<int> come{0};
        share_work(2, 2, [&](int64_t piece) {
            cpu[piece] = sched_getcpu();
            ++come;
            while (come < 2) std::this_thread::yield();
        });
        together += cpu[0] == cpu[1];
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the helper falls asleep
        go_to(cpu[0] == sched_getcpu() ? cpu[1] : cpu[0]);          // where it was
        pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
    }
    return together > 10;  // the system may move the caller meanwhile
}
"""


THROWING = """
#include <new>
#include <thread>
#include "threads.h"

// Of two pieces, when both threads have begun, the caller's fails, or the other's.
bool comes_to_the_caller(bool from_caller) {
    const auto caller = std::this_thread::get_id();
    std::atomic<int> begun{0};
    std::atomic<bool> other_is_done{false};
    try {
        share_work(2, 2, [&](int64_t) {
            ++begun;
            while (begun < 2) std::this_thread::yield();
            if ((std::this_thread::get_id() == caller) == from_caller) throw std::bad_alloc();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            other_is_done = true;
        });
    } catch (const std::bad_alloc &) {
        return other_is_done;
    }
    return false;
}

bool begins_no_others() {
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
        if (!comes_to_the_caller(true) || !comes_to_the_caller(false) || !begins_no_others()) return 1;
    return 0;
}
"""

FORKED = """
#include <sys/wait.h>
#include <thread>
#include "threads.h"

// Comes to an end if there are two threads.
void meet() {
    std::atomic<int> come{0};
    share_work(2, 2, [&](int64_t) {
        ++come;
        while (come < 2) std::this_thread::yield();
    });
}

int main() {
    meet();
    std::atomic<bool> over{false};
    std::thread other([&] {
        while (!over) share_work(2, 2, [](int64_t) { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
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
    over = true;
    other.join();
    meet();
    return status != 0;
}
"""

ROOM = """
#include <thread>
#include "own_room.h"

struct Use {};
struct Other {};

template <class Any>
float *room(size_t size) { return own_room<Use>(size); }

int main() {
    float *kept = own_room<Use>(10);
    bool right = room<int>(4) == kept && room<char>(10) == kept && own_room<Other>(10) != kept;
    std::thread([&] { right = right && room<int>(10) != kept; }).join();
    room<int>(1000)[999] = 1;
    return !(right && room<char>(1000)[999] == 1);
}
"""

OPENMP = ("-DTHREADS_OF_OPENMP", "-fopenmp")


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        pytest.param(SHARING, (), id="each_piece_is_done_once_whoever_calls"),
        pytest.param(APART, (), id="a_helper_leaves_the_cpu_of_the_caller"),
        pytest.param(THROWING, (), id="what_is_thrown_comes_to_the_caller_when_all_have_stopped"),
        pytest.param(THROWING, OPENMP, id="what_is_thrown_by_openmps_threads_too"),
        pytest.param(FORKED, (), id="a_child_has_helpers_of_its_own"),
        pytest.param(ROOM, (), id="a_thread_has_one_room_for_a_use"),
    ],
)
def test_threads(program, flags, tmp_path):
    if program is APART and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    (tmp_path / "program.cpp").write_text(program)
    _compile(tmp_path, "-O1", "-pthread", *flags)
    subprocess.run(tmp_path / "program", check=True, timeout=120)


def test_a_use_of_room_that_is_a_functions_own_is_none(tmp_path):
    """Two functions that named it would have a room each."""
    (tmp_path / "program.cpp").write_text('#include "own_room.h"\nint main() { return !own_room<struct Use>(1); }')
    with pytest.raises(subprocess.CalledProcessError) as failed:
        _compile(tmp_path)
    assert "incomplete type" in failed.value.stderr


def _compile(folder, *flags):
    here = f"-I{Path(cpp.__file__).parent}"
    command = str(cpp.compiler()), "-std=gnu++17", here, *flags, "program.cpp", "-o", "program"
    subprocess.run(command, cwd=folder, check=True, timeout=120, capture_output=True, text=True)
