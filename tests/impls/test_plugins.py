"""Methods, datasets and suites from folders, files and installed packages outside the repository."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from vocabench.harness import cli, registry
from vocabench.harness.run import provenance
from vocabench.impls import plugins
from vocabench.impls.errors import BadInput

DATASET = """
from vocabench.harness.datasets.shared.dataset import TextDataset, TextFiles
from vocabench.harness.datasets.{helper} import TEXT


class Origin:
    name = "{name}"
    licence = "none"

    def is_here(self):
        return True

    def find(self, progress):
        return TextFiles(self.name, dict.fromkeys(("train", "valid"), TEXT), "english", self.licence)


DATASET = TextDataset(description="a toy", source="here", origin=Origin())
"""

SUITE = """
description = "The toy"
[[sweep]]
task = "language_modelling"
frameworks = ["numpy"]
methods = ["my_softmax"]
dataset = "my-text"
dim = 8
settings = { epochs = 1, batch = 4, steps = 5, embedding = 8, decode_rows = 0 }
"""


@pytest.fixture
def folder(in_empty_folder):
    """Return a plugin with a method, a dataset and a suite."""
    assert cli.main(["new", "method", "my_softmax", "--folder", "mine", "-f", "torch"]) == 0
    root = in_empty_folder / "mine"
    datasets = root / "harness" / "datasets"
    (datasets / "of_mine").mkdir(parents=True)
    (datasets / "of_mine" / "__init__.py").touch()
    (datasets / "of_mine" / "text.py").write_text(
        "from pathlib import Path\nTEXT = Path(__file__).with_name('a.txt')\n"
    )
    (datasets / "of_mine" / "a.txt").write_text("the cat sat on the mat\n" * 60)
    (datasets / "my_text.py").write_text(DATASET.format(name="my-text", helper="of_mine.text"))
    (root / "harness" / "suites").mkdir()
    (root / "harness" / "suites" / "mine.toml").write_text(SUITE)
    yield root
    for name in [
        name for name in sys.modules if name.endswith((".my_softmax", ".my_text", ".of_mine", ".of_mine.text"))
    ]:
        del sys.modules[name]


def run(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "vocabench", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), variables.pop("path", "")]), **variables},
    )


def row_of_mine():
    rows = map(json.loads, Path("rows.jsonl").read_text().splitlines())
    (row,) = (row for row in rows if row["cell"]["method"] == "my_softmax")
    return row


def test_names_of_a_folder_are_listed(folder, capsys):
    for kind, name in (("methods", "my_softmax"), ("datasets", "my-text"), ("suites", "mine")):
        assert cli.main(["list", kind, "--plugin", str(folder)]) == 0
        assert name in capsys.readouterr().out.split()
        assert cli.main(["list", kind]) == 0
        assert name not in capsys.readouterr().out.split()


def test_a_run_of_a_plugins_suite_measures_its_method_on_its_dataset(folder):
    first = run("run", "mine", "--plugin", str(folder), "--out", "rows.jsonl")
    assert first.returncode == 0, first.stderr
    assert "| my_softmax | numpy" in first.stdout
    row = row_of_mine()
    assert (row["status"], row["cell"]["dataset"], row["provenance"]["code"]["plugins"]) == (
        "ok",
        "my-text",
        {"mine": ""},
    )
    assert row["provenance"]["code"]["dirty"] is True
    refused = run("publish", "rows.jsonl", "--plugin", str(folder))
    assert refused.returncode == 2
    assert "from code that no commit holds" in refused.stderr


@pytest.mark.lengthy
@pytest.mark.many_cells
@pytest.mark.parametrize("framework", [name for name in registry.installed_frameworks() if name != "numpy"])
def test_a_new_method_agrees_at_once_and_can_be_timed(framework, in_empty_folder):
    assert cli.main(["new", "method", "toy", "--folder", "mine", "-f", framework]) == 0
    checked = run("check", "--plugin", "mine", "-m", "toy", "-f", framework, VOCABENCH_PLUGINS="")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "3 of 3 cells agree" in checked.stdout
    settings = ("-s", "budget=0", "--processes", "1", "--rounds", "6", "-s", "quantities=layer_seconds")
    timed = run(
        *("run", "quick", "-t", "timing", "-m", "toy", "-f", framework, "-v", "50", "--tokens", "16", *settings),
        VOCABENCH_PLUGINS=str(in_empty_folder / "mine"),
    )
    assert timed.returncode == 0, timed.stderr
    assert re.search(rf"^\| toy +\| {framework} ", timed.stdout, re.MULTILINE)


def test_the_code_fingerprint_covers_plugins(folder):
    plain = provenance.fingerprint()
    with plugins.added([str(folder)]):
        before = provenance.fingerprint()
        (folder / "harness" / "suites" / "mine.toml").write_text(SUITE + "\n")
        assert len({plain, before, provenance.fingerprint()}) == 3
    assert provenance.fingerprint() == plain


def test_a_single_file_is_a_plugin(in_empty_folder, capsys):
    (in_empty_folder / "one.toml").write_text(SUITE.replace("my_softmax", "huffman"))
    (in_empty_folder / "text_a.py").write_text("DATASET: object = None\n")
    (in_empty_folder / "softmax_a.py").write_text("DEFINITION = LAYER = None\n")
    arguments = [f"--plugin={name}" for name in ("one.toml", "text_a.py", "softmax_a.py")]
    for kind, name in (("suites", "one"), ("datasets", "text-a"), ("methods", "softmax_a")):
        assert cli.main(["list", kind, *arguments]) == 0
        assert name in capsys.readouterr().out.split()


def install(site, groups):
    """Write an installed distribution with the package `my_package` of the folder "mine"."""
    site.mkdir()
    (Path("mine")).rename(site / "my_package")
    (site / "my_package" / "__init__.py").write_text("raise RuntimeError('plugins are found without being imported')\n")
    info = site / "my_dist-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-dist\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(groups)


GROUPS = "[vocabench.methods]\nmy_softmax = my_package\n[vocabench.datasets]\nmy-text = my_package\n"


@pytest.mark.lengthy
def test_an_installed_package_is_a_plugin_by_its_entry_points(folder, in_empty_folder):
    install(in_empty_folder / "site", GROUPS)
    listed = run("list", "methods", path=str(in_empty_folder / "site"))
    assert "my_softmax" in listed.stdout.split(), listed.stderr
    measured = run("run", "mine", "--out", "rows.jsonl", path=str(in_empty_folder / "site"))
    assert measured.returncode == 0, measured.stderr
    row = row_of_mine()
    assert row["provenance"]["code"]["plugins"] == {"my-dist": "1.5"}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("[vocabench.methods]\nother = my_package\n", "my_package has no impls/on_numpy/methods/other.py"),
        ("[vocabench.suites]\nmine = no_package\n", "no package no_package"),
    ],
)
def test_entry_points_that_name_nothing_are_refused(groups, message, folder, in_empty_folder):
    install(in_empty_folder / "site", groups)
    listed = run("list", "methods", path=str(in_empty_folder / "site"))
    assert listed.returncode == 2
    (line,) = listed.stderr.splitlines()
    assert line.startswith("vocabench: plugin my-dist: entry point ")
    assert message in line


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("impls/on_numpy/methods/huffman.py", "'huffman' is a method of Vocabench"),
        ("impls/on_jax/methods/compiled_cross_entropy.py", "'compiled_cross_entropy' is a method of Vocabench"),
        ("impls/on_torch/methods/mine.py", "the method has no definition: allowed: impls/on_numpy/methods/mine.py"),
        ("impls/on_numpy/methods/My-Method.py", "allowed: a name of lower-case letters"),
        ("harness/datasets/pydoc.py", "Vocabench has a file of that name"),
        ("harness/suites/quick.toml", "Vocabench has a file of that name"),
        ("harness/tasks/translation.py", "a plugin has no frameworks or tasks"),
        ("impls/on_torch/layer.py", "Vocabench has a file of that name"),
    ],
)
def test_names_that_collide_are_refused(place, message, in_empty_folder, capsys):
    for name in ("harness/suites/fine.toml", place):
        path = in_empty_folder / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert cli.main(["list", "methods", "--plugin", "mine"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"vocabench: plugin mine: {place}: ")
    assert message in line


def test_two_plugins_with_one_name_are_refused(in_empty_folder, capsys):
    for name in ("a", "b"):
        (in_empty_folder / name / "harness" / "suites").mkdir(parents=True)
        (in_empty_folder / name / "harness" / "suites" / "same.toml").touch()
    assert cli.main(["list", "suites", "--plugin", "a", "--plugin", "b"]) == 2
    assert "plugin b: harness/suites/same.toml is in plugin a too" in capsys.readouterr().err


def test_a_method_with_the_name_of_one_without_a_layer_is_refused(in_empty_folder, capsys):
    (in_empty_folder / "unigram.py").write_text("DEFINITION = None\n")
    assert cli.main(["list", "methods", "--plugin", "unigram.py"]) == 2
    assert "plugin method 'unigram': a task has a method of that name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none", None, "no such file or folder"),
        ("data.csv", "", "allowed: a folder, a .py or a .toml file"),
        ("a.py", "x = 1", "it assigns neither DATASET nor DEFINITION"),
        ("a.py", "x = ", "allowed: a Python module"),
    ],
)
def test_what_is_no_plugin_is_refused_in_one_line(name, content, message, in_empty_folder, capsys):
    if content is not None:
        Path(name).write_text(content)
    assert cli.main(["list", "methods", "--plugin", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_folder_without_anything_is_refused(in_empty_folder, capsys):
    Path("empty").mkdir()
    assert cli.main(["list", "methods", "--plugin", "empty"]) == 2
    assert "no method, dataset or suite: allowed: impls/on_numpy/methods/NAME.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("DEFINITION = 1 / 0", "ZeroDivisionError: division by zero: allowed: a module that can be imported"),
        ("DEFINITION = None", "no LAYER: allowed: a module with DEFINITION, LAYER"),
        (
            "from vocabench.impls.on_numpy.methods.huffman import DEFINITION, LAYER\nDEFINITION = DEFINITION",
            "is 'huffman'",
        ),
    ],
)
def test_a_definition_that_is_wrong_is_one_line(content, message, in_empty_folder, monkeypatch):
    monkeypatch.delitem(sys.modules, "vocabench.impls.on_numpy.methods.wrong", raising=False)
    Path("wrong.py").write_text(content)
    with plugins.added(["wrong.py"]), pytest.raises(BadInput, match="wrong") as error:
        registry.definition("wrong")
    assert message in str(error.value)


def test_new_refuses_to_overwrite_and_names_that_are_taken(in_empty_folder, capsys):
    assert cli.main(["new", "method", "toy"]) == 0
    before = Path("impls/on_numpy/methods/toy.py").read_bytes()
    for name, message in (
        ("toy", "is there already: allowed: another name or --folder"),
        ("huffman", "is there already: allowed: another name"),
        ("unigram", "is there already: allowed: another name"),
        ("My-Softmax", "allowed: lower-case letters"),
        ("class", "allowed: lower-case letters"),
        ("../up", "allowed: lower-case letters"),
    ):
        assert cli.main(["new", "method", name]) == 2
        assert message in capsys.readouterr().err
    assert Path("impls/on_numpy/methods/toy.py").read_bytes() == before
