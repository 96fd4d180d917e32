"""Suites: TOML files that list what to measure, expanded to cells."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocabench.harness import registry
from vocabench.harness.run import results_files, schema
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import Selection, check_vocab, method_options, task_settings
from vocabench.harness.run.splitting import Sweep, split_over_devices
from vocabench.harness.tasks.shared.task import Task
from vocabench.impls.errors import BadInput, Unsupported, unknown
from vocabench.impls.spec import DTYPES

Progress = Callable[[str], None]

_SUFFIX = ".toml"
_NAMES = "a name of 'vocabench list suites'"

ORACLE = "numpy"  # also the framework in a cell that needs none, such as a unigram model's

_SWEEP = {
    "task": schema.text,
    **dict.fromkeys(("frameworks", "methods"), schema.nonempty(schema.text)),
    "vocab": schema.nonempty(schema.whole(2, 2**31 - 1)),
    **dict.fromkeys(("dim", "tokens"), schema.whole(1, 2**31 - 1)),
    "precision": schema.nonempty(schema.one_of(*DTYPES)),
    "dataset": schema.text,
    **dict.fromkeys(("options", "settings"), schema.all_of(schema.plain, schema.record({}))),
    "seeds": schema.nonempty(schema.whole(0)),
    "only": schema.boolean,
}
_SUITE = {
    "description": schema.text,
    "sweep": schema.nonempty(schema.record({"task": schema.text}, _SWEEP)),
}
_OPTIONAL = {"deadline_seconds": schema.above_zero}


@dataclass(frozen=True)
class Suite:
    """A TOML file below harness/suites, or of the user.

    Attributes:
        name: Name of the file without its suffix, which the cells have too.
        deadline_seconds: Time limit of a cell.
        sweeps: What to measure, each expanded to the product of its lists.
    """

    name: str
    description: str
    deadline_seconds: float
    sweeps: tuple[Sweep, ...]

    @classmethod
    def load(cls, name: str) -> Suite:
        """Read the suite of that name, or the file at that path, which ends in .toml.

        Raises:
            BadInput: There is no such suite, or its file is not one.
        """
        path = Path(name) if name.endswith(_SUFFIX) else registry.suite_path(name)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadInput(f"suite {path}: {error.strerror}: allowed: a TOML file, or {_NAMES}") from error
        except (ValueError, RecursionError) as error:
            raise BadInput(f"suite {path.name}: {error}: allowed: TOML in UTF-8") from error
        if not results_files.NAME.fullmatch(path.stem):
            raise BadInput(f"suite {path}: allowed: a file name of letters, digits, '.', '_' and '-'")
        _check_keys(f"key of {path.name}", content, _SUITE | _OPTIONAL)
        if wrong := schema.record(_SUITE, _OPTIONAL)(content):
            raise BadInput(f"suite {path.name}: {wrong.removeprefix('.')}")
        for sweep in content["sweep"]:
            _check_keys(f"key of a sweep in {path.name}", sweep, _SWEEP)
            _check_names(path.name, sweep)
            if sweep.get("only") and "methods" not in sweep:
                raise BadInput(f"suite {path.name}: a sweep with only = true: allowed: with `methods`, a list of names")
        return cls(
            name=path.stem,
            description=content["description"],
            deadline_seconds=float(content.get("deadline_seconds", 600)),
            sweeps=tuple(content["sweep"]),
        )

    def plan(self, selection: Selection) -> Plan:
        """Choose the sweeps, sizes and methods to measure, without loading any data.

        Raises:
            BadInput: A name is unknown, or no chosen sweep reads a dataset, an option or a setting of `selection`.
        """
        selection.check()
        own = self.sweeps if selection.devices is None else split_over_devices(self.sweeps, selection.devices)
        sweeps = [sweep for sweep in own if selection.tasks is None or sweep["task"] in selection.tasks]
        candidates = [
            PlannedSweep(
                sweep,
                _vocabularies(sweep, sweeps, selection.vocab),
                _methods(sweep, sweeps, selection.methods),
                _extra_methods(sweep, sweeps, selection.methods),
            )
            for sweep in sweeps
        ]
        planned = tuple(part for part in candidates if part.vocabularies and (part.methods != [] or part.extra_methods))
        if planned:  # else `Plan.cells` reports that nothing is left to run
            methods = {method for part in planned for method in part.layer_methods}
            selection.check_used({part.sweep["task"] for part in planned}, methods)
        plan = Plan(self.name, selection, planned)
        plan.check()
        if any(part.layer_methods for part in planned):
            _check_any_installed(plan.frameworks)
        return plan

    def cells(self, selection: Selection, progress: Progress = lambda line: None) -> list[Cell]:
        """Return the cells of `plan(selection)`."""
        return self.plan(selection).cells(progress)


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep with the part of a selection that it measures.

    Attributes:
        vocabularies: Sizes of the vocabulary; 0 stands for the size that the data has.
        methods: Selected methods with an output layer; None leaves the choice to the sweep.
        extra_methods: Methods without an output layer.
    """

    sweep: Sweep
    vocabularies: Sequence[int]
    methods: Sequence[str] | None
    extra_methods: Sequence[str] = ()

    @property
    def layer_methods(self) -> Sequence[str]:
        """The methods with an output layer that some framework measures."""
        if self.methods is not None:
            return self.methods
        return [method for method in self.sweep.get("methods", registry.methods()) if method in registry.methods()]


