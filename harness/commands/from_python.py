"""The call `vocabench.run`: a run of a suite with the command's options as keyword arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import pandas as pd
from rich.console import Console

from vocabench.harness.ascii_numbers import parse_integer
from vocabench.harness.commands.reporter import Reporter
from vocabench.harness.commands.run import seeds_of
from vocabench.harness.commands.suite_run import SuiteRun
from vocabench.harness.report.rows import flatten
from vocabench.harness.run import doubts
from vocabench.harness.run.executor import Executor
from vocabench.harness.run.settings import Selection
from vocabench.impls import plugins
from vocabench.impls.errors import BadInput

AnyPath = str | os.PathLike[str]


def run(
    suite: AnyPath,
    *,
    framework: object,
    method: object,
    vocab: object,
    task: object,
    dim: int | None,
    tokens: int | None,
    device: str | None,
    devices: int | None,
    precision: object,
    dataset: AnyPath | None,
    text_rule: str | None,
    seed: int | None,
    seeds: int | None,
    option: Mapping[str, object] | None,
    settings: Mapping[str, object] | None,
    processes: int | None,
    rounds: int | None,
    out: AnyPath | None,
    retry: bool,
    executor: str,
    address: str | None,
    cores: int | None,
    plugin: AnyPath | Sequence[AnyPath],
    quiet: bool,
) -> pd.DataFrame:
    """Measure a suite with the arguments of `vocabench.run`, and return its figures."""
    for name, value in (("dim", dim), ("tokens", tokens), ("devices", devices), ("seed", seed), ("seeds", seeds)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise BadInput(f"{name}={value!r}: allowed: a whole number")
    further = {"processes": processes, "rounds": rounds, "text_rule": text_rule}
    selection = Selection(
        frameworks=_names("framework", framework),
        methods=_names("method", method),
        vocab=_integers("vocab", vocab),
        tasks=_names("task", task),
        dim=dim,
        tokens=tokens,
        device=device,
        devices=devices,
        precision=_names("precision", precision),
        dataset=None if dataset is None else os.fspath(dataset),
        seeds=seeds_of(seed, seeds),
        options=_texts("option", option),
        settings=_texts("set", settings) | {k: str(v) for k, v in further.items() if v is not None},
    )
    paths = [plugin] if isinstance(plugin, str | os.PathLike) else plugin
    # A notebook shows lines of text; a bar would need a widget.
    reporter = Reporter(quiet=quiet, console=Console(file=sys.stderr, force_jupyter=False))
    with plugins.added([os.fspath(path) for path in paths]):
        suite_run = SuiteRun(
            os.fspath(suite),
            selection,
            out=None if out is None else os.fspath(out),
            retry=retry,
            executor=Executor(executor, address, cores),
            reporter=reporter,
        )
        rows = suite_run.measure()
        for line in doubts.warnings(rows):
            reporter.note(f"warning: {line}")
        reporter.always(f"rows: {suite_run.path}")
        figures = pd.DataFrame(flatten([*rows, *suite_run.skipped]))
    figures.attrs["file"] = str(suite_run.path)
    return figures


def _items(value: object) -> list[object] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    return list(value) if isinstance(value, Sequence) else [value]


def _names(name: str, value: object) -> list[str] | None:
    items = _items(value)
    if items is not None and not (items and all(isinstance(item, str) and item for item in items)):
        raise BadInput(f"{name}={value!r}: allowed: a name, or a list of names")
    return items  # type: ignore[return-value]


def _integers(name: str, value: object) -> list[int] | None:
    items = _items(value)
    if items is None:
        return None
    numbers = [parse_integer(item) if isinstance(item, str) and item.isdecimal() else item for item in items]
    if not numbers or not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise BadInput(f"{name}={value!r}: allowed: a whole number, or a list of them")
    return numbers  # type: ignore[return-value]


def _texts(name: str, values: Mapping[str, object] | None) -> dict[str, str]:
    """Return options as the command takes them, as text."""
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise BadInput(f"{name}={values!r:.60}: allowed: a dictionary of names and values")
    return {key: _text(value) for key, value in values.items()}


def _text(value: object) -> str:
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
