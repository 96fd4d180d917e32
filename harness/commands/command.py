"""What each command of `vocabench` defines, and conversions of arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from vocabench.harness.ascii_numbers import parse_count, parse_integer, parse_number
from vocabench.impls.errors import BadInput


@dataclass(frozen=True)
class Command:
    """One command of `vocabench`.

    Attributes:
        name: Name on the command line.
        help: One line that `vocabench --help` and the command's own help show.
        add_arguments: Function that adds the arguments to a parser.
        run: Function that runs the command and returns its exit code.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add arguments for results files, positional or after `--run`; `runs_of` returns both."""
    parser.add_argument("files", nargs="*", metavar="RUN", help="results file (default: the one written last)")
    parser.add_argument("--run", action="append", default=[], help="the same as RUN; may be repeated")


def runs_of(arguments: argparse.Namespace) -> list[str]:
    """Return the results files that the arguments of `add_runs` name."""
    return [*arguments.files, *arguments.run]


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the filters that `run` and `table` share."""
    add_framework_filter(parser)
    add_method_filter(parser)
    parser.add_argument(
        "-v", "--vocab", action="extend", type=_integers, metavar="V,...", help="only these vocabulary sizes"
    )
    parser.add_argument("-t", "--task", action="extend", type=_names, metavar="NAME,...", help="only these tasks")


def add_framework_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--framework", action="extend", type=_names, metavar="NAME,...", help="only these frameworks"
    )


def add_method_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--method", action="extend", type=_names, metavar="NAME,...", help="only these methods")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how much a measurement shows."""
    parser.add_argument("--quiet", action="store_true", help="show only errors and the path of the rows")
    parser.add_argument("--json", action="store_true", help="write events as JSON lines instead of tables")


def _names(text: str) -> list[str]:
    """Split names at commas."""
    return [nonempty_text(name.strip()) for name in text.split(",")]


def _integers(text: str) -> list[int]:
    return [integer(name) for name in _names(text)]


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Split the NAME=VALUE arguments of `flag`.

    Raises:
        BadInput: An argument has another form, or a name is given twice.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadInput(f"{flag} {text!r}: allowed: NAME=VALUE")
        if name in values:
            raise BadInput(f"{flag} {name} is given twice: allowed: once")
        values[name] = value
    return values


def nonempty_text(text: str) -> str:
    """Return an argument that is not a number.

    An empty argument, such as an unset shell variable, would otherwise stand for the default.
    """
    if not text:
        raise argparse.ArgumentTypeError("it is empty: allowed: text, or to leave it out")
    return text


def integer(text: str) -> int:
    return _converted(parse_integer, text, "a whole number")


def count(text: str) -> int:
    return _converted(parse_count, text, "a whole number from 0")


def number(text: str) -> float:
    return _converted(parse_number, text, "a number")


_NumberT = TypeVar("_NumberT", int, float)


def _converted(parse: Callable[[str], _NumberT], text: str, allowed: str) -> _NumberT:
    try:
        return parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: {allowed}") from None
