"""Methods, datasets and suites from outside the repository.

A plugin is a folder whose files are in the places that they would have in the repository:

    impls/on_numpy/methods/<method>.py      the definition of a method
    impls/on_<framework>/methods/<method>.py
    harness/datasets/<dataset>.py
    harness/suites/<suite>.toml

It may be a single file instead: a suite, or a module with a `DATASET` or a `DEFINITION`. Other modules below `impls/`
and `harness/` are imported as if they were in the repository too, so that a plugin's files can move there unchanged.

The paths of plugins are in the environment variable `VOCABENCH_PLUGINS`, which child processes inherit. An installed
package is a plugin if it has entry points in one of `GROUPS`. Their names are those of methods, datasets or suites, and
their values name the package that holds the files.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from types import ModuleType

from vocabench.impls.errors import BadInput

VARIABLE = "VOCABENCH_PLUGINS"
_DEFINITIONS, _DATASETS, _SUITES = "impls/on_numpy/methods", "harness/datasets", "harness/suites"
GROUPS = {  # the place of what an entry point of a group names
    "vocabench.methods": f"{_DEFINITIONS}/{{}}.py",
    "vocabench.datasets": f"{_DATASETS}/{{}}.py",
    "vocabench.suites": f"{_SUITES}/{{}}.toml",
}

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGE = "vocabench."
_METHOD = re.compile(r"impls/on_\w+/methods/([^/]+)\.py")
_NAMED = re.compile(r"(?:impls/on_\w+/methods|harness/datasets)/([^/]+)\.py")
_MODULE_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NOT_FROM_PLUGINS = re.compile(r"impls/on_\w+/adapter\.py|harness/tasks/[^/]+\.py")
_HOLDS = f"allowed: {_DEFINITIONS}/NAME.py, {_DATASETS}/NAME.py or {_SUITES}/NAME.toml in it"


@dataclass(frozen=True)
class Plugin:
    """A folder, a file or an installed package.

    Attributes:
        name: Name of the distribution, or of the file or folder.
        version: Version of the distribution; "" for a path.
        files: Path of each file by its place in the repository.
    """

    name: str
    version: str
    files: Mapping[str, Path]


def plugins() -> Sequence[Plugin]:
    """Return the plugins of this environment.

    Raises:
        BadInput: A plugin is missing or empty, or has a name that Vocabench or another plugin has already.
    """
    return _plugins(os.environ.get(VARIABLE, ""))


def files() -> Mapping[str, Path]:
    """Return the path of each file of the plugins, by its place in the repository."""
    return {place: path for plugin in plugins() for place, path in plugin.files.items()}


def names(folder: str, suffix: str) -> list[str]:
    """Return the names of the plugins' files in a folder of the repository, without their suffix."""
    return [*_names(os.environ.get(VARIABLE, ""), folder, suffix)]


@cache
def _names(paths: str, folder: str, suffix: str) -> tuple[str, ...]:
    places = [PurePosixPath(place) for plugin in _plugins(paths) for place in plugin.files]
    found = (place.stem for place in places if str(place.parent) == folder and place.suffix == suffix)
    return tuple(name for name in found if name != "__init__")


