"""The kinds of options that methods have. Each checks a value and raises a `BadInput` of one line if it is not allowed.

The first argument of each `check` is the name of the option in that line, such as "option bands".
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput


@dataclass(frozen=True)
class Choice:
    """An option with a few allowed values."""

    default: object
    values: tuple[object, ...]
    help: str

    def check(self, name: str, value: object) -> object:
        for allowed in self.values:
            if value == allowed and type(value) is type(allowed):
                return value
        raise BadInput(f"{name}={value!r}: allowed: {', '.join(map(repr, self.values))}")


@dataclass(frozen=True)
class Number:
    """A finite number from `low` to `high`, both included. It must be an integer if the default is an int."""

    default: float
    low: float
    high: float
    help: str

    def check(self, name: str, value: object) -> object:
        whole = isinstance(self.default, int)
        right_type = isinstance(value, int | np.integer) if whole else isinstance(value, int | float | np.number)
        if isinstance(value, bool) or not right_type or not self.low <= value <= self.high:  # type: ignore[operator]
            kind = "whole number" if whole else "number"
            raise BadInput(f"{name}={value!r}: allowed: a {kind} from {self.low} to {self.high}")
        return int(value) if whole else float(value)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Rising:
    """Rising integers from 1, as a list or as text such as "2000,10000". The default is empty: the method chooses."""

    help: str
    default: tuple[int, ...] = ()

    def check(self, name: str, value: object) -> tuple[int, ...]:
        given = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        wrong = BadInput(f"{name}={value!r}: allowed: rising whole numbers from 1, such as 2000,10000")
        if not isinstance(given, list | tuple) or not all(map(_is_whole, given)):
            raise wrong
        numbers = tuple(int(part) for part in given)
        if any(low >= high for low, high in itertools.pairwise((0, *numbers))):
            raise wrong
        return numbers


def _is_whole(part: object) -> bool:
    if isinstance(part, str):
        return re.fullmatch(r" *[0-9]{1,18} *", part) is not None
    return isinstance(part, int | np.integer) and not isinstance(part, bool)


@dataclass(frozen=True)
class Table:
    """An array of numbers with `dims` dimensions and one row per word or node, or the path of a .npy file with one.

    The default is None. A path is kept with the start of the file's sha256, so that other content is another option.
    """

    help: str
    dims: int = 2
    default: None = None

    def check(self, name: str, value: object) -> object:
        if value is None or isinstance(value, Given):
            return value
        if isinstance(value, str):
            path, sha256 = _file(name, value, "a .npy file")
            _numbers(name, _loaded(name, path), self.dims)
            return f"{path}@{sha256}"
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise BadInput(f"{name}: {error}: allowed: an array of {self.dims} dimensions") from None
        return Given(_numbers(name, array, self.dims))


@dataclass(frozen=True)
class File:
    """The path of a file, kept with the start of its sha256. The default is "", for no file."""

    help: str
    default: str = ""

    def check(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise BadInput(f"{name}={value!r}: allowed: the path of a file")
        return "@".join(map(str, _file(name, value, "a file"))) if value else ""


@dataclass(frozen=True)
class Folder:
    """The path of a folder, kept with the start of the sha256 of its files. The default is "", for no folder."""

    help: str
    default: str = ""

    def check(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise BadInput(f"{name}={value!r}: allowed: the path of a folder")
        if not value:
            return value
        path, _, named = value.rpartition("@")
        folder, named = (Path(value), "") if Path(value).is_dir() or not path else (Path(path), named)
        if not folder.is_dir():
            raise BadInput(f"{name}={value!r}: no such folder: allowed: the path of a folder")
        digest = hashlib.sha256()
        for file in sorted(each for each in folder.iterdir() if each.is_file()):
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
        found = digest.hexdigest()[:12]
        if named and named != found:
            what = f"{name}={value!r}: the files' sha256 begins {found}"
            raise BadInput(f"{what}: allowed: the folder as it was named")
        return f"{folder}@{found}"


@dataclass(frozen=True)
class Destination:
    """The path of a folder to write to, which is created if it is missing, or of a file, in a folder that exists.

    The default is "", for nothing to write.

    Attributes:
        suffixes: The suffixes of which a file must have one. Empty for a folder.
    """

    help: str
    default: str = ""
    suffixes: tuple[str, ...] = ()

    def check(self, name: str, value: object) -> str:
        allowed = f"the path of a {', '.join(self.suffixes)} file" if self.suffixes else "the path of a folder"
        wrong = BadInput(f"{name}={value!r}: allowed: {allowed} to write to")
        if not isinstance(value, str):
            raise wrong
        if value and self.suffixes:
            if Path(value).suffix not in self.suffixes or Path(value).is_dir():
                raise wrong
            if not Path(value).parent.is_dir():
                raise BadInput(f"{name}={value!r}: no folder {str(Path(value).parent)!r}: allowed: one that exists")
        elif Path(value).is_file():
            raise wrong
        return value


@dataclass(frozen=True)
class Words:
    """A word for each id, as a sequence of strings or the path of a UTF-8 text file with one word per line.

    The default is None. A path is kept as in `Table`.
    """

    help: str
    default: None = None

    def check(self, name: str, value: object) -> object:
        if value is None or isinstance(value, Spelled):
            return value
        if isinstance(value, str):
            path, sha256 = _file(name, value, "a text file with one word per line")
            return f"{path}@{sha256}"
        given = list(value) if isinstance(value, Sequence | np.ndarray) else []
        if not given or not all(isinstance(word, str) for word in given):
            raise BadInput(f"{name} is not a sequence of texts: allowed: a word for each id, or the path of a file")
        return Spelled(_words(name, given, "word"))


@dataclass(frozen=True, eq=False, repr=False)
class Spelled:
    """Words that were given as an option."""

    words: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{len(self.words)} words"


@dataclass(frozen=True)
class NestedLists:
    """Nested lists of words and word ids, or the path of a JSON file of them. The default is None.

    A path is kept as in `Table`.
    """

    help: str
    default: None = None

    def check(self, name: str, value: object) -> object:
        if value is None or isinstance(value, Nested):
            return value
        if isinstance(value, str):
            path, sha256 = _file(name, value, "a JSON file of nested lists")
            return f"{path}@{sha256}"
        if not isinstance(value, list | tuple):
            raise BadInput(f"{name}={str(value)[:40]!r}: allowed: nested lists of words, or the path of a JSON file")
        try:
            return Nested(json.dumps(value, default=_whole_number))
        except (TypeError, ValueError, RecursionError) as error:
            raise BadInput(f"{name}: {error}: allowed: nested lists of words and word ids") from None


def _whole_number(value: object) -> int:
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(f"it holds {type(value).__name__}")


@dataclass(frozen=True, eq=False, repr=False)
class Nested:
    """Nested lists that were given as an option, as JSON text."""

    text: str

    def __repr__(self) -> str:
        return f"nested lists of {len(self.text)} characters"


@dataclass(frozen=True, eq=False, repr=False)
class Given:
    """A copy of an array that was given as an option, so that later changes of the array change no specification."""

    array: NDArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "array", np.array(self.array))

    def __repr__(self) -> str:
        return f"array of shape {self.array.shape}"


Option = Choice | Number | Rising | Table | Words | NestedLists | Folder


def read_table(name: str, checked: object) -> NDArray | None:
    """Return the array of a checked `Table` option, or None if it was left out."""
    if checked is None:
        return None
    if isinstance(checked, Given):
        return checked.array
    path, _ = _file(f"option {name}", str(checked), "a .npy file")
    return _loaded(f"option {name}", path)


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def _loaded(name: str, path: Path) -> NDArray:
    try:
        with path.open("rb") as file:
            return read_npy(file, path.stat().st_size)
    except ValueError as error:
        raise BadInput(f"{name}: {path} {error}") from None


def read_npy(file: IO[bytes], size: int) -> NDArray:
    """Return the array in a .npy file of `size` bytes, after checking that its header matches the file.

    Raises:
        ValueError: The file is not a .npy file, holds neither numbers nor text, or has another size.
    """
    try:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except Exception as error:  # the header is a Python literal, which can be malformed in many ways
        raise ValueError(f"is no .npy file: {' '.join(str(error).split())[:200]}") from None
    held = size - file.tell()
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != held:
        raise ValueError(f"holds {dtype} of shape {shape} in {held:,} bytes: allowed: a .npy file of numbers")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def read_nested(name: str, checked: object) -> object:
    """Return the lists of a checked `NestedLists` option, or None if it was left out.

    Raises:
        BadInput: The file is not JSON.
    """
    if checked is None:
        return None
    if isinstance(checked, Nested):
        return json.loads(checked.text)
    path, _ = _file(f"option {name}", str(checked), "a JSON file of nested lists")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"option {name}: {path} is no JSON file: {error}: allowed: nested lists of words") from None


def path_of(checked: str) -> Path:
    """Return the path of a checked `File` or `Folder`."""
    return Path(checked.rpartition("@")[0])


def read_words(name: str, checked: object) -> tuple[str, ...] | None:
    """Return the words of a checked `Words` option, or None if it was left out."""
    if checked is None:
        return None
    if isinstance(checked, Spelled):
        return checked.words
    name = f"option {name}"
    path, _ = _file(name, str(checked), "a text file with one word per line")
    # Split at line feeds only: a word may contain other characters at which `splitlines` splits. The last is optional.
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").split(b"\n")
    words = []
    for number, line in enumerate(lines, start=1):
        try:
            words.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise BadInput(f"{name}: {path} line {number} is not UTF-8: {error.reason}") from None
    return _words(name, words, f"{path} line")


def _words(name: str, words: Sequence[str], place: str) -> tuple[str, ...]:
    for number, word in enumerate(words, start=1):
        if not word:
            raise BadInput(f"{name}: {place} {number} is empty: allowed: words of at least one character")
    return tuple(words)


def _file(name: str, text: str, kind: str) -> tuple[Path, str]:
    """Return the file of `path` or `path@sha256`, and the first 12 digits of its sha256, which must match."""
    path, _, named = text.rpartition("@")
    whole = Path(text)
    file, named = (whole, "") if whole.is_file() or not path else (Path(path), named)
    if not file.is_file():
        raise BadInput(f"{name}={text!r}: no such file: allowed: the path of {kind}")
    found = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    if named and named != found:
        raise BadInput(f"{name}={text!r}: the file's sha256 begins {found}: allowed: the file as it was named")
    return file, found


def _numbers(name: str, array: NDArray, dims: int) -> NDArray:
    if array.ndim != dims or array.dtype.kind not in "iuf":
        what = f"shape {array.shape} and dtype {array.dtype}"
        raise BadInput(f"{name} has {what}: allowed: numbers in {('', 'one dimension', 'two dimensions')[dims]}")
    if not np.isfinite(array).all():
        raise BadInput(f"{name} holds NaN or infinity: allowed: finite numbers")
    return array
