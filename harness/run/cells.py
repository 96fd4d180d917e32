"""Cells: the smallest pieces of work, each measured once and kept as one row; and the suites that list them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vocabench.harness import numerals, registry
from vocabench.harness.run import schema
from vocabench.impls.errors import BadInput, unknown
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

Sweep = Mapping[str, Any]  # of a suite's file: the keys of `_SWEEP` below

# The framework's name in a cell that needs none, such as the unigram model's.
ORACLE = "numpy"


@dataclass(frozen=True)
class Names:
    """A setting that takes one or more of a few names; where `values` is None, any names or none at all."""

    default: tuple[str, ...]
    values: tuple[str, ...] | None
    help: str

    def check(self, name: str, value: object) -> tuple[str, ...]:
        given = tuple(value) if isinstance(value, list | tuple) else (value,)
        if self.values is None:
            if not all(isinstance(item, str) for item in given):
                raise BadInput(f"{name}={value!r}: allowed: names")
            return tuple(item for item in given if item)  # type: ignore[return-value]
        for item in given:
            if item not in self.values:
                raise unknown(f"{name}", str(item), self.values)
        return given  # type: ignore[return-value]


Setting = Choice | Number | Names | File | Destination

_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("suite", "task", "framework", "method", "device", "precision", "dataset", "dataset_sha256"), str),
    **dict.fromkeys(("vocab", "dim", "tokens", "seed"), int),
    **dict.fromkeys(("options", "settings"), Mapping),
}
_CALLED = {str: "text", int: "a whole number from 0", Mapping: "an object"}


@dataclass(frozen=True)
class Cell:
    """What to measure. Two cells with equal fields are the same measurement.

    Attributes:
        vocab: Words of the output layer.
        dim: Width of the hidden vector.
        tokens: Tokens of a batch.
        dataset_sha256: Of the data, so that rows over different data never count as the same.
        options: The method's options that differ from their defaults.
        settings: All of the task's settings.
    """

    suite: str
    task: str
    framework: str
    method: str
    vocab: int
    dim: int
    tokens: int
    device: str = "cpu"
    precision: str = "float32"
    seed: int = 0
    dataset: str = ""
    dataset_sha256: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Cell:
        """Raises `BadInput` where `fields` are not those of a cell."""
        missing = [name for name in _KINDS if name not in fields]
        if missing:
            raise BadInput(f"no cell: missing {', '.join(missing)}: allowed: the fields of a row's cell")
        try:
            cell = cls(**fields)
        except TypeError as error:
            raise BadInput(f"no cell: {str(error).split('() ')[-1]}: allowed: the fields of a row's cell") from error
        for name, kind in _KINDS.items():
            value = getattr(cell, name)
            if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and not 0 <= value < 2**63):
                raise BadInput(f"no cell: {name}={value!r}: allowed: {_CALLED[kind]}")
        return cell

    @property
    def key(self) -> str:
        """Content hash: what a run resumes by."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def label(self) -> str:
        """For people: what a progress line and an error call this cell."""
        what = f"{self.task} {self.framework} {self.method}{self.variant}"
        where = f" {self.dataset}" if self.dataset else ""
        return f"{what}{where} V={self.vocab:,} {self.precision} {self.device}"

    @property
    def variant(self) -> str:
        """The options that differ from the defaults, as `[a=1,b=2]`, or nothing."""
        return variant(self.options)


def variant(options: Mapping[str, Any]) -> str:
    def text(value: object) -> str:
        return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    return f"[{','.join(f'{name}={text(value)}' for name, value in sorted(options.items()))}]" if options else ""