@contextmanager
def added(paths: Iterable[str]) -> Iterator[None]:
    """Add the plugins at `paths` for this process and those that it starts, until the context exits."""
    before = os.environ.get(VARIABLE)
    known = [before] if before else []
    new = [os.path.abspath(path) for path in paths]
    for path in new:
        if os.pathsep in path:
            raise BadInput(f"plugin {path}: allowed: a path without {os.pathsep!r}")
    os.environ[VARIABLE] = os.pathsep.join([*known, *new])
    try:
        plugins()
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def install() -> None:
    """Let the import system find modules of plugins. Modules of the repository are found before them."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PACKAGE):
            return None
        place, known = fullname.removeprefix(_PACKAGE).replace(".", "/"), files()
        if package := known.get(f"{place}/__init__.py"):
            return importlib.util.spec_from_file_location(
                fullname, package, submodule_search_locations=[str(package.parent)]
            )
        module = known.get(f"{place}.py")
        return importlib.util.spec_from_file_location(fullname, module) if module else None


@cache
def _plugins(paths: str) -> tuple[Plugin, ...]:
    found = (*map(_at, dict.fromkeys(filter(None, paths.split(os.pathsep)))), *_installed())
    owners: dict[str, str] = {}
    for plugin in found:
        for place in plugin.files:
            _check_place(plugin, place)
            if place in owners:
                raise BadInput(f"plugin {plugin.name}: {place} is in plugin {owners[place]} too: allowed: one of them")
            if not place.endswith("/__init__.py"):
                owners[place] = plugin.name
    return found


def _at(path: str) -> Plugin:
    """Return the plugin that is a folder or a file."""
    file = Path(path)
    if file.is_dir():
        return _in_folder(file.resolve().name, "", file)
    if not file.is_file():
        raise BadInput(f"plugin {path}: no such file or folder: allowed: a folder, a .py or a .toml file")
    if file.suffix == ".toml":
        return Plugin(file.name, "", {f"{_SUITES}/{file.name}": file})
    if file.suffix != ".py":
        raise BadInput(f"plugin {path}: allowed: a folder, a .py or a .toml file")
    assigned = _assigned(file)
    for name, folder in (("DATASET", _DATASETS), ("DEFINITION", _DEFINITIONS)):
        if name in assigned:
            return Plugin(file.name, "", {f"{folder}/{file.name}": file})
    raise BadInput(f"plugin {path}: it assigns neither DATASET nor DEFINITION: allowed: a module that assigns one")


def _in_folder(name: str, version: str, folder: Path) -> Plugin:
    paths = sorted(path for part in ("impls", "harness") for path in (folder / part).rglob("*") if path.is_file())
    by_place = {path.relative_to(folder).as_posix(): path for path in paths if path.suffix in (".py", ".toml")}
    if not any(_NAMED.fullmatch(place) or place.startswith(f"{_SUITES}/") for place in by_place):
        raise BadInput(f"plugin {folder}: no method, dataset or suite: {_HOLDS}")
    return Plugin(name, version, by_place)


@cache
def _installed() -> tuple[Plugin, ...]:
    """Return the plugins among the installed packages. Packages are found, but not imported."""
    from importlib import metadata

    found: dict[str, Plugin] = {}
    for group, place in GROUPS.items():
        for point in metadata.entry_points(group=group):
            owner = point.dist.name if point.dist is not None else point.module
            spec = importlib.util.find_spec(point.module)
            if spec is None or not spec.submodule_search_locations:
                raise BadInput(f"plugin {owner}: entry point {point.name!r} of {group}: no package {point.module}")
            folder = next(iter(spec.submodule_search_locations))
            if folder not in found:
                found[folder] = _in_folder(owner, point.dist.version if point.dist is not None else "", Path(folder))
            if (wanted := place.format(point.name.replace("-", "_"))) not in found[folder].files and (
                wanted := place.format(point.name)
            ) not in found[folder].files:
                raise BadInput(f"plugin {owner}: entry point {point.name!r} of {group}: {point.module} has no {wanted}")
    return tuple(found.values())


def _check_place(plugin: Plugin, place: str) -> None:
    """Raise `BadInput` if a file of a plugin has a name that is not allowed there."""
    if place.endswith("/__init__.py"):
        return
    where = f"plugin {plugin.name}: {place}"
    if (named := _NAMED.fullmatch(place)) and not _MODULE_NAME.fullmatch(named[1]):
        raise BadInput(f"{where}: allowed: a name of lower-case letters, digits and '_'")
    if method := _METHOD.fullmatch(place):
        definition = f"{_DEFINITIONS}/{method[1]}.py"
        if (_ROOT / definition).exists():
            raise BadInput(f"{where}: {method[1]!r} is a method of Vocabench: allowed: another name")
        if definition not in plugin.files:
            raise BadInput(f"{where}: the method has no definition: allowed: {definition} next to it")
    if (_ROOT / place).exists():
        raise BadInput(f"{where}: Vocabench has a file of that name: allowed: another name")
    if _NOT_FROM_PLUGINS.fullmatch(place):
        raise BadInput(f"{where}: a plugin has no frameworks or tasks: {_HOLDS}")


def _assigned(file: Path) -> set[str]:
    """Return the names that a module assigns, without running it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise BadInput(f"plugin {file}: {error}: allowed: a Python module") from error
    targets = [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    targets += [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}
