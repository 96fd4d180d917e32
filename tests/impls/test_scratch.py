"""Temporary folders do not outlive the processes that use them."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from vocabench.impls import scratch

HOLD = """
import os, sys, time
from vocabench.impls.scratch import ScratchFolder
folder = ScratchFolder("compiled")
(folder.path / "cached").write_text("x")
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def holder(code=HOLD):
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process, number=signal.SIGKILL):
    process.send_signal(number)
    process.communicate()


def test_a_folder_exists_until_its_context_exits(temporary):
    with scratch.scratch("build") as folder:
        assert folder.parent == temporary
        (folder / "deeper").mkdir()
        scratch.sweep()
        assert folder.exists()
    assert list(temporary.iterdir()) == []


def test_only_folders_of_killed_processes_are_swept(temporary):
    killed, killed_folder = holder()
    alive, alive_folder = holder()
    other = temporary / "vocabench-of-somebody"  # without a lock, it may be in use
    other.mkdir()
    try:
        end(killed)
        assert os.path.exists(killed_folder)
        scratch.sweep()
        assert not os.path.exists(killed_folder)
        assert os.path.exists(alive_folder)
        assert other.exists()
    finally:
        end(alive)
    scratch.sweep()
    assert list(temporary.iterdir()) == [other]


def test_a_folder_is_in_use_while_a_child_has_its_lock(temporary):
    child = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0, "
    code = HOLD.replace("time.sleep", f"{child}pass_fds=[folder.lock])\ntime.sleep").replace("print(", "#")
    code = code.replace("time.sleep(600)", "print(folder.path, flush=True)\ntime.sleep(600)")
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = process.stdout.readline().strip()
    process.send_signal(signal.SIGKILL)
    process.wait()
    scratch.sweep()
    assert os.path.exists(folder)
    process.communicate()  # the child reads the end of its input and ends
    scratch.sweep()
    assert not os.path.exists(folder)


def test_a_link_to_a_folder_of_somebody_else_is_not_followed(temporary, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / ".in-use").touch()
    (temporary / "vocabench-link").symlink_to(target)
    scratch.sweep()
    assert (target / ".in-use").exists()
