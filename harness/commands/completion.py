"""`vocabench completion`: a script with which a shell completes commands, options and names."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from vocabench.harness.commands.command import Command

_SHELLS = ("bash", "zsh")
_LISTED = {  # what `vocabench list` shows, by the destination of the arguments that take it
    "method": "methods",
    "framework": "frameworks",
    "task": "tasks",
    "dataset": "datasets",
    "suite": "suites",
}

_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
_SCRIPT = """\
# {start}
_vocabench() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} names=''
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        names='{commands}'
    else
        case "${{COMP_WORDS[1]}} $previous" in
{values}
            *)
                case "${{COMP_WORDS[1]}} $current" in
{options}
                esac
                if [ "$COMP_CWORD" -eq 2 ] && [ -z "$names" ]; then
                    case "${{COMP_WORDS[1]}}" in
{positionals}
                    esac
                fi;;
        esac
    fi
    local before=${{current%"${{current##*,}}"}}
    COMPREPLY=($(compgen -P "$before" -W "$names" -- "${{current##*,}}"))
}}
complete -o default -F _vocabench vocabench
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS, help="the shell that is to run the script")


def _run(arguments: argparse.Namespace) -> int:
    print(script(arguments.parsers, arguments.shell), end="")
    return 0


COMMAND = Command("completion", "print a script that completes commands in a shell", _add_arguments, _run)


def script(parsers: dict[str, argparse.ArgumentParser], shell: str) -> str:
    """Return the script for a shell. Where it knows no names, the shell completes paths.

    Args:
        parsers: Parser of each command, by the command's name.
    """
    values = [line for name, parser in parsers.items() for line in _values(name, parser)]
    options = [f"'{name} -'*) names='{' '.join(_options(parser))}';;" for name, parser in parsers.items()]
    positionals = [f"{name}) {names};;" for name, parser in parsers.items() if (names := _positional(parser))]
    text = _SCRIPT.format(
        start=f'in the start file of {shell}: eval "$(vocabench completion {shell})"',
        commands=" ".join(parsers),
        values=_indented(values, 12),
        options=_indented(options, 20),
        positionals=_indented(positionals, 24),
    )
    first, rest = text.split("\n", 1)
    return f"{first}\n{_ZSH if shell == 'zsh' else ''}{rest}"


def _values(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a branch for each option that takes a value; without names, the shell completes paths."""
    for action in parser._actions:
        if action.option_strings and action.nargs != 0:
            pattern = "|".join(f"'{name} {option}'" for option in action.option_strings)
            yield f"{pattern}) {_names_of(action) or 'return'};;"


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]


def _positional(parser: argparse.ArgumentParser) -> str:
    first = next((action for action in parser._actions if not action.option_strings), None)
    return "" if first is None else _names_of(first)


def _names_of(action: argparse.Action) -> str:
    if action.choices is not None:
        return f"names='{' '.join(map(str, action.choices))}'"
    return f"names=$(vocabench list {_LISTED[action.dest]} 2>/dev/null)" if action.dest in _LISTED else ""


def _indented(lines: list[str], spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in lines)
