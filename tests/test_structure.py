"""The structure of the packages: no import cycle, private names stay private, modules and functions stay short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests import ROOT

LONGEST_MODULE, LONGEST_FUNCTION = 450, 80
FRAMEWORKS = {"torch", "tensorflow", "jax", "keras", "triton"}


@cache
def modules() -> dict[str, Path]:
    """Return the path of each module of the project, by its import name."""
    paths = [path for folder in ("harness", "impls") for path in (ROOT / folder).rglob("*.py")]
    return {import_name(path): path for path in sorted(paths)}


def import_name(path: Path) -> str:
    parts = ("vocabench", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


def imports_of(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports below `node`, inside functions too, but not those for type checkers only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from imports_of(child)


def imported_by(name: str) -> set[str]:
    """Return the modules of the project that a module imports."""
    found = set()
    for node in imports_of(tree_of(name)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in modules() else str(node.module))
        else:
            found |= {alias.name for alias in node.names}
    return found & set(modules()) - {name}


def test_imports_have_no_cycle():
    remaining = {name: imported_by(name) for name in modules()}
    while free := [name for name, others in remaining.items() if not others & set(remaining)]:
        for name in free:
            del remaining[name]
    assert not remaining, f"modules on a cycle, or above one: {sorted(remaining)}"


def test_modules_and_functions_are_short():
    for name, path in modules().items():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= LONGEST_MODULE, f"{name} has {lines} lines"
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = int(node.end_lineno or 0) - node.lineno + 1
                assert length <= LONGEST_FUNCTION, f"{node.name} in {name} has {length} lines"


def test_underscored_modules_are_imported_in_their_own_package_only():
    for name, path in modules().items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for other in imported_by(name):
            owner, _, leaf = other.rpartition(".")
            assert not leaf.startswith("_") or owner == package, f"{name} imports {other}"


def test_the_harness_imports_no_framework():
    for name in modules():
        if name.startswith("vocabench.harness"):
            for node in imports_of(tree_of(name)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
                assert not FRAMEWORKS & {imported.partition(".")[0] for imported in names}, f"{name}: {names}"
