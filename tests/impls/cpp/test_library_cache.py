"""The cache of compiled libraries: each is compiled once, and only in a folder of this user."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vocabench.impls.cpp import library_cache

LIBRARY = "kernels.so"


@pytest.fixture
def compilations() -> list[Path]:
    return []


@pytest.fixture
def text_of(empty_cache, compilations):
    """Return the contents of the library compiled from given inputs. Each compilation writes a new text."""

    def text(*inputs: str) -> str:
        def compile_to(folder: Path) -> None:
            compilations.append(folder)
            (folder / LIBRARY).write_text(f"library {len(compilations)}")

        with library_cache.compiled("kernels", inputs, compile_to) as folder:
            return (folder / LIBRARY).read_text()

    return text


def test_equal_inputs_are_compiled_once(text_of, empty_cache):
    assert [text_of("a", "b"), text_of("a", "b"), text_of("ab"), text_of("a", "b")] == [
        "library 1",
        "library 1",
        "library 2",
        "library 1",
    ]
    assert (empty_cache / "kernels").stat().st_mode & 0o077 == 0


def test_concurrent_callers_wait_for_one_compilation(text_of):
    with ThreadPoolExecutor(8) as executor:
        assert set(executor.map(lambda _: text_of("a"), range(32))) == {"library 1"}


def test_a_compilation_may_use_another_one(text_of, empty_cache):
    def compile_to(folder: Path) -> None:
        (folder / LIBRARY).write_text(f"linked with {text_of('a')}")

    for _ in range(2):
        with library_cache.compiled("interface", ["b"], compile_to) as folder:
            assert (folder / LIBRARY).read_text() == "linked with library 1"


def test_a_damaged_library_is_compiled_again(text_of, empty_cache):
    assert text_of("a") == "library 1"
    (library,) = empty_cache.glob(f"kernels/kernels-*/{LIBRARY}")
    library.write_text("half a li")
    assert text_of("a") == "library 2"


def test_a_library_that_cannot_be_loaded_is_compiled_again(text_of, empty_cache):
    text_of("a")
    with (
        pytest.raises(OSError, match="undefined symbol"),
        library_cache.compiled("kernels", ["a"], lambda folder: pytest.fail("compiled again")),
    ):
        raise OSError("undefined symbol")
    assert text_of("a") == "library 2"


def test_a_failed_compilation_leaves_nothing(text_of):
    def failing(folder: Path) -> None:
        raise OSError("no compiler")

    with pytest.raises(OSError, match="no compiler"), library_cache.compiled("kernels", ["a"], failing):
        pass
    assert text_of("a") == "library 1"


def test_a_folder_that_others_can_write_to_is_not_used(text_of, empty_cache, compilations):
    (empty_cache / "kernels").mkdir(parents=True)
    (empty_cache / "kernels").chmod(0o777)
    assert [text_of("a"), text_of("a")] == ["library 1", "library 2"]
    assert list((empty_cache / "kernels").iterdir()) == []
    assert not any(folder.exists() for folder in compilations)


def test_without_a_cache_folder_the_library_is_temporary(text_of, empty_cache):
    empty_cache.write_text("a file where the folder would be")
    assert [text_of("a"), text_of("a")] == ["library 1", "library 2"]


def test_without_a_home_folder_the_library_is_temporary(text_of, monkeypatch):
    for name in ("VOCABENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert [text_of("a"), text_of("a")] == ["library 1", "library 2"]


def test_libraries_unused_for_a_month_are_removed(text_of, empty_cache):
    for name in ("a", "b"):
        text_of(name)
    folders = empty_cache.glob("kernels/kernels-*")
    (old,) = (folder for folder in folders if "library 1" in (folder / LIBRARY).read_text())
    long_ago = time.time() - 32 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    assert text_of("c") == "library 3"
    assert not old.exists()
    assert text_of("b") == "library 2"
