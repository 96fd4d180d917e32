"""A file has its complete new contents or is unchanged, whatever kind of file it is."""

import os
import stat
import threading
from pathlib import Path

import pytest

from vocabench.harness.atomic_write import write_atomically


def test_a_failed_write_names_the_file_and_leaves_it_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "table.md"
    write_atomically(path, "old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(path, "new")
    assert raised.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_for_a_missing_folder_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        write_atomically(tmp_path / "no" / "table.md", "new")
    assert raised.value.filename == str(tmp_path / "no" / "table.md")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_device_is_not_replaced():
    with pytest.raises(OSError, match="/dev/full"):
        write_atomically(Path("/dev/full"), "new")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_a_pipe_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    texts: list[str] = []
    reader = threading.Thread(target=lambda: texts.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, "new")
    reader.join()
    assert texts == ["new"]
    assert pipe.is_fifo()


def test_a_link_and_permissions_are_kept(tmp_path):
    path, link = tmp_path / "table.md", tmp_path / "link.md"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to("table.md")
    write_atomically(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
