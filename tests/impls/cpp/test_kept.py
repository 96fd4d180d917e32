"""Libraries of compiled kernels: made once, and by nobody else."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vocabench.impls.cpp import kept


@pytest.fixture
def made() -> list[Path]:
    return []


@pytest.fixture
def text_of(empty_cache, made):
    """What is in the library that is made of something, a text of its own each time that it is made."""

    def text(*made_of: str) -> str:
        def compile_to(folder: Path) -> None:
            made.append(folder)
            (folder / kept.LIBRARY).write_text(f"library {len(made)}")

        with kept.compiled("some", made_of, compile_to) as path:
            return Path(path).read_text()

    return text


def test_made_of_the_same_it_is_made_once(text_of, empty_cache):
    assert [text_of("a", "b"), text_of("a", "b"), text_of("ab"), text_of("a", "b")] == [
        "library 1",
        "library 1",
        "library 2",
        "library 1",
    ]
    assert (empty_cache / "kernels").stat().st_mode & 0o077 == 0


def test_who_comes_meanwhile_waits(text_of):
    with ThreadPoolExecutor(8) as several:
        assert set(several.map(lambda _: text_of("a"), range(32))) == {"library 1"}


def test_a_damaged_one_is_made_anew(text_of, empty_cache):
    assert text_of("a") == "library 1"
    (library,) = empty_cache.glob(f"kernels/some-*/{kept.LIBRARY}")
    library.write_text("half a li")
    assert text_of("a") == "library 2"


def test_one_that_cannot_be_loaded_is_made_anew_the_next_time(text_of, empty_cache):
    text_of("a")
    with (
        pytest.raises(OSError, match="undefined symbol"),
        kept.compiled("some", ["a"], lambda folder: pytest.fail("is kept")),
    ):
        raise OSError("undefined symbol")
    assert text_of("a") == "library 2"


def test_what_is_not_made_is_not_kept(text_of):
    def failing(folder: Path) -> None:
        raise OSError("no compiler")

    with pytest.raises(OSError, match="no compiler"), kept.compiled("some", ["a"], failing):
        pass
    assert text_of("a") == "library 1"


def test_a_room_that_is_open_to_others_is_not_used(text_of, empty_cache, made):
    (empty_cache / "kernels").mkdir(parents=True)
    (empty_cache / "kernels").chmod(0o777)
    assert [text_of("a"), text_of("a")] == ["library 1", "library 2"]
    assert list((empty_cache / "kernels").iterdir()) == []
    assert not any(folder.exists() for folder in made)


def test_without_a_cache_it_is_made_for_this_process(text_of, empty_cache):
    empty_cache.write_text("a file where the folder would be")
    assert [text_of("a"), text_of("a")] == ["library 1", "library 2"]


def test_without_a_home_it_is_made_for_this_process(text_of, monkeypatch):
    for name in ("VOCABENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert [text_of("a"), text_of("a")] == ["library 1", "library 2"]


def test_what_nobody_has_used_for_a_month_is_removed(text_of, empty_cache):
    for name in ("a", "b"):
        text_of(name)
    (old,) = (each for each in empty_cache.glob("kernels/some-*") if "library 1" in (each / kept.LIBRARY).read_text())
    long_ago = time.time() - 32 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    assert text_of("c") == "library 3"
    assert not old.exists()
    assert text_of("b") == "library 2"
