"""Fixtures for datasets that are built from installed packages."""

import pytest

from vocabench.harness.datasets.shared import package_sources

_real_source_files = package_sources.source_files


@pytest.fixture
def few_files(tmp_path, monkeypatch):
    """Restrict the standard library to a few files, and keep what is built in a cache of the test."""
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "cache"))
    files = list(_real_source_files("python"))[:150]
    monkeypatch.setattr(package_sources, "source_files", lambda package: iter(files if package == "python" else ()))
