"""The wheel with compiled libraries: its files, its tag, and that it works without a compiler."""

import base64
import csv
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from distribution import libraries, wheel
from distribution.__main__ import main
from tests import ROOT
from vocabench.impls import cpp
from vocabench.impls.cpp import prebuilt
from vocabench.impls.cpp.prebuilt import V3, V4, Prebuilt

pytest.importorskip("build")

TAG = "manylinux_2_31_x86_64"
PLACE = "vocabench/impls/cpp/libraries"
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vocabench"
version = "1.0"
[tool.setuptools]
packages = ["vocabench"]
"""
LOSS = """
import numpy as np
import torch
import vocabench.torch
from vocabench.impls import cpp
from vocabench.impls.on_torch.ops import cpp_kernels
print(vocabench.__file__)
print(cpp.version(cpp_kernels.interface()))
layer = vocabench.torch.layer("huffman", counts=np.arange(300, 0, -1), dim=16)
print(layer.form.id)
loss = layer(torch.randn(40, 16), torch.arange(40))
loss.backward()
print(torch.isfinite(loss).item())
"""


def test_the_wheel_has_the_libraries_the_tag_and_checksums(tmp_path):
    project, made = tmp_path / "project", tmp_path / "libraries"
    (project / "vocabench").mkdir(parents=True)
    (project / "vocabench" / "__init__.py").write_text("")
    (project / "pyproject.toml").write_text(PROJECT)
    made.mkdir()
    record = Prebuilt("for_ctypes", V3, "", "0123", "g++ 12.2.0")
    (made / record.file).write_bytes(b"a library")
    prebuilt.write(made, [record])
    pure = wheel.pure(project, tmp_path / "pure")
    assert pure.name == "vocabench-1.0-py3-none-any.whl"
    complete = wheel.with_libraries(pure, made, TAG, tmp_path / "out")
    assert complete.name == f"vocabench-1.0-py3-none-{TAG}.whl"
    with zipfile.ZipFile(pure) as before, zipfile.ZipFile(complete) as after:
        added = {f"{PLACE}/for_ctypes.x86-64-v3.so", f"{PLACE}/manifest.json"}
        assert set(after.namelist()) == set(before.namelist()) | added
        description = after.read("vocabench-1.0.dist-info/WHEEL").decode().splitlines()
        assert "Root-Is-Purelib: false" in description
        assert [line for line in description if line.startswith("Tag:")] == [f"Tag: py3-none-{TAG}"]
        listed = {row[0]: row[1] for row in csv.reader(after.read("vocabench-1.0.dist-info/RECORD").decode().split())}
        assert set(listed) == set(after.namelist())
        for name in added:
            digest = base64.urlsafe_b64encode(hashlib.sha256(after.read(name)).digest()).decode().rstrip("=")
            assert listed[name] == f"sha256={digest}"
        (found,) = msgspec.json.decode(after.read(f"{PLACE}/manifest.json"), type=list[Prebuilt])
    assert found == msgspec.structs.replace(record, sha256=hashlib.sha256(b"a library").hexdigest())


def test_libraries_are_in_the_folder_where_an_installation_looks_for_them():
    assert prebuilt.FOLDER.parts[-4:] == tuple(PLACE.split("/"))
    assert wheel._PLACE == PLACE


def test_a_framework_of_another_version_than_in_the_constraints_is_refused(tmp_path):
    jaxlib = pytest.importorskip("jaxlib")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"jax==1.0\njaxlib=={jaxlib.__version__}\n")
    assert libraries.interface("jax", constraints).against == f"jaxlib {jaxlib.__version__}"
    constraints.write_text("jaxlib==0.0.1\n")
    with pytest.raises(ValueError, match=r"is installed: allowed: 0\.0\.1, the version in constraints.txt"):
        libraries.interface("jax", constraints)


def test_without_a_compiler_the_command_says_what_it_needs(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        "python -m distribution: no C++ compiler: allowed: g++, or another one that CXX names, under Linux on x86 with "
        "AVX2\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.lengthy
@pytest.mark.skipif(cpp.compiler() is None, reason="needs Linux, an x86 processor with AVX2 and a C++ compiler")
def test_the_wheel_computes_with_its_kernels_without_a_compiler(tmp_path):
    pytest.importorskip("torch")
    command = sys.executable, "-m", "distribution", "--frameworks", "torch", "--out", str(tmp_path)
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    (built,) = tmp_path.glob("*.whl")
    assert run.stdout == f"{built}\n"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path / "installed")
    kernels = {path.name for path in (tmp_path / "installed" / PLACE).iterdir()}
    assert kernels == {f"for_ctypes.{level}.so" for level in (V3, V4)} | {"manifest.json"}
    (tmp_path / "no-programs").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    environment |= {"PATH": str(tmp_path / "no-programs"), "PYTHONPATH": str(tmp_path / "installed")}
    run = subprocess.run(
        (sys.executable, "-P", "-c", LOSS), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    file, compiler, form, finite = run.stdout.splitlines()
    assert Path(file).is_relative_to(tmp_path)
    assert "(prebuilt kernels for x86-64-" in compiler
    assert (form, finite) == ("cpp", "True")
