"""What one process of a run of the tests has compiled is there for the others."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import compile_once

# Notes what it compiles; the object is the source, in which there must be nothing wrong.
COMPILER = """#!/bin/sh
for each; do case $each in *.cpp) source=$each;; esac; made=$each; done
case " $* " in *" -E "*) exec cat $source;; *" -c "*) ;; *) exec echo passed on;; esac
echo "$*" >> {log}
grep -q wrong $source && exit 3
cp $source $made
"""


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    made = tmp_path / "g++"
    made.write_text(COMPILER.format(log=tmp_path / "log"))
    made.chmod(0o755)
    return made


@pytest.fixture
def compile_(tmp_path: Path, compiler: Path) -> Callable[..., tuple[int, int]]:
    """Of a source's text, with flags: what is returned, and how often the compiler has been called so far."""
    source, log = tmp_path / "kernel.cpp", tmp_path / "log"
    (tmp_path / "kept").mkdir()

    def made(text: str, *flags: str) -> tuple[int, int]:
        source.write_text(text)
        to = tmp_path / "kernel.o"
        to.unlink(missing_ok=True)
        returned = compile_once.run(tmp_path / "kept", str(compiler), [*flags, "-c", str(source), "-o", str(to)])
        assert returned or to.read_text() == text
        return returned, len(log.read_text().splitlines())

    return made


def test_a_text_is_compiled_once_with_the_same_flags(compile_):
    assert compile_("some", "-O3") == (0, 1)
    assert compile_("some", "-O3") == (0, 1)
    assert compile_("some", "-O2") == (0, 2)
    assert compile_("other", "-O3") == (0, 3)
    assert compile_("some", "-O3") == (0, 3)


def test_where_headers_are_is_no_matter_once_their_text_is_known(compile_):
    assert compile_("some", "-O3", "-isystem", "here") == (0, 1)
    assert compile_("some", "-O3", "-isystem", "there") == (0, 1)


def test_what_cannot_be_compiled_is_not_kept(compile_):
    assert compile_("wrong") == (3, 1)
    assert compile_("wrong") == (3, 2)
    assert compile_("right") == (0, 3)


def test_other_commands_are_the_compilers(tmp_path, compiler, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    compile_once.install(tmp_path / "found first")
    said = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, check=True)
    assert said.stdout == "passed on\n"
