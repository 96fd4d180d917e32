"""Finds frameworks, methods, tasks, datasets and suites by their files, without importing any of them.

Every module of a `methods` package is a method. Every module of `tasks` or `datasets` is a task or a dataset; the
packages below these hold what they share. `adapter.py` binds a framework to the contract.

Each folder is read once per process.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from vocabench.harness.datasets.shared.dataset import Dataset
from vocabench.harness.installing import pip_install
from vocabench.harness.tasks.shared.task import Task
from vocabench.impls.adapter import Adapter
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.spec import Definition

if TYPE_CHECKING:
    from vocabench.harness.run.settings import Setting

_ROOT = Path(__file__).resolve().parent.parent
_FRAMEWORK_ORDER = ("numpy", "torch", "tensorflow", "jax")
_PIP_NAMES = {"tensorflow": "tensorflow-cpu"}  # where pip's name of the package is another

DatasetT = TypeVar("DatasetT", bound=Dataset[Any])


@cache
def _names(folder: str, suffix: str = ".py") -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_ROOT / folder).glob(f"*{suffix}") if path.stem != "__init__"))


@cache
def _framework_names() -> tuple[str, ...]:
    names = [path.parent.name.removeprefix("on_") for path in (_ROOT / "impls").glob("on_*/adapter.py")]
    rank = {name: number for number, name in enumerate(_FRAMEWORK_ORDER)}
    return tuple(sorted(names, key=lambda name: (rank.get(name, len(rank)), name)))


@cache
def _method_names(framework: str) -> tuple[str, ...]:
    return tuple(sorted(_names(f"impls/on_{framework}/methods"), key=lambda name: (name != "full_softmax", name)))


def frameworks() -> list[str]:
    """Return every framework that has a folder, with the definitions ("numpy") first."""
    return list(_framework_names())


@cache
def is_installed(framework: str) -> bool:
    return importlib.util.find_spec(framework) is not None


def installed_frameworks() -> list[str]:
    return [name for name in frameworks() if is_installed(name)]


def install_line(framework: str) -> str:
    """Return the command that installs a missing framework next to this project."""
    return pip_install(_PIP_NAMES.get(framework, framework))


def check_framework(framework: str) -> str:
    """Return `framework` if it exists and is installed.

    Raises:
        BadInput: It is unknown or not installed.
    """
    if framework not in frameworks():
        raise unknown("framework", framework, frameworks())
    if not is_installed(framework):
        raise BadInput(f"framework {framework!r} is not installed here: install it with '{install_line(framework)}'")
    return framework


def methods(framework: str = "numpy") -> list[str]:
    """Return the methods that `framework` implements. "numpy" defines all methods."""
    if framework not in frameworks():
        raise unknown("framework", framework, frameworks())
    return list(_method_names(framework))


def definition(method: str) -> Definition:
    return _oracle(method).DEFINITION


def same_function(method: str) -> list[str]:
    """Return the methods, including `method`, that compute the same function of the same parameters."""
    reference = _oracle(method)
    oracles = {name: _oracle(name) for name in methods()}
    return [
        name
        for name, oracle in oracles.items()
        if oracle.LAYER is reference.LAYER and oracle.DEFINITION.shapes is reference.DEFINITION.shapes
    ]


def _oracle(method: str) -> ModuleType:
    if method not in methods():
        raise unknown("method", method, methods())
    return importlib.import_module(f"vocabench.impls.on_numpy.methods.{method}")


def adapter(framework: str) -> Adapter:
    """Return the `adapter` module of a framework. This imports the framework."""
    module: Any = importlib.import_module(f"vocabench.impls.on_{check_framework(framework)}.adapter")
    return module


def tasks() -> list[str]:
    return list(_names("harness/tasks"))


def task(name: str) -> Task:
    if name not in tasks():
        raise unknown("task", name, tasks())
    return importlib.import_module(f"vocabench.harness.tasks.{name}").TASK


def settings(name: str) -> Mapping[str, Setting]:
    """Return the settings of a task. Empty for a task that this version does not have."""
    return task(name).settings if name in tasks() else {}


def extra_methods() -> list[str]:
    """Return the methods without an output layer, such as "unigram", which the tasks measure for comparison."""
    return list(dict.fromkeys(method for name in tasks() for method in task(name).extra_methods))


def datasets() -> list[str]:
    return [name.replace("_", "-") for name in _names("harness/datasets")]


def dataset(name: str) -> Dataset[Any]:
    if name not in datasets():
        raise unknown("dataset", name, datasets())
    return importlib.import_module(f"vocabench.harness.datasets.{name.replace('-', '_')}").DATASET


def dataset_of_kind(name: str, kind: type[DatasetT]) -> DatasetT:
    """Return the dataset if it is of the given kind, such as `TextDataset`.

    Raises:
        BadInput: It is of another kind.
    """
    named = dataset(name)
    if not isinstance(named, kind):
        allowed = ", ".join(other for other in datasets() if isinstance(dataset(other), kind))
        raise BadInput(f"dataset {name!r} is {named.contents}, not {kind.contents}: allowed: {allowed}, or a path")
    return named


def suites() -> list[str]:
    return list(_names("harness/suites", ".toml"))


def suite_path(name: str) -> Path:
    if name not in suites():
        raise unknown("suite", name, suites())
    return _ROOT / "harness" / "suites" / f"{name}.toml"
