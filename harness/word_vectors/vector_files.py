"""Word vectors in files of word2vec's two formats, which gensim, fastText and others read, and in NumPy's .npz.

The suffix of a file decides its format:

    .txt, .vec   word2vec text: a line "V D", then for each word a line of the word and its D values
    .bin         word2vec binary: a line "V D", then for each word the word, a space, D little-endian float32 values
                 and a line feed
    .npz         the arrays `words`, (V,) of text, and `vectors`, (V, D) of float32

A word is one or more characters other than NUL and the white space of ASCII, which the formats of word2vec cannot hold.
The rule is the same in all formats, so that a file in one can be written in another. Values are float32, and text holds
enough digits of each to read the same value again.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.harness import npz_files
from vocabench.harness.ascii_numbers import parse_number
from vocabench.harness.atomic_write import atomic_writer
from vocabench.impls.errors import BadInput, unknown

_NOT_IN_A_WORD = re.compile(r"[\0 \t\n\v\f\r]")
_HEADER = re.compile(rb"([0-9]{1,10}) ([0-9]{1,10})[ \r]*\n")
_LONGEST_HEADER = 64  # bytes, so that a file that is no text is not read as one line
_WORDS, _VECTORS = "words", "vectors"  # of an .npz file
_VALUE = np.dtype("<f4")  # of a binary file

_Place = Callable[[int], str]  # names the place of a row in a file, for messages


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors.

    Attributes:
        words: The V words, each once.
        vectors_VD: (V, D) finite float32 values.
    """

    words: tuple[str, ...]
    vectors_VD: NDArray[np.float32] = field(repr=False)


def check_suffix(path: Path) -> None:
    """Raise `BadInput` if the suffix of a file stands for no format."""
    if path.suffix not in _FORMATS:
        raise unknown("suffix of a file of word vectors", path.suffix, SUFFIXES)


def write(path: Path, words: Sequence[str], vectors_VD: ArrayLike) -> None:
    """Write word vectors atomically, in the format that the suffix names.

    Args:
        path: Path of the file. Its folder must exist.
        words: The V words.
        vectors_VD: (V, D) values, which are rounded to float32.

    Raises:
        BadInput: The suffix stands for no format, a word is repeated or cannot be written, a value is not finite in
            float32, or the numbers of words and vectors differ.
        OSError: The file cannot be written.
    """
    check_suffix(path)
    given_VD = np.asarray(vectors_VD)
    if given_VD.ndim != 2 or given_VD.dtype.kind != "f" or not given_VD.size or len(given_VD) != len(words):
        what = f"vectors of shape {given_VD.shape} and dtype {given_VD.dtype} for {len(words)} words"
        raise BadInput(f"{path.name}: {what}: allowed: floats of shape (V, D), a vector for each word, at least one")
    with np.errstate(over="ignore"):  # reported as infinity
        values_VD = np.ascontiguousarray(given_VD, dtype=np.float32)

    _check(words, values_VD, _by_word(path))
    with atomic_writer(path) as file:
        _FORMATS[path.suffix].write(file, words, values_VD)


def read(path: Path, *, expected_dim: int | None = None) -> WordVectors:
    """Read word vectors from a file in the format that its suffix names.

    Args:
        path: Path of the file.
        expected_dim: D, if only this one is allowed.

    Raises:
        BadInput: The file is missing or does not have the format of its suffix, a word is repeated, a value is not
            finite, or D is not the expected one. The message names the file and the line or the word.
    """
    check_suffix(path)
    if not path.is_file():
        raise BadInput(f"word vectors {path}: no such file: allowed: the path of a {', '.join(SUFFIXES)} file")
    return _FORMATS[path.suffix].read(path, expected_dim)


def _write_text(file: BinaryIO, words: Sequence[str], vectors_VD: NDArray[np.float32]) -> None:
    file.write(_header(vectors_VD))
    line = " ".join(["%s", *["%.9g"] * vectors_VD.shape[1]]) + "\n"  # 9 digits determine a float32
    for word, values in zip(words, vectors_VD, strict=True):
        file.write((line % (word, *values.tolist())).encode())


