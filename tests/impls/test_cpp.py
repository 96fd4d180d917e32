"""The C++ kernels: every framework's agree, by every compiler, and what cannot be compiled is done without."""

import dataclasses
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from harness import agreement, layers, registry
from harness.workload import batch, zipf_counts
from impls import cpp
from impls.cpp import CPP

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


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(SHARING, id="each_piece_is_done_once_whoever_calls"),
        pytest.param(APART, id="a_helper_leaves_the_cpu_of_the_caller"),
    ],
)
def test_sharing_of_work(program, tmp_path):
    if program is APART and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    (tmp_path / "sharing.cpp").write_text(program)
    here = Path(cpp.__file__).parent
    command = (str(cpp.compiler()), "-std=gnu++17", "-O2", "-pthread", f"-I{here}", "sharing.cpp", "-o", "sharing")
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    subprocess.run(tmp_path / "sharing", check=True, timeout=120)
