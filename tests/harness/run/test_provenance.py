"""Provenance of rows."""

from pathlib import Path

import pytest

from vocabench.harness.run import provenance


@pytest.mark.parametrize("source", ["harness/a.py", "harness/suites/a.toml", "impls/cpp/a.cpp", "impls/cpp/a.h"])
def test_the_fingerprint_changes_with_every_kind_of_source(tmp_path: Path, source: str) -> None:
    path = tmp_path / source
    path.parent.mkdir(parents=True)
    path.write_text("1")
    before = provenance.fingerprint(tmp_path)
    path.write_text("2")
    assert provenance.fingerprint(tmp_path) != before


def test_an_editors_lock_is_not_a_source(tmp_path: Path) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "a.py").write_text("1")
    before = provenance.fingerprint(tmp_path)
    (tmp_path / "harness" / ".#a.py").symlink_to("me@localhost.123")
    assert provenance.fingerprint(tmp_path) == before


def test_processors_with_the_same_name_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for family, model in (("25", "1"), ("26", "2")):
        core = f"processor\t: 0\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n\n"
        (tmp_path / "cpuinfo").write_text(core * 2)
        monkeypatch.setattr(provenance, "_CPUINFO", tmp_path / "cpuinfo")
        provenance.machine.cache_clear()
        names.append(provenance.machine()["cpu"])
    provenance.machine.cache_clear()
    assert names == ["AMD EPYC, family 25, model 1", "AMD EPYC, family 26, model 2"]


@pytest.mark.parametrize("cpuinfo", [None, "Processor\t: ARMv8\n"])
def test_an_unnamed_processor_is_identified_by_its_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None
) -> None:
    if cpuinfo:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(provenance, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(provenance.platform, "processor", lambda: "")
    monkeypatch.setattr(provenance.platform, "machine", lambda: "aarch64")
    provenance.machine.cache_clear()
    assert provenance.machine()["cpu"] == "aarch64"
    provenance.machine.cache_clear()


def test_the_instruction_sets_of_the_processor_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("model name\t: AMD EPYC\nflags\t\t: fpu avx2 avx512f avx512_vnni\n")
    monkeypatch.setattr(provenance, "_CPUINFO", tmp_path / "cpuinfo")
    provenance.machine.cache_clear()
    assert provenance.machine()["instruction_sets"] == ["AVX2", "AVX-512"]
    provenance.machine.cache_clear()