@dataclass(frozen=True)
class Plan:
    """The sweeps of a suite that measure something under a selection."""

    suite: str
    selection: Selection
    sweeps: tuple[PlannedSweep, ...]

    def check(self) -> None:
        """Raise `BadInput` for settings and options that are not allowed, before any data is loaded."""
        for part in self.sweeps:
            task = registry.task(part.sweep["task"])
            task_settings(part.sweep["task"], part.sweep.get("settings", {}), self.selection.settings)
            self._dataset(part.sweep, task)
            if task.fixed_by is None:
                for method in part.layer_methods:
                    method_options(method, part.sweep.get("options", {}), self.selection.options)

    @property
    def frameworks(self) -> list[str]:
        """The frameworks that measure methods with an output layer, whether or not they are installed."""
        parts = [part for part in self.sweeps if part.layer_methods]
        names = {framework for part in parts for framework in self._frameworks(part.sweep)}
        return [framework for framework in [ORACLE, *registry.frameworks()] if framework in names]

    def cells(
        self, progress: Progress = lambda line: None, skip: Callable[[str, str, Unsupported], None] | None = None
    ) -> list[Cell]:
        """Return every cell, framework by framework. This loads the data that the cells name.

        Args:
            skip: Called for a sweep whose data this machine cannot provide, with its task, its dataset and the reason.
                The other sweeps are expanded. If None, the reason is raised.

        Raises:
            BadInput: An option or setting is not allowed, data is missing, or nothing is left to run.
        """
        cells: list[Cell] = []
        missing: list[Unsupported] = []
        for part in self.sweeps:
            try:
                cells += list(self._expand(part, progress))
            except Unsupported as error:
                if skip is None:
                    raise
                missing.append(error)
                task = part.sweep["task"]
                skip(task, self._dataset(part.sweep, registry.task(task)), error)
        unique = list({cell.key: cell for cell in cells}.values())
        if not unique:
            if missing:
                raise missing[0]
            if lacking := self.lacking_methods:
                raise BadInput(
                    f"suite {self.suite!r} has no cell left under these filters: none of its tasks measures "
                    f"{', '.join(lacking)}: allowed: a suite and filters with the task {_tasks_of(lacking)}"
                )
            raise BadInput(
                f"suite {self.suite!r} has no cell left under these filters: allowed: fewer or other filters"
            )
        order = [ORACLE, *registry.frameworks()]
        return sorted(unique, key=lambda cell: order.index(cell.framework))

    @property
    def lacking_methods(self) -> list[str]:
        """The selected methods without an output layer that no task of the plan measures."""
        measured = {method for part in self.sweeps for method in part.extra_methods}
        layers = registry.methods()
        return [method for method in self.selection.methods or () if method not in layers and method not in measured]

    def _expand(self, part: PlannedSweep, progress: Progress) -> Iterator[Cell]:
        sweep, selection = part.sweep, self.selection
        task = registry.task(sweep["task"])
        settings = task_settings(sweep["task"], sweep.get("settings", {}), selection.settings)
        dataset = self._dataset(sweep, task)
        for size in part.vocabularies:
            vocab, sha256, fields = size, "", sweep
            if task.load is not None:
                data = task.load(dataset, check_vocab(size) if size else None, settings, progress)
                vocab, sha256 = len(data.counts_V), data.sha256
                if task.fixed_by is not None:  # the data is a trained layer, which fixes the method and its options
                    fields = {**sweep, **task.fixed_by(data)}
                    _check_fixed(selection, part.methods, fields["methods"], dataset)
            shared = {
                "suite": self.suite,
                "task": sweep["task"],
                "vocab": vocab,
                "dim": selection.dim or int(fields.get("dim", 256)),
                "tokens": selection.tokens or int(fields.get("tokens", 1280)),
                "device": selection.device or "cpu",
                "dataset": dataset,
                "dataset_sha256": sha256,
                "settings": settings,
            }
            methods = part.methods if part.methods is not None else fields.get("methods")
            for extra in part.extra_methods:
                for seed in self._seeds(sweep) if extra in task.seeded_methods else [0]:
                    yield Cell(**shared, framework=ORACLE, method=extra, seed=seed)
            yield from self._layer_cells(sweep, shared, methods, fields.get("options", {}))

    def _frameworks(self, sweep: Sweep) -> Sequence[str]:
        return self.selection.frameworks or sweep.get("frameworks") or _installed_frameworks()

    def _seeds(self, sweep: Sweep) -> Sequence[int]:
        return self.selection.seeds or sweep.get("seeds", [0])

    def _dataset(self, sweep: Sweep, task: Task) -> str:
        """Return the dataset of a sweep; "" if its task reads none."""
        if task.load is None:
            return ""
        selected = self.selection.dataset
        dataset = sweep.get("dataset", "") if selected is None else selected
        if not dataset:
            raise BadInput(f"suite {self.suite!r} needs --dataset: allowed: what the task {sweep['task']} reads")
        return dataset

    def _layer_cells(
        self, sweep: Sweep, shared: Mapping[str, Any], methods: Sequence[str] | None, options: Mapping[str, Any]
    ) -> Iterator[Cell]:
        """Yield a cell for every framework, method, precision and seed, with the `shared` fields."""
        selection = self.selection
        frameworks = self._frameworks(sweep)
        seeds = self._seeds(sweep)
        for framework in frameworks:
            implemented = registry.methods(framework)
            precisions = ["float64"] if framework == ORACLE else sweep.get("precision", ["float32"])
            layers = {
                method: method_options(method, options, selection.options)
                for method in (implemented if methods is None else methods)
                if method in implemented
            }
            # Precision by precision: what is too slow in one of them is skipped by one process.
            for precision, method, seed in itertools.product(selection.precision or precisions, layers, seeds):
                yield Cell(
                    **shared,
                    framework=framework,
                    method=method,
                    precision=precision,
                    seed=seed,
                    options=layers[method],
                )


