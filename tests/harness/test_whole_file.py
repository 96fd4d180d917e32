"""Files are there whole or not at all, whatever they take the place of."""

import os
import stat
import threading
from pathlib import Path

import pytest

from vocabench.harness.atomic_write import write_whole


def test_a_write_that_fails_names_the_file_and_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "table.md"
    write_whole(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_whole(path, "new")
    assert raised.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_told_by_the_name_of_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        write_whole(tmp_path / "no" / "table.md", "new")
    assert raised.value.filename == str(tmp_path / "no" / "table.md")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_device_stays_one():
    with pytest.raises(OSError, match="/dev/full"):
        write_whole(Path("/dev/full"), "new")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_a_pipe_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "new")
    reader.join()
    assert read == ["new"]
    assert pipe.is_fifo()


def test_a_link_and_permissions_stay_as_they_are(tmp_path):
    path, link = tmp_path / "table.md", tmp_path / "link.md"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to("table.md")
    write_whole(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
