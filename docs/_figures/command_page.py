"""The reference page of the command line, made from the parser and from the definitions of methods and tasks."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vocabench.harness import cli, registry

_BEGIN = """\
# The command line

<!-- This page is made by `make docs-tables` from the parser and the definitions: do not edit it. -->

`--help` after `vocabench` or after a command prints the same. [Quick start](quick-start.md) shows the commands at work.
"""
_OPTIONS = """\
## Options of methods

`-o NAME=VALUE` of `vocabench run` gives an option to every selected method that has it. The page of a
method explains its options.
"""
_SETTINGS = """\
## Settings of tasks

`-s NAME=VALUE` of `vocabench run` changes a setting of every selected task that has it. A suite may have
other defaults than these.
"""


def text() -> str:
    """Return the page."""
    parser = cli._parser()
    parts = [_BEGIN, *_commands(parser), "## Further notes\n", f"```\n{(parser.epilog or '').strip()}\n```\n", _OPTIONS]
    for method in registry.methods():
        if options := registry.definition(method).options:
            parts += [f"### `{method}`\n", _values(options, "option")]
    parts.append(_SETTINGS)
    for task in registry.tasks():
        if settings := registry.task(task).settings:
            parts += [f"### `{task}`\n", _values(settings, "setting")]
    return "\n".join(parts)


def _commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    (action,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    for name, subparser in action.choices.items():
        yield f"## vocabench {name}\n"
        yield f"{_sentence(subparser.description or '')}\n"
        arguments = [each for each in subparser._actions if not isinstance(each, argparse._HelpAction)]
        if arguments:
            yield _table(("argument", "meaning"), ((_name(each), _help(each)) for each in arguments))


def _name(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = value if isinstance(value, str) else " ".join(value)
    if not action.option_strings:
        return f"`[{value}]`" if action.nargs == "?" else f"`{value}`"
    taken = "" if action.nargs == 0 else f" {value}"
    return ", ".join(f"`{name}{taken}`" for name in action.option_strings)


def _help(action: argparse.Action) -> str:
    often = " (may be repeated)" if isinstance(action, argparse._AppendAction | argparse._ExtendAction) else ""
    return (action.help or "").replace("%%", "%") + ("" if "repeated" in (action.help or "") else often)


def _values(options: Mapping[str, Any], kind: str) -> str:
    lines = ((f"`{name}`", _code(option.default), _allowed(option), option.help) for name, option in options.items())
    return _table((kind, "default", "allowed", "meaning"), lines)


def _code(value: object) -> str:
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return "" if value is None or not shown else f"`{shown}`"


def _allowed(option: Any) -> str:
    """Return the values of an option as a reader would type them."""
    if getattr(option, "values", None) is not None:
        return ", ".join(map(_code, option.values))
    if hasattr(option, "low"):
        form = "," if isinstance(option.default, int) else "g"
        return f"{option.low:{form}} to {option.high:{form}}"
    return {
        "Rising": "rising whole numbers, `A,B,...`",
        "Table": "a `.npy` file",
        "Words": "a text file with one word per line",
        "NestedLists": "a `.json` file of nested lists of words or ids",
        "File": "a file",
        "Folder": "a folder",
        "Destination": "a path to write to",
        "Names": "names",
    }[type(option).__name__]


def _sentence(description: str) -> str:
    return f"{description[:1].upper()}{description[1:]}."


def _table(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    cells = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in line] for line in lines)]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in cells), ""])
