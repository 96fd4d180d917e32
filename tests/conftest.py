"""Fixtures that several tests share."""

from pathlib import Path

import pytest


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder is empty and temporary: where runs are kept by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
