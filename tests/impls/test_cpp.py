"""The C++ kernels: every framework's agree, by every compiler, and what cannot be compiled is done without."""

import dataclasses
import subprocess

import pytest

from harness import agreement, layers, registry
from harness.workload import batch, zipf_counts
from impls import cpp
from impls.cpp import CPP

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)


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


def test_few_rows_are_searched_whatever_they_want():
    assert cpp.most_clusters(1, 100) == cpp.most_clusters(4, 100) == 100
    assert cpp.most_clusters(5, 100) == cpp.most_clusters(None, 100) == 40


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