def _installed_frameworks() -> list[str]:
    return [name for name in registry.installed_frameworks() if name != ORACLE]


def _check_any_installed(frameworks: Sequence[str]) -> None:
    """Raise `Unsupported` if none of the frameworks is installed."""
    if not any(map(registry.is_installed, frameworks)):
        commands = [
            f"'{registry.install_line(name)}'" for name in frameworks or registry.frameworks() if name != ORACLE
        ]
        raise Unsupported(
            f"no framework{' of this suite' if frameworks else ''} is installed: allowed: {' or '.join(commands)} first"
        )


def _vocabularies(sweep: Sweep, sweeps: Sequence[Sweep], selected: Sequence[int] | None) -> Sequence[int]:
    """Return the selected sizes that one of `sweeps` measures.

    A sweep that lists sizes takes its own. A size that no sweep lists goes to the first sweep that lists any. A sweep
    that lists none, such as one over a text, takes all.
    """
    if selected is None or "vocab" not in sweep:
        return selected or sweep.get("vocab", [0])
    listing = [other for other in sweeps if "vocab" in other]
    listed = {vocab for other in listing for vocab in other["vocab"]}
    return [v for v in selected if v in sweep["vocab"] or (sweep is listing[0] and v not in listed)]


def _methods(sweep: Sweep, sweeps: Sequence[Sweep], selected: Sequence[str] | None) -> Sequence[str] | None:
    """Return the selected methods with an output layer that one of `sweeps` measures; None if none are selected.

    A sweep that measures `only` what it lists takes no others, and another sweep over sizes takes all. A sweep over a
    text that lists methods has options for these: it takes others only if no other sweep of the task does, and none if
    what it lists has no output layer.
    """
    if selected is None:
        return None
    selected = [method for method in selected if method in registry.methods()]
    if sweep.get("only"):
        return [method for method in selected if method in sweep["methods"]]
    if "vocab" in sweep or "methods" not in sweep:
        return selected
    if not set(sweep["methods"]).intersection(registry.methods()):
        return []
    same_task = [other for other in sweeps if other["task"] == sweep["task"]]
    taken = {method for method in selected if any(method in other.get("methods", [method]) for other in same_task)}
    return [method for method in selected if method in sweep["methods"] or method not in taken]