def _read_text(path: Path, expected_dim: int | None) -> WordVectors:
    def place(row: int) -> str:
        return f"{path.name}, line {row + 2}"

    words: list[str] = []
    values = array("f")  # grows with the lines that are there, whatever the header says
    with path.open("rb") as file:
        count, dim = _read_header(path, file, expected_dim)
        for row, line in enumerate(file):
            word, _, rest = line.rstrip().partition(b" ")
            parts = rest.split(b" ")
            if len(parts) != dim or not rest:
                held = len(parts) if rest else 0
                raise BadInput(f"{place(row)}: {held} values after the word: allowed: {dim}, as line 1 says")
            try:
                if b"_" in rest:  # which `float` accepts between digits
                    raise ValueError
                values.extend(map(float, parts))
            except ValueError:
                wrong = next(part for part in parts if not _is_number(part))
                raise BadInput(f"{place(row)}: {_shown(wrong)} is not a number: allowed: finite numbers") from None
            words.append(_decoded(word, place(row)))
    if len(words) != count:
        raise BadInput(f"{path.name}: {len(words)} lines of words: allowed: {count}, as line 1 says")
    vectors_VD = np.frombuffer(values, dtype=np.float32).reshape(count, dim)
    _check(words, vectors_VD, place)
    return WordVectors(tuple(words), vectors_VD)


def _write_binary(file: BinaryIO, words: Sequence[str], vectors_VD: NDArray[np.float32]) -> None:
    file.write(_header(vectors_VD))
    for word, values in zip(words, vectors_VD.astype(_VALUE, copy=False), strict=True):
        file.write(word.encode() + b" " + values.tobytes() + b"\n")


def _read_binary(path: Path, expected_dim: int | None) -> WordVectors:
    place = _by_word(path)
    with path.open("rb") as file:
        count, dim = _read_header(path, file, expected_dim)
        data = file.read()
    size = dim * _VALUE.itemsize
    if count * (size + 2) > len(data):
        allowed = f"{count} words of {dim} values, as line 1 says"
        raise BadInput(f"{path.name}: {len(data):,} bytes after line 1: allowed: {allowed}")
    words: list[str] = []
    vectors_VD = np.empty((count, dim), dtype=np.float32)
    start = 0
    for row in range(count):
        end = data.find(b" ", start)
        if end < 0 or end + 1 + size > len(data):
            raise BadInput(f"{place(row)}: the file ends before its values do: allowed: {count} words, as line 1 says")
        # The original program writes a line feed after the values, and gensim none.
        words.append(_decoded(data[start:end].removeprefix(b"\n"), place(row)))
        vectors_VD[row] = np.frombuffer(data, dtype=_VALUE, count=dim, offset=end + 1)
        start = end + 1 + size
    if rest := len(data[start:].removeprefix(b"\n")):
        raise BadInput(f"{path.name}: {rest:,} bytes after word {count}: allowed: {count} words, as line 1 says")
    _check(words, vectors_VD, place)
    return WordVectors(tuple(words), vectors_VD)


def _write_npz(file: BinaryIO, words: Sequence[str], vectors_VD: NDArray[np.float32]) -> None:
    np.savez(file, **{_WORDS: np.array(words, dtype=np.str_), _VECTORS: vectors_VD})  # type: ignore[arg-type]


