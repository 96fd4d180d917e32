"""Prebuilt kernels: used without a compiler, and only if they fit the sources, the framework and the processor."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from vocabench.harness import registry
from vocabench.impls import cpp
from vocabench.impls.cpp import Interface, compilation, prebuilt, processor
from vocabench.impls.cpp.prebuilt import V3, V4, Prebuilt
from vocabench.impls.errors import Unsupported

INTERFACE = Interface("for_jax", against="jaxlib 1.2.3")
NO_COMPILER = "no-such-compiler"

Install = Callable[..., list[Prebuilt]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that writes libraries for some levels, with changed fields, to the folder of the installation.

    There is no compiler, and the processor has the instructions of the widest level.
    """
    folder = tmp_path / "libraries"
    folder.mkdir()
    monkeypatch.setattr(prebuilt, "FOLDER", folder)
    monkeypatch.setenv("CXX", NO_COMPILER)
    has(monkeypatch, V4)

    def write(levels: Sequence[str] = (V3, V4), interface: Interface = INTERFACE, **changed: str) -> list[Prebuilt]:
        records = []
        for level in levels:
            sources = prebuilt.digest(interface, level)
            record = Prebuilt(interface.name, level, interface.against, sources, "g++ 12.2.0")
            record = msgspec.structs.replace(record, **changed)
            (folder / record.file).write_text(f"library for {level}")
            records.append(record)
        prebuilt.write(folder, records)
        return records

    return write


def has(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Give the processor the instructions of a level, or those of an older processor with AVX2 only."""
    features = set(prebuilt.LEVELS.get(level, ("avx2",)))
    monkeypatch.setattr(processor, "has", lambda *wanted: set(wanted) <= features)


def loaded(interface: Interface = INTERFACE) -> str | None:
    """Return the name of the library that is loaded, without the memory of this process."""
    path = cpp.library.__wrapped__(interface, load=str)
    return path and Path(path).name


@pytest.mark.parametrize(("level", "levels", "expected"), [(V4, (V3, V4), V4), (V3, (V3, V4), V3), (V4, (V3,), V3)])
def test_the_best_library_for_the_processor_is_used_without_a_compiler(install, monkeypatch, level, levels, expected):
    install(levels)
    has(monkeypatch, level)
    assert loaded() == f"for_jax.{expected}.so"
    assert cpp.version(INTERFACE) == f"g++ 12.2.0 (prebuilt kernels for {expected})"


def test_a_compiler_is_preferred(install, monkeypatch, empty_cache):
    def run(*command: str) -> str:
        if "-o" in command:
            Path(command[command.index("-o") + 1]).touch()
        return ""

    install()
    monkeypatch.setenv("CXX", "env")  # which every machine has
    monkeypatch.setattr(compilation, "run", run)
    assert loaded() == "kernels.so"
    assert "prebuilt" not in cpp.version(INTERFACE)


def refused(capsys: pytest.CaptureFixture[str], interface: Interface = INTERFACE) -> str:
    """Return why no library is used, as standard error and the provenance say."""
    assert loaded(interface) is None
    line = capsys.readouterr().err
    start = "vocabench: no C++ kernels, layers take their framework's products: "
    assert line.startswith(start)
    reason = line.removeprefix(start).rstrip("\n")
    assert cpp.version(interface) == f"none ({reason})"
    return reason.removeprefix(f"there is no compiler {NO_COMPILER!r}, and ")


def test_a_library_of_other_sources_is_refused(install, capsys, monkeypatch, tmp_path):
    install()
    assert loaded() is not None
    sources = tmp_path / "sources"
    shutil.copytree(compilation._HERE, sources, ignore=shutil.ignore_patterns("__pycache__"))
    with (sources / "strips.h").open("a") as header:
        header.write("// changed\n")
    monkeypatch.setattr(compilation, "_HERE", sources)
    assert refused(capsys) == "the prebuilt kernels were compiled from other sources"


def test_a_library_of_other_flags_is_refused(install, capsys, monkeypatch):
    install()
    monkeypatch.setattr(compilation, "_OPTIMIZE", ("-O2",))
    assert refused(capsys) == "the prebuilt kernels were compiled from other sources"


def test_a_library_for_another_version_of_the_framework_is_refused(install, capsys):
    install(against="jaxlib 1.2.4")
    assert refused(capsys) == "the prebuilt kernels are for jaxlib 1.2.4, not for jaxlib 1.2.3"


@pytest.mark.parametrize("framework", [name for name in registry.installed_frameworks() if name != "numpy"])
def test_libraries_depend_on_the_version_of_the_framework_except_for_pytorch(framework):
    import importlib

    against = importlib.import_module(f"vocabench.impls.on_{framework}.ops.cpp_kernels").interface().against
    if framework == "torch":
        assert against == ""
    else:
        module = importlib.import_module("jaxlib" if framework == "jax" else framework)
        assert module.__version__ in against.split()


def test_a_processor_without_the_instructions_gets_no_library(install, capsys, monkeypatch):
    install([V4])
    has(monkeypatch, V3)
    assert refused(capsys) == "the prebuilt kernels need a processor of level x86-64-v4"
    install()
    has(monkeypatch, "older")
    assert refused(capsys) == "the prebuilt kernels need a processor of level x86-64-v3 or x86-64-v4"


def test_another_interface_gets_no_library(install, capsys):
    install()
    assert refused(capsys, Interface("for_ctypes")) == "the prebuilt kernels have no library 'for_ctypes'"


def test_an_installation_without_libraries_says_so(install, capsys):
    assert refused(capsys) == "this installation has no prebuilt kernels"


def test_damaged_files_are_refused(install, capsys):
    record = install()[-1]
    (prebuilt.FOLDER / record.file).write_text("half a li")
    assert refused(capsys).endswith(f"{record.file} is damaged")
    (prebuilt.FOLDER / record.file).unlink()
    assert "No such file" in refused(capsys)
    (prebuilt.FOLDER / prebuilt.MANIFEST).write_text('[{"interface": "for_jax"}]')
    assert "manifest.json, is damaged" in refused(capsys)


def test_kernels_can_be_turned_off(install, capsys, monkeypatch):
    install()
    monkeypatch.setenv("CXX", "none")
    assert refused(capsys) == "CXX is 'none'"


def test_a_library_that_cannot_be_loaded_is_a_warning(install):
    def load(path: str) -> None:
        raise OSError("version `GLIBCXX_3.4.99' not found")

    install()
    with pytest.warns(UserWarning, match=r"no C\+\+ kernels, .*for_jax\.x86-64-v4\.so: version `GLIBCXX_3.4.99' not"):
        assert cpp.library.__wrapped__(INTERFACE, load=load) is None


def test_kernels_for_amd_with_avx512_need_a_library_of_its_level(install, monkeypatch):
    monkeypatch.setattr(processor, "lines", lambda: ("vendor_id\t: AuthenticAMD",))
    for levels, expected in (([V3], False), ([V3, V4], True)):
        install(levels)
        cpp._is_amds_avx512.cache_clear()
        assert cpp.differentiates_fastest(2560, 512, 512) == expected
    cpp._is_amds_avx512.cache_clear()


def test_levels_are_determined_from_the_processors_features(monkeypatch):
    has(monkeypatch, V4)
    assert prebuilt.levels() == (V4, V3)
    has(monkeypatch, V3)
    assert prebuilt.levels() == (V3,)
    with pytest.raises(Unsupported):
        prebuilt.chosen(Interface("for_nothing"))