def _extra_methods(sweep: Sweep, sweeps: Sequence[Sweep], selected: Sequence[str] | None) -> list[str]:
    """Return the methods without an output layer that one of `sweeps` measures.

    A method that a sweep of the task names belongs to the sweeps that name it. Any other belongs to all sweeps of the
    task if it is selected, and otherwise to those that name no method without an output layer, unless it runs only if
    it is selected. None but its own belongs to a sweep that measures `only` what it lists.
    """
    task = registry.task(sweep["task"])
    extra = task.extra_methods
    named = {method for other in sweeps if other["task"] == sweep["task"] for method in other.get("methods", ())}
    own = set(sweep.get("methods", ())).intersection(extra)
    if sweep.get("only"):
        return [method for method in extra if method in own and (selected is None or method in selected)]
    if selected is None:
        unasked = own or set(extra) - named
        return [method for method in extra if method in unasked and method not in task.selected_methods]
    return [method for method in extra if method in selected and (method in own or method not in named)]


def _tasks_of(methods: Sequence[str]) -> str:
    """Return the names of the tasks that measure methods without an output layer, for a message."""
    return " or ".join(name for name in registry.tasks() if set(methods) & set(registry.task(name).extra_methods))


def _check_keys(kind: str, keys: Iterable[str], known: Iterable[str]) -> None:
    for key in keys:
        if key not in known:
            raise unknown(kind, key, sorted(known))


def _check_names(file: str, sweep: Sweep) -> None:
    """Raise `BadInput` for a name in a suite that nothing would read, as on the command line."""
    _check_keys(f"task in {file}", [sweep["task"]], registry.tasks())
    _check_keys(f"framework in {file}", sweep.get("frameworks", ()), registry.frameworks())
    extra = registry.task(sweep["task"]).extra_methods
    _check_keys(f"method in {file}", sweep.get("methods", ()), [*registry.methods(), *extra])
    layer_methods = [method for method in sweep.get("methods", registry.methods()) if method not in extra]
    definitions = map(registry.definition, layer_methods)
    options = {name for definition in definitions for name in definition.options}
    _check_keys(f"option in {file}", sweep.get("options", ()), options)


def _check_fixed(selection: Selection, selected: Sequence[str] | None, methods: Sequence[str], dataset: str) -> None:
    """Raise `BadInput` for a method, an option or a size that contradicts a trained layer."""
    for method in selected or ():
        if method not in methods:
            raise unknown(f"method of {dataset}", method, methods)
    if selection.options:
        names = ", ".join(selection.options)
        raise BadInput(f"option {names} with --dataset {dataset}: allowed: none, the layer has its own")
    if selection.dim or selection.tokens:
        raise BadInput(f"--dim or --tokens with --dataset {dataset}: allowed: neither, the layer has its own sizes")
