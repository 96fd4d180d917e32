"""Finds frameworks, methods, tasks, datasets and suites by their files, without importing any of them.

Methods, datasets and suites may also be files of plugins (`impls/plugins.py`), which are read when they are needed.

Every module of a `methods` package is a method. Every module of `tasks` or `datasets` is a task or a dataset; the
packages below these hold what they share. `adapter.py` binds a framework to the contract.

Each folder of this repository is read once per process.
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
from vocabench.impls import plugins
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
def _own_names(folder: str, suffix: str) -> tuple[str, ...]:
    return tuple(path.stem for path in (_ROOT / folder).glob(f"*{suffix}") if path.stem != "__init__")


def _names(folder: str, suffix: str = ".py") -> list[str]:
    return sorted([*_own_names(folder, suffix), *plugins.names(folder, suffix)])


@cache
def _framework_names() -> tuple[str, ...]:
    names = [path.parent.name.removeprefix("on_") for path in (_ROOT / "impls").glob("on_*/adapter.py")]
    rank = {name: number for number, name in enumerate(_FRAMEWORK_ORDER)}
    return tuple(sorted(names, key=lambda name: (rank.get(name, len(rank)), name)))


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
    ours = set(plugins.names("impls/on_numpy/methods", ".py"))
    if ours and (taken := ours.intersection(extra_methods())):
        raise BadInput(f"plugin method {min(taken)!r}: a task has a method of that name: allowed: another name")
    return sorted(_names(f"impls/on_{framework}/methods"), key=lambda name: (name != "full_softmax", name))


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
    module = _imported(f"vocabench.impls.on_numpy.methods.{method}", "DEFINITION", "LAYER")
    if module.DEFINITION.name != method:
        raise BadInput(f"method {method!r}: DEFINITION.name is {module.DEFINITION.name!r}: allowed: the file's name")
    return module


def _imported(name: str, *values: str) -> ModuleType:
    """Import a module that defines `values`, and report what is wrong with a plugin's in one line."""
    file = plugins.files().get(f"{name.removeprefix('vocabench.').replace('.', '/')}.py")
    if file is None:
        return importlib.import_module(name)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInput(f"plugin file {file}: {reason}: allowed: a module that can be imported") from error
    if missing := [value for value in values if not hasattr(module, value)]:
        raise BadInput(f"plugin file {file}: no {' and no '.join(missing)}: allowed: a module with {', '.join(values)}")
    return module


def adapter(framework: str) -> Adapter:
    """Return the `adapter` module of a framework. This imports the framework."""
    module: Any = importlib.import_module(f"vocabench.impls.on_{check_framework(framework)}.adapter")
    return module


def tasks() -> list[str]:
    return _names("harness/tasks")


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
    found = _imported(f"vocabench.harness.datasets.{name.replace('-', '_')}", "DATASET").DATASET
    if not isinstance(found, Dataset) or found.name != name:
        raise BadInput(f"dataset {name!r}: DATASET is {found!r:.60}: allowed: a dataset of that name")
    return found


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
    return _names("harness/suites", ".toml")


def suite_path(name: str) -> Path:
    if name not in suites():
        raise unknown("suite", name, [*suites(), "the path of a .toml file"])
    place = f"harness/suites/{name}.toml"
    return plugins.files().get(place, _ROOT / place)