@dataclass(frozen=True)
class Selection:
    """What a command line narrows or changes in a suite; None leaves the suite's own."""

    frameworks: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    vocab: Sequence[int] | None = None
    tasks: Sequence[str] | None = None
    device: str | None = None
    precision: Sequence[str] | None = None
    dataset: str | None = None
    seed: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raises `BadInput` for a name that does not exist, before anything is measured."""
        for framework in self.frameworks or ():
            registry.check_framework(framework)
        for method in self.methods or ():
            if method not in registry.methods():
                raise unknown("method", method, registry.methods())
        for task in self.tasks or ():
            if task not in registry.tasks():
                raise unknown("task", task, registry.tasks())
        for vocab in self.vocab or ():
            check_vocab(vocab)
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise BadInput(f"seed {self.seed}: allowed: a whole number from 0 to {2**63 - 1}")
        for precision in self.precision or ():
            if precision not in DTYPES:
                raise unknown("precision", precision, DTYPES)
        if self.device is not None and self.device.split(":")[0] not in DEVICES:
            raise unknown("device", self.device, DEVICES)


def check_vocab(vocab: int) -> int:
    if isinstance(vocab, bool) or not isinstance(vocab, int) or not 2 <= vocab < 2**31:
        raise BadInput(f"vocabulary of {vocab}: allowed: a whole number of words from 2 to {2**31 - 1}")
    return vocab


_SWEEP = {
    "task": schema.text,
    **dict.fromkeys(("frameworks", "methods"), schema.some(schema.text)),
    "vocab": schema.some(schema.whole(2, 2**31 - 1)),
    **dict.fromkeys(("dim", "tokens"), schema.whole(1, 2**31 - 1)),
    "precision": schema.some(schema.one_of(*DTYPES)),
    "dataset": schema.text,
    **dict.fromkeys(("options", "settings"), schema.both(schema.plain, schema.record({}))),
    "seeds": schema.some(schema.whole(0)),
}
_SUITE = {
    "description": schema.text,
    "sweep": schema.some(schema.record({"task": schema.text}, _SWEEP)),
}
_SUITE_MORE = {"deadline_seconds": schema.above_zero}


@dataclass(frozen=True)
class Suite:
    """A TOML file below harness/suites: a description, a deadline for each cell, and sweeps that expand to cells."""

    name: str
    description: str
    deadline_seconds: float
    sweeps: tuple[Sweep, ...]

    @classmethod
    def load(cls, name: str) -> Suite:
        path = registry.suite_path(name)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise BadInput(f"suite {path.name}: {error}: allowed: TOML in UTF-8") from error
        _check_keys(f"key of {path.name}", content, _SUITE | _SUITE_MORE)
        if wrong := schema.record(_SUITE, _SUITE_MORE)(content):
            raise BadInput(f"suite {path.name}: {wrong.removeprefix('.')}")
        for sweep in content["sweep"]:
            _check_keys(f"key of a sweep in {path.name}", sweep, _SWEEP)
            _check_names(path.name, sweep)
        return cls(
            name=name,
            description=content["description"],
            deadline_seconds=float(content.get("deadline_seconds", 600)),
            sweeps=tuple(content["sweep"]),
        )

    def cells(self, selection: Selection, progress: Callable[[str], None] = lambda line: None) -> list[Cell]:
        """Every cell of the suite under `selection`, framework by framework.

        Raises:
            BadInput: A name is unknown, an option or setting is not allowed, or nothing is left to run.
        """
        selection.check()
        cells: list[Cell] = []
        for sweep, vocabularies, methods in self.chosen(selection):
            cells.extend(_expand(self.name, sweep, replace(selection, methods=methods), vocabularies, progress))
        unique = list({cell.key: cell for cell in cells}.values())
        if not unique:
            raise BadInput(f"suite {self.name!r} has no cell left under these filters: allowed: fewer or other filters")
        order = [ORACLE, *registry.frameworks()]
        return sorted(unique, key=lambda cell: order.index(cell.framework))

    def chosen(self, selection: Selection) -> list[tuple[Sweep, Sequence[int], Sequence[str] | None]]:
        """The sweeps that measure something under `selection`, each with its sizes and, if selected, its methods."""
        sweeps = [each for each in self.sweeps if selection.tasks is None or each["task"] in selection.tasks]
        found = [
            (each, _vocabularies(each, sweeps, selection.vocab), _methods(each, sweeps, selection.methods))
            for each in sweeps
        ]
        return [each for each in found if each[1] and each[2] != []]


def _vocabularies(sweep: Sweep, sweeps: Sequence[Sweep], selected: Sequence[int] | None) -> Sequence[int]:
    """What a sweep of `sweeps` measures of the sizes selected.

    One that lists sizes takes its own; a size that no sweep lists goes to the first that lists any. One that lists
    none, such as one over a text, takes all.
    """
    if selected is None or "vocab" not in sweep:
        return selected or sweep.get("vocab", [0])
    listing = [each for each in sweeps if "vocab" in each]
    listed = {vocab for each in listing for vocab in each["vocab"]}
    return [v for v in selected if v in sweep["vocab"] or (sweep is listing[0] and v not in listed)]


def _methods(sweep: Sweep, sweeps: Sequence[Sweep], selected: Sequence[str] | None) -> Sequence[str] | None:
    """What a sweep of `sweeps` measures of the methods selected; None where none are.

    One over sizes takes all. One over a text that lists methods is about these, with its options: it takes others only
    where no other sweep of the task does.
    """
    if selected is None or "vocab" in sweep or "methods" not in sweep:
        return selected
    same_task = [each for each in sweeps if each["task"] == sweep["task"]]
    taken = {method for method in selected if any(method in each.get("methods", [method]) for each in same_task)}
    return [method for method in selected if method in sweep["methods"] or method not in taken]


def _check_keys(kind: str, given: Iterable[str], known: Iterable[str]) -> None:
    for key in given:
        if key not in known:
            raise unknown(kind, key, sorted(known))


def _check_names(file: str, sweep: Sweep) -> None:
    """What nothing would read is a slip of the pen, as on the command line."""
    _check_keys(f"task in {file}", [sweep["task"]], registry.tasks())
    _check_keys(f"framework in {file}", sweep.get("frameworks", ()), registry.frameworks())
    _check_keys(f"method in {file}", sweep.get("methods", ()), registry.methods())
    definitions = map(registry.definition, sweep.get("methods") or registry.methods())
    options = {name for each in definitions for name in each.options}
    _check_keys(f"option in {file}", sweep.get("options", ()), options)


def _expand(
    suite: str,
    sweep: Sweep,
    selection: Selection,
    vocabularies: Sequence[int],
    progress: Callable[[str], None],
) -> Iterable[Cell]:
    task = registry.task(sweep["task"])
    settings = _settings(task.SETTINGS, sweep.get("settings", {}), selection.settings, sweep["task"])
    frameworks = (
        selection.frameworks
        or sweep.get("frameworks")
        or [name for name in registry.installed_frameworks() if name != ORACLE]
    )
    load = getattr(task, "load", None)
    chosen = sweep.get("dataset", "") if selection.dataset is None else selection.dataset
    dataset_name = chosen if load else ""
    if load and not dataset_name:
        raise BadInput(f"suite {suite!r} needs --dataset: allowed: what the task {sweep['task']} reads")

    for vocab in vocabularies:
        sha256, here = "", sweep
        if load:
            data = load(dataset_name, check_vocab(vocab) if vocab else None, settings, progress)
            vocab, sha256 = len(data.counts_V), data.sha256
            if hasattr(task, "fixed_by"):  # data that is a layer, and not a text, takes the sweep's place
                here = {**sweep, **task.fixed_by(data)}
                _check_fixed(selection, here["methods"], dataset_name)
        shared = {
            "suite": suite,
            "task": sweep["task"],
            "vocab": vocab,
            "dim": int(here.get("dim", 256)),
            "tokens": int(here.get("tokens", 1280)),
            "device": selection.device or "cpu",
            "dataset": dataset_name,
            "dataset_sha256": sha256,
        }
        wanted = selection.methods if selection.methods is not None else here.get("methods")
        seeds = [selection.seed] if selection.seed is not None else sweep.get("seeds", [0])
        for extra in getattr(task, "EXTRA_METHODS", ()) if selection.methods is None else ():
            yield Cell(**shared, framework=ORACLE, method=extra, settings=settings)
        for framework in frameworks:
            for method in registry.methods(framework) if wanted is None else wanted:
                if method not in registry.methods(framework):
                    continue
                options = _options(method, here.get("options", {}), selection.options)
                own = ["float64"] if framework == ORACLE else sweep.get("precision", ["float32"])
                for precision in selection.precision or own:
                    for seed in seeds:
                        yield Cell(
                            **shared,
                            framework=framework,
                            method=method,
                            precision=precision,
                            seed=seed,
                            options=options,
                            settings=settings,
                        )


def _check_fixed(selection: Selection, methods: Sequence[str], dataset: str) -> None:
    """Refuses what the data has decided already: other methods than its own, and options."""
    for method in selection.methods or ():
        if method not in methods:
            raise unknown(f"method of {dataset}", method, methods)
    if selection.options:
        names = ", ".join(selection.options)
        raise BadInput(f"option {names} with --dataset {dataset}: allowed: none, the layer has its own")


def _options(method: str, by_sweep: Mapping[str, Any], by_hand: Mapping[str, str]) -> dict[str, Any]:
    """The method's options that differ from their defaults. A sweep's options apply to the methods that have them."""
    definition = registry.definition(method)
    given = {name: value for name, value in by_sweep.items() if name in definition.options}
    given |= {
        name: _parse(definition.options[name], text) for name, text in by_hand.items() if name in definition.options
    }
    checked = check_options(definition, given)
    for name, value in checked.items():
        if isinstance(value, Given | Spelled):  # a cell names what it is, and holds it not
            raise BadInput(f"option {name}={value!r}: allowed in a suite: the path of a file")
    return differing(definition, checked)


def _settings(
    allowed: Mapping[str, Setting], by_sweep: Mapping[str, Any], by_hand: Mapping[str, str], task: str
) -> dict[str, Any]:
    for name in by_sweep:
        if name not in allowed:
            raise unknown(f"setting of {task}", name, allowed)
    given = dict(by_sweep) | {name: _parse(allowed[name], text) for name, text in by_hand.items() if name in allowed}
    checked = {
        name: setting.check(f"setting {name}", given[name]) if name in given else setting.default
        for name, setting in allowed.items()
    }
    return _as_json(checked)


def differing(definition: Definition, checked: Mapping[str, object]) -> dict[str, Any]:
    """Of checked options, those that are not the method's defaults; arrays and words, which no cell holds, are left
    out."""
    return _as_json(
        {
            name: value
            for name, value in checked.items()
            if value != definition.options[name].default and not isinstance(value, Given | Spelled)
        }
    )


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Lists, not tuples, so that a cell equals the one read back from JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def check_by_hand(suite: Suite, selection: Selection) -> None:
    """Refuses an option or setting on the command line that nothing in the suite would read."""
    chosen = suite.chosen(selection)
    if not chosen:
        return  # `Suite.cells` says that nothing is left to run
    tasks = {sweep["task"] for sweep, _, _ in chosen}
    settings = {name for task in tasks for name in registry.task(task).SETTINGS}
    by_sweep = [methods or sweep.get("methods") or registry.methods() for sweep, _, methods in chosen]
    methods = {method for methods in by_sweep for method in methods}
    options = {name for method in methods for name in registry.definition(method).options}
    if selection.dataset is not None and not any(hasattr(registry.task(task), "load") for task in tasks):
        raise BadInput(
            f"--dataset {selection.dataset}: no data is read by {', '.join(sorted(tasks))}: allowed: a task that does"
        )
    for name in selection.settings:
        if name not in settings:
            raise unknown("setting", name, sorted(settings))
    for name in selection.options:
        if name not in options:
            raise unknown("option", name, sorted(options))


def _parse(setting: Setting | Option, text: str) -> object:
    """A command line's text as the kind of value that `setting` takes; what is wrong is left to its `check`."""
    if isinstance(setting, Names):
        return text.split(",")
    if isinstance(setting, Choice):
        by_text = {str(value).lower(): value for value in setting.values}
        return by_text.get(text.lower(), text)
    if isinstance(setting, Rising | Table | Words | File | Folder | Destination):
        return text
    try:
        return numerals.whole(text) if isinstance(setting.default, int) else numerals.number(text)
    except ValueError:
        return text