def _read_npz(path: Path, expected_dim: int | None) -> WordVectors:
    try:
        arrays = npz_files.read_npz(path)
    except BadInput as error:
        raise BadInput(f"{path.name}: {error}") from None
    if missing := [name for name in (_WORDS, _VECTORS) if name not in arrays]:
        raise BadInput(f"{path.name}: no array {' or '.join(missing)}: allowed: {_WORDS} and {_VECTORS}")
    words_V, vectors_VD = arrays[_WORDS], arrays[_VECTORS]
    if words_V.ndim != 1 or words_V.dtype.kind != "U" or not words_V.size:
        what = f"{_WORDS} of shape {words_V.shape} and dtype {words_V.dtype}"
        raise BadInput(f"{path.name}: {what}: allowed: texts of shape (V,), at least one")
    if vectors_VD.shape[:-1] != words_V.shape or not vectors_VD.size or vectors_VD.dtype != np.float32:
        what = f"{_VECTORS} of shape {vectors_VD.shape} and dtype {vectors_VD.dtype}"
        raise BadInput(f"{path.name}: {what} for {len(words_V)} words: allowed: float32 of shape (V, D)")
    _check_dim(path, vectors_VD.shape[1], expected_dim)
    words = tuple(words_V.tolist())
    _check(words, vectors_VD, _by_word(path))
    return WordVectors(words, vectors_VD)


def _header(vectors_VD: NDArray[np.float32]) -> bytes:
    return "{} {}\n".format(*vectors_VD.shape).encode()


def _read_header(path: Path, file: BinaryIO, expected_dim: int | None) -> tuple[int, int]:
    """Return the number of words and the dimension in the first line."""
    line = file.readline(_LONGEST_HEADER)
    match = _HEADER.fullmatch(line)
    count, dim = map(int, match.groups()) if match else (0, 0)
    if not count or not dim:
        what = _shown(line.rstrip(b"\r\n"))
        raise BadInput(f"{path.name}, line 1: {what}: allowed: the number of words and the dimension, from 1")
    _check_dim(path, dim, expected_dim)
    return count, dim


def _check_dim(path: Path, dim: int, expected_dim: int | None) -> None:
    if expected_dim is not None and dim != expected_dim:
        raise BadInput(f"{path.name}: vectors of {dim} values: allowed: {expected_dim}")


def _by_word(path: Path) -> _Place:
    return lambda row: f"{path.name}, word {row + 1}"


def _check(words: Sequence[str], vectors_VD: NDArray[np.float32], place: _Place) -> None:
    _check_words(words, place)
    _check_finite(vectors_VD, place)


def _check_words(words: Sequence[str], place: _Place) -> None:
    seen: dict[str, int] = {}
    for row, word in enumerate(words):
        if not word or _NOT_IN_A_WORD.search(word):
            allowed = "at least one character, without white space, as in word2vec's formats"
            raise BadInput(f"{place(row)}: word {word[:40]!r}: allowed: {allowed}")
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{place(row)}: word {word[:40]!r}: allowed: text that UTF-8 can encode") from None
        if (first := seen.setdefault(word, row)) != row:
            raise BadInput(f"{place(row)}: word {word[:40]!r} again, after {place(first)}: allowed: each word once")


def _check_finite(vectors_VD: NDArray[np.float32], place: _Place) -> None:
    wrong_V = ~np.isfinite(vectors_VD).all(axis=1)
    if wrong_V.any():
        row = int(wrong_V.argmax())
        value = next(value for value in vectors_VD[row].tolist() if not np.isfinite(value))
        raise BadInput(f"{place(row)}: a value of {value}: allowed: finite float32 numbers")


def _decoded(word: bytes, place: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{place}: word {_shown(word)} is not UTF-8: allowed: UTF-8 text") from None


def _is_number(part: bytes) -> bool:
    try:
        parse_number(part.decode("ascii", errors="replace"))
    except ValueError:
        return False
    return True


def _shown(text: bytes) -> str:
    """Return the start of a piece of a file as it stands in a message, on one line."""
    return repr(text[:40].decode(errors="backslashreplace"))


@dataclass(frozen=True)
class _Format:
    write: Callable[[BinaryIO, Sequence[str], NDArray[np.float32]], None]
    read: Callable[[Path, int | None], WordVectors]


_TEXT = _Format(_write_text, _read_text)
_FORMATS = {
    ".bin": _Format(_write_binary, _read_binary),
    npz_files.SUFFIX: _Format(_write_npz, _read_npz),
    ".txt": _TEXT,
    ".vec": _TEXT,
}
SUFFIXES = tuple(_FORMATS)
