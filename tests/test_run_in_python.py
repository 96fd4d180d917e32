"""`vocabench.run`: a run from Python and from a notebook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vocabench
from tests import ROOT
from vocabench.harness import registry

NOTEBOOKS = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))


def agreement(**arguments):
    return vocabench.run(
        "quick",
        **{"framework": "numpy", "task": "agreement", "method": "huffman", "set": {"training": False}, **arguments},
    )


def test_a_run_returns_the_figures_that_read_gives(in_empty_folder, capsys):
    rows = agreement(method="full_softmax,huffman", out="rows.jsonl")
    assert rows.equals(vocabench.read("rows.jsonl"))
    assert list(rows["method"]) == ["full_softmax", "huffman"]
    assert rows.attrs["file"] == "rows.jsonl"
    html = rows._repr_html_()
    assert html is not None
    assert "<table" in html
    output = capsys.readouterr()
    assert output.out == ""
    assert "huffman numpy float64: agrees" in output.err
    again = agreement(method=["full_softmax", "huffman"], out=Path("rows.jsonl"), quiet=True)
    assert again.equals(rows)
    assert capsys.readouterr().err == "rows: rows.jsonl\n"


def test_arguments_are_those_of_the_command():
    import argparse
    import inspect

    from vocabench.harness import cli

    commands = next(a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    options = {action.dest for action in commands["run"]._actions} - {"help", "dry_run", "json"}
    assert set(inspect.signature(vocabench.run).parameters) == options


def test_values_are_converted_as_on_the_command_line(in_empty_folder):
    rows = agreement(option={"projection": "none", "bias": True}, method="sohsm", quiet=True)
    assert set(rows["options"]) == {"[bias=True,projection=none]"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "hufman"}, "did you mean 'huffman'"),
        ({"method": []}, r"method=\[\]: allowed: a name, or a list of names"),
        ({"method": 5}, "method=5: allowed: a name"),
        ({"framework": ["numpy", None]}, "framework=.*: allowed: a name"),
        ({"vocab": 2.5}, "vocab=2.5: allowed: a whole number"),
        ({"vocab": True}, "vocab=True: allowed: a whole number"),
        ({"dim": "8"}, "dim='8': allowed: a whole number"),
        ({"seed": 1, "seeds": 2}, "--seed and --seeds: allowed: one of them"),
        ({"set": ["training"]}, "set=.*: allowed: a dictionary"),
        ({"set": {"trainin": False}}, "unknown setting of agreement 'trainin'"),
        ({"executor": "slurm"}, "unknown executor 'slurm'"),
        ({"plugin": "no-such-plugin"}, "plugin .*no-such-plugin: no such file or folder"),
    ],
)
def test_invalid_arguments_are_value_errors(arguments, message, in_empty_folder):
    with pytest.raises(ValueError, match=message):
        agreement(**arguments)
    assert not list(in_empty_folder.iterdir())


def test_a_suite_by_path_and_a_plugin(in_empty_folder):
    suite = 'description = "x"\n[[sweep]]\ntask = "agreement"\nframeworks = ["numpy"]\nmethods = ["huffman"]\n'
    Path("mine.toml").write_text(suite + "settings = { training = false }\n")
    rows = vocabench.run(Path("mine.toml"), quiet=True)
    Path("mine.toml").rename("theirs.toml")
    assert vocabench.run("theirs", plugin="theirs.toml", quiet=True)["value"].equals(rows["value"])
    assert "VOCABENCH_PLUGINS" not in os.environ


@pytest.mark.lengthy
@pytest.mark.skipif(len(registry.installed_frameworks()) < 2, reason="no framework is installed")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_notebooks_runs(path, in_empty_folder):
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["cells"][0]["cell_type"]) == (4, "markdown")
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(cells)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "(6 of 6)" in done.stderr
    assert Path("first-comparison.svg").stat().st_size > 1000


def test_there_are_notebooks():
    assert NOTEBOOKS
