"""The built package: one import name, the same files from the tree and from the sdist, and a light import."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import ROOT

pytest.importorskip("build")

SOURCES = "vocabench", "harness", "impls", "pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"
HEAVY = {"numpy", "scipy", "pandas", "torch", "tensorflow", "jax"}
IMPORT = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import vocabench
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "file": vocabench.__file__, "modules": sorted(set(sys.modules) - before)}))
"""


def build(tree: Path, out: Path, *kinds: str) -> Path:
    """Build `tree` and return the wheel."""
    command = sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(out), str(tree)
    run = subprocess.run(command, cwd=out.parent, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources, because a build leaves files behind."""
    tree = tmp_path_factory.mktemp("package") / "tree"
    tree.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, tree / name)
    return tree


@pytest.fixture(scope="module")
def wheel(tree):
    """The wheel by way of the sdist, as package indexes and pip build it."""
    return build(tree, tree.parent / "from_sdist")


@pytest.fixture(scope="module")
def unpacked(wheel):
    folder = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_in(folder: Path, code: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run code that imports from `folder` and the standard library only."""
    command = sys.executable, "-S", "-E", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=check, timeout=60)


def test_the_wheel_is_the_same_from_the_tree_and_from_the_sdist(tree, wheel):
    assert files(build(tree, tree.parent / "from_tree", "--wheel")) == files(wheel)


def test_the_description_has_links_and_pictures_that_work_outside_the_repository(unpacked):
    (metadata,) = unpacked.glob("*.dist-info/METADATA")
    text = metadata.read_text()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert all("/raw.githubusercontent.com/" in picture for picture in pictures)
    for target in targets:
        path = re.sub(r"https://(?:raw\.githubusercontent|github)\.com/vocabench/vocabench/(?:blob/)?main/", "", target)
        assert path.startswith("https://") or (ROOT / path.partition("#")[0]).exists(), target
    assert "<!--" not in text


def test_the_wheel_adds_one_import_name(wheel):
    names = {name.partition("/")[0] for name in files(wheel)}
    (metadata,) = names - {"vocabench"}
    assert metadata.endswith(".dist-info")


def test_the_wheel_contains_all_modules_and_data(wheel):
    patterns = {
        "harness": [
            "**/*.py",
            "suites/*.toml",
            "published/*.toml",
            "report/assets/*",
            "speech/*.txt",
            "templates/*.txt",
        ],
        "impls": ["**/*.py", "cpp/*.cpp", "cpp/*.h"],
        "vocabench": ["*.py", "py.typed"],
    }
    expected = set()
    for folder, globs in patterns.items():
        prefix = "vocabench/" if folder == "vocabench" else f"vocabench/{folder}/"
        for pattern in globs:
            paths = [path.relative_to(ROOT / folder) for path in (ROOT / folder).glob(pattern)]
            assert paths, f"{folder}/{pattern}"
            expected |= {prefix + path.as_posix() for path in paths}
    packaged = {name for name in files(wheel) if name.startswith("vocabench/")}
    assert packaged == expected


def test_the_import_is_quick_and_loads_no_framework(unpacked):
    runs = [json.loads(run_in(unpacked, IMPORT).stdout) for _ in range(5)]
    assert Path(runs[0]["file"]).is_relative_to(unpacked)
    assert HEAVY & {name.partition(".")[0] for name in runs[0]["modules"]} == set()
    assert min(run["seconds"] for run in runs) < 0.1


@pytest.mark.parametrize("name", ["harness", "impls"])
def test_the_folders_have_no_import_name_of_their_own(unpacked, name):
    run = run_in(unpacked, f"import {name}", check=False)
    assert run.stderr.strip().endswith(f"ModuleNotFoundError: No module named '{name}'")


def test_the_citation_has_the_version_and_the_licence_of_the_package():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text().splitlines()
    for line in (f"version: {project['version']}", f"license: {project['license']}", "cff-version: 1.2.0"):
        assert line in citation
    assert project["authors"] == [{"name": "Vocabench contributors"}]
    assert "  - name: Vocabench contributors" in citation
