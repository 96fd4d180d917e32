"""The command `vocabench`: its parser, its error messages and its exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from vocabench.harness.commands import (
    calibrate,
    check,
    compare,
    completion,
    data,
    evaluate,
    export,
    info,
    list_names,
    new,
    publish,
    report,
    run,
    score,
    table,
)
from vocabench.harness.commands.command import nonempty_text
from vocabench.harness.run.damaged_line import DamagedLine
from vocabench.impls import plugins
from vocabench.impls.errors import BadInput, unknown

BAD_USAGE = 2
INTERRUPTED, OUTPUT_CLOSED = 130, 141  # as in shells: 128 plus the number of the signal
_ENDING = (signal.SIGTERM, signal.SIGHUP)

_EPILOG = """\
examples:
  vocabench run                            the suite "quick" in every installed framework
  vocabench run quick -f torch -m huffman  one framework, one method
  vocabench run cpu -t timing -v 44000     one task and one size of another suite
  vocabench table                          the newest run as Markdown
  vocabench check -f jax                   do the layers agree with their definitions?
  vocabench score wer out.trn ref.trn      the word error rate of any recognizer

exit codes:
  0 done; 1 something disagrees, failed or is worse; 2 bad usage or input; 3 'compare' has nothing to compare;
  130 stopped by Ctrl-C

environment variables:
  VOCABENCH_DATA     folder with datasets that are not downloaded
  VOCABENCH_CACHE    folder for downloads, encoded texts and compiled kernels (default: ~/.cache/vocabench)
  VOCABENCH_PLUGINS  paths of plugins, as after --plugin, with ':' between them
  CXX                C++ compiler for the kernels (default: g++), or "none" for no kernels
  NO_COLOR           no colours on the terminal
"""

_show_any_warning = warnings.showwarning

COMMANDS = tuple(
    module.COMMAND
    for module in (
        run,
        check,
        calibrate,
        table,
        report,
        publish,
        export,
        compare,
        score,
        evaluate,
        data,
        list_names,
        new,
        info,
        completion,
    )
)


def entry() -> None:
    """Run the installed command."""
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    The code is 0 if the command is done, 1 if something disagrees, failed or is worse, 2 for bad usage or input, and 3
    if `compare` has nothing to compare.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default", DamagedLine)
        warnings.showwarning = _show_warning
        with _ending_by_signals():
            return _main(arguments)


class _Ended(BaseException):
    """The process was asked to end by a signal, whose number is the argument."""


@contextmanager
def _ending_by_signals() -> Iterator[None]:
    """End as by Ctrl-C when a scheduler or a closed terminal ends the process, so that nothing temporary is left."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # until everything is cleaned up
        raise _Ended(number)

    is_main = threading.current_thread() is threading.main_thread()
    handled = [number for number in _ENDING if is_main and signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _main(arguments: Sequence[str] | None) -> int:
    try:
        code = _run(_checked(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()  # here, where an error can still be reported
        return code
    except BadInput as error:
        return _refuse(f" {error}")
    except BrokenPipeError:  # the reader has closed the pipe
        _discard_output()
        return OUTPUT_CLOSED
    except OSError as error:
        _discard_output()
        file = f" {error.filename}:" if error.filename else ""
        return _refuse(f"{file} {error.strerror or error}")
    except (KeyboardInterrupt, _Ended) as error:
        with suppress(OSError):  # the terminal may be closed
            print("vocabench: stopped; the same command continues where it was", file=sys.stderr)
        return 128 + error.args[0] if isinstance(error, _Ended) else INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 0
    parsed, rest = parser.parse_known_args(arguments)
    for argument in rest:
        if argument.startswith("-"):
            raise unknown("option", argument.partition("=")[0], parsed.known_options)
    if rest:
        raise BadInput(f"argument {rest[0]!r}: one too many (see 'vocabench --help')")
    with plugins.added(parsed.plugin or ()):
        return parsed.command(parsed)


class _StoreOnce(argparse.Action):
    """Stores a value, and refuses a second one instead of silently dropping the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        given = vars(namespace).setdefault("given", set())
        if self.dest in given:
            parser.error(f"{option} is given twice: allowed: once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """Parser that reports a mistake in one line, without the usage."""

    def __init__(self, **options: Any) -> None:
        self.options: list[str] = []
        super().__init__(**options)
        self.register("action", None, _StoreOnce)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:  # type: ignore[override]
        self.options += [name for name in names if name.startswith("-")]
        return super().add_argument(*names, **options)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise BadInput(f"{message} (see '{self.prog} --help')")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = "/".join(action.option_strings) or str(action.metavar or action.dest).lower()
            raise unknown(kind, value, action.choices)


class _Version(argparse.Action):
    """Prints the version and ends. The version is looked up only then."""

    def __call__(self, *arguments: object, **options: object) -> None:
        from importlib import metadata

        try:
            print(f"vocabench {metadata.version('vocabench')}")
        except metadata.PackageNotFoundError:
            print("vocabench, not installed as a package")
        raise SystemExit(0)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="vocabench",
        description="Benchmark output layers over large vocabularies across frameworks.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        subparser.register("type", None, nonempty_text)
        command.add_arguments(subparser)
        subparser.add_argument(
            "--plugin",
            action="append",
            metavar="PATH",
            help="folder or file with further methods, datasets or suites; may be repeated",
        )
        subparser.set_defaults(command=command.run, known_options=subparser.options, parsers=subparsers.choices)
    return parser


def _checked(arguments: Sequence[str]) -> Sequence[str]:
    for argument in arguments:
        if "\0" in argument or any("\ud800" <= character <= "\udfff" for character in argument):
            raise BadInput(f"argument {argument!r}: allowed: UTF-8 without NUL")
    return arguments


def _discard_output() -> None:
    """Discard output that cannot be written. Python would try again at exit and print several lines of errors."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, category: type[Warning], *place: Any) -> None:
    if issubclass(category, DamagedLine):
        _print_line(f" warning: {message}")
    else:
        _show_any_warning(message, category, *place)


def _refuse(reason: str) -> int:
    _print_line(reason)
    return BAD_USAGE


def _print_line(text: str) -> None:
    """Print one line to standard error, even if it quotes names or values with unprintable characters."""
    print("".join(c if c.isprintable() else repr(c)[1:-1] for c in f"vocabench:{text}"), file=sys.stderr)


if __name__ == "__main__":
    entry()
