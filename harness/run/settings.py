"""Options and settings from a command line or a suite, checked and converted for a cell."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vocabench.harness import registry
from vocabench.harness.ascii_numbers import parse_integer, parse_number
from vocabench.impls.errors import BadInput, Unsupported, unknown
from vocabench.impls.options import (
    Choice,
    Destination,
    File,
    Folder,
    Given,
    Number,
    Option,
    Rising,
    Spelled,
    Table,
    Words,
)
from vocabench.impls.spec import DTYPES, Definition, check_options

DEVICES = ("cpu", "cuda")
_FEW = 4  # most names of methods or tasks in a message


@dataclass(frozen=True)
class Names:
    """A setting that takes one or more of a few names; if `values` is None, any names or none."""

    default: tuple[str, ...]
    values: tuple[str, ...] | None
    help: str

    def check(self, name: str, value: object) -> tuple[str, ...]:
        items = tuple(value) if isinstance(value, list | tuple) else (value,)
        if self.values is None:
            if not all(isinstance(item, str) for item in items):
                raise BadInput(f"{name}={value!r}: allowed: names")
            return tuple(item for item in items if item)  # type: ignore[return-value]
        for item in items:
            if item not in self.values:
                raise unknown(f"{name}", str(item), self.values)
        return items  # type: ignore[return-value]


Setting = Choice | Number | Names | File | Destination


@dataclass(frozen=True)
class Selection:
    """Filters and changes that a command line applies to a suite; None keeps the suite's own values."""

    frameworks: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    vocab: Sequence[int] | None = None
    tasks: Sequence[str] | None = None
    dim: int | None = None
    tokens: int | None = None
    device: str | None = None
    devices: int | None = None  # over which words are split
    precision: Sequence[str] | None = None
    dataset: str | None = None
    seeds: Sequence[int] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `BadInput` for a name or number that is not allowed, before anything is measured."""
        for framework in self.frameworks or ():
            registry.check_framework(framework)
        for method in self.methods or ():
            if method not in registry.methods() and method not in registry.extra_methods():
                raise unknown("method", method, [*registry.methods(), *registry.extra_methods()])
        for task in self.tasks or ():
            if task not in registry.tasks():
                raise unknown("task", task, registry.tasks())
        for vocab in self.vocab or ():
            check_vocab(vocab)
        for name, size in (("dim", self.dim), ("tokens", self.tokens)):
            if size is not None and not 1 <= size < 2**31:
                raise BadInput(f"--{name} {size}: allowed: a whole number from 1 to {2**31 - 1}")
        for seed in self.seeds or ():
            if not 0 <= seed < 2**63:
                raise BadInput(f"seed {seed}: allowed: a whole number from 0 to {2**63 - 1}")
        for precision in self.precision or ():
            if precision not in DTYPES:
                raise unknown("precision", precision, DTYPES)
        if self.device is not None and self.device.split(":")[0] not in DEVICES:
            raise unknown("device", self.device, DEVICES)

    def check_used(self, tasks: Collection[str], methods: Collection[str]) -> None:
        """Raise `BadInput` for a dataset, setting or option that none of `tasks` and `methods` reads.

        Args:
            methods: Methods with an output layer; others have no options.
        """
        if self.dataset is not None and all(registry.task(task).load is None for task in tasks):
            raise BadInput(
                f"--dataset {self.dataset}: no data is read by {', '.join(sorted(tasks))}: allowed: a task that does"
            )
        settings = {name for task in tasks for name in registry.task(task).settings}
        options = {name for method in methods for name in registry.definition(method).options}
        kinds = (
            (f"setting{_of(tasks)}", self.settings, settings),
            (f"option{_of(methods)}", self.options, options),
        )
        for kind, names, known in kinds:
            for name in names:
                if name not in known:
                    raise unknown(kind, name, sorted(known))


def _of(names: Collection[str]) -> str:
    """Return whose option a message is about; a few of many names."""
    shown = ", ".join(sorted(names)[:_FEW])
    others = f" or {len(names) - _FEW} others" if len(names) > _FEW else ""
    return f" of {shown}{others}" if names else ""


def check_has_device(framework: str, devices: Sequence[str], device: str) -> None:
    """Raise `Unsupported` if `device` is none of the `devices` of a framework."""
    if device not in devices and f"{device}:0" not in devices:
        raise Unsupported(f"device {device!r}: {framework} has none here: allowed: {', '.join(devices)}")


def check_vocab(vocab: int) -> int:
    if isinstance(vocab, bool) or not isinstance(vocab, int) or not 2 <= vocab < 2**31:
        raise BadInput(f"vocabulary of {vocab}: allowed: a whole number of words from 2 to {2**31 - 1}")
    return vocab


def method_options(method: str, from_sweep: Mapping[str, Any], from_command: Mapping[str, str]) -> dict[str, Any]:
    """Return the method's options that differ from their defaults.

    Args:
        from_sweep: Options of a suite's sweep; the method ignores those that it does not have.
        from_command: Options of the command line as text, which take precedence.
    """
    definition = registry.definition(method)
    known = definition.options
    values = {name: value for name, value in from_sweep.items() if name in known}
    values |= {name: parse(known[name], text) for name, text in from_command.items() if name in known}
    checked = check_options(definition, values)
    for name, value in checked.items():
        if isinstance(value, Given | Spelled):  # a cell holds the name of a file, not its contents
            raise BadInput(f"option {name}={value!r}: allowed in a suite: the path of a file")
    return differing(definition, checked)


def task_settings(task: str, from_sweep: Mapping[str, Any], from_command: Mapping[str, str]) -> dict[str, Any]:
    """Return all settings of a task, with the arguments of `method_options`."""
    allowed = registry.task(task).settings
    for name in from_sweep:
        if name not in allowed:
            raise unknown(f"setting of {task}", name, allowed)
    values = dict(from_sweep)
    values |= {name: parse(allowed[name], text) for name, text in from_command.items() if name in allowed}
    checked = {
        name: setting.check(f"setting {name}", values[name]) if name in values else setting.default
        for name, setting in allowed.items()
    }
    if (check := registry.task(task).check) is not None:
        check(checked)
    return _as_json(checked)


def differing(definition: Definition, checked: Mapping[str, object]) -> dict[str, Any]:
    """Return the checked options that differ from the method's defaults, without arrays and word lists."""
    return _as_json(
        {
            name: value
            for name, value in checked.items()
            if value != definition.options[name].default and not isinstance(value, Given | Spelled)
        }
    )


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace tuples by lists, so that a cell equals the one read back from JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def parse(setting: Setting | Option, text: str) -> object:
    """Convert text of a command line to the type that `setting` takes; its `check` reports what is wrong."""
    if isinstance(setting, Names):
        return text.split(",")
    if isinstance(setting, Choice):
        by_text = {str(value).lower(): value for value in setting.values}
        return by_text.get(text.lower(), text)
    if isinstance(setting, Rising | Table | Words | File | Folder | Destination):
        return text
    try:
        return parse_integer(text) if isinstance(setting.default, int) else parse_number(text)
    except ValueError:
        return text
