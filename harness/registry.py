"""Finds frameworks, methods, tasks, datasets and suites by the files that define them, importing none of them.

Every module of a `methods` package is a method, every module of `tasks` and of `datasets` is a task or a dataset; what
these share is in packages below. `adapter.py` binds a framework to the contract.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from vocabench.impls.adapter import Adapter
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.spec import Definition

_ROOT = Path(__file__).resolve().parent.parent
_FRAMEWORK_ORDER = ("numpy", "torch", "tensorflow", "jax")
_INSTALL = {"tensorflow": "tensorflow-cpu"}  # what pip calls it, where that differs


def _names(folder: Path, suffix: str = ".py") -> list[str]:
    return sorted(p.stem for p in folder.glob(f"*{suffix}") if p.stem != "__init__")


def frameworks() -> list[str]:
    """Every framework that has a folder, the oracle first."""
    found = [p.name.removeprefix("on_") for p in (_ROOT / "impls").glob("on_*") if (p / "adapter.py").is_file()]
    return sorted(found, key=lambda name: (_FRAMEWORK_ORDER.index(name) if name in _FRAMEWORK_ORDER else 99, name))


def is_installed(framework: str) -> bool:
    return importlib.util.find_spec(framework) is not None


def installed_frameworks() -> list[str]:
    return [name for name in frameworks() if is_installed(name)]


def install_line(framework: str) -> str:
    """The command that installs a missing framework next to this project."""
    return f"pip install -c constraints.txt {_INSTALL.get(framework, framework)}"


def check_framework(framework: str) -> str:
    """`framework`, once it is known and installed."""
    if framework not in frameworks():
        raise unknown("framework", framework, frameworks())
    if not is_installed(framework):
        raise BadInput(f"framework {framework!r} is not installed here: install it with '{install_line(framework)}'")
    return framework


def methods(framework: str = "numpy") -> list[str]:
    """The methods that `framework` implements; those of "numpy", the oracle, are all there are."""
    if framework not in frameworks():
        raise unknown("framework", framework, frameworks())
    found = _names(_ROOT / "impls" / f"on_{framework}" / "methods")
    return sorted(found, key=lambda name: (name != "full_softmax", name))


def definition(method: str) -> Definition:
    return _oracle(method).DEFINITION


def same_function(method: str) -> list[str]:
    """The methods that compute the very function of this one, from the same parameters; itself among them."""
    own = _oracle(method)
    others = {name: _oracle(name) for name in methods()}
    return [
        name
        for name, other in others.items()
        if other.LAYER is own.LAYER and other.DEFINITION.shapes is own.DEFINITION.shapes
    ]


def _oracle(method: str) -> ModuleType:
    if method not in methods():
        raise unknown("method", method, methods())
    return importlib.import_module(f"vocabench.impls.on_numpy.methods.{method}")


def adapter(framework: str) -> Adapter:
    """The framework's `adapter` module. This imports the framework."""
    module: Any = importlib.import_module(f"vocabench.impls.on_{check_framework(framework)}.adapter")
    return module


def tasks() -> list[str]:
    return _names(_ROOT / "harness" / "tasks")


def task(name: str) -> ModuleType:
    if name not in tasks():
        raise unknown("task", name, tasks())
    return importlib.import_module(f"vocabench.harness.tasks.{name}")


def settings(name: str) -> dict[str, Any]:
    """Those of a task; of one that there is not, as in rows of other code, none."""
    return task(name).SETTINGS if name in tasks() else {}


def datasets() -> list[str]:
    return [name.replace("_", "-") for name in _names(_ROOT / "harness" / "datasets")]


def dataset(name: str) -> ModuleType:
    if name not in datasets():
        raise unknown("dataset", name, datasets())
    return importlib.import_module(f"vocabench.harness.datasets.{name.replace('-', '_')}")


_HOLDS = {"text": "running text", "pairs": "pairs of source and summary", "speech": "speech"}


def dataset_of_kind(name: str, kind: str) -> ModuleType:
    """The dataset, once it holds what is asked for: "text", "pairs" or "speech"."""
    module = dataset(name)
    if kind != module.KIND:
        others = ", ".join(other for other in datasets() if kind == dataset(other).KIND)
        raise BadInput(f"dataset {name!r} is {_HOLDS[module.KIND]}, not {_HOLDS[kind]}: allowed: {others}, or a path")
    return module


def suites() -> list[str]:
    return _names(_ROOT / "harness" / "suites", ".toml")


def suite_path(name: str) -> Path:
    if name not in suites():
        raise unknown("suite", name, suites())
    return _ROOT / "harness" / "suites" / f"{name}.toml"
