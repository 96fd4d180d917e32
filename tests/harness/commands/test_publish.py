"""The rows of a run that are published, and the parts of them that are not."""

import json
import os
from typing import Any

import pytest

from tests.rows import write_json
from vocabench.harness import cli, registry
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import Names
from vocabench.harness.run.store import read
from vocabench.impls.options import Choice, Number, Rising

DETAIL = {
    **{name: ["quoted"] for name in ("summaries", "transcripts", "ids")},
    "curve": [{"step": 1, "examples": ["quoted"]}],
    "clusters": [["quoted"]],
}


def row(
    seed=0, *, status="ok", dirty: bool | None = False, commit="c0ffee", dataset="pydoc-small", detail=DETAIL, **cell
):
    cell = {"task": "language_modelling", "method": "sohsm", "seed": seed, "dataset": dataset} | cell
    cell = Cell("quick", framework="torch", vocab=100, dim=8, tokens=64, **cell)
    return {
        "key": cell.key,
        "cell": cell.to_json(),
        "status": status,
        "message": "no memory" if status == "oom" else "",
        "measurements": [{"quantity": "perplexity", "value": 10.5, "detail": detail}] if status == "ok" else [],
        "agreement": {},
        "provenance": {"code": {"commit": commit, "dirty": dirty}},
    }


@pytest.fixture
def run(in_empty_folder):
    def write(*rows, name="quick-0123456789ab.jsonl"):
        write_json(in_empty_folder / name, rows)
        return name

    return write


def published(folder, name="quick"):
    return [row.to_json() for row in read(folder / "results" / f"{name}.jsonl")]


def test_measured_rows_are_published_unchanged(run, in_empty_folder, capsys):
    path = run(row(0, status="error"), row(0), row(1, status="oom"), row(2))
    assert cli.main(["publish", path]) == 0
    rows = [stored.to_json() for stored in read(in_empty_folder / path)]
    assert published(in_empty_folder) == [rows[1], rows[3]]
    printed = capsys.readouterr().out
    assert "left out: language_modelling torch sohsm" in printed
    assert "oom: no memory" in printed
    assert "2 rows: results/quick.jsonl" in printed


def test_quotations_of_restricted_data_are_left_out(run, in_empty_folder, capsys):
    assert cli.main(["publish", run(row(dataset="duc-2004", options={"clusters": 7}), row(1)), "--as", "both"]) == 0
    restricted, free = published(in_empty_folder, "both")
    assert "quoted" not in json.dumps(restricted)
    assert restricted["measurements"][0]["detail"] == {"curve": [{"step": 1}]}
    assert restricted["cell"]["options"] == {"clusters": 7}
    assert free["measurements"][0]["detail"] == DETAIL
    assert "left out of 1 rows" in capsys.readouterr().out


def test_the_path_of_a_dataset_is_left_out(run, in_empty_folder):
    assert cli.main(["publish", run(row(dataset="/home/me/corpora/novels")), "--as", "novels"]) == 0
    (stored,) = published(in_empty_folder, "novels")
    assert "/home/me" not in json.dumps(stored)
    assert stored["cell"]["dataset"] == "novels"
    assert stored["key"] == Cell.from_json(stored["cell"]).key


PATH, FILE_NAME = "/home/me/x.npy@0123456789ab", "x.npy@0123456789ab"


def paths_for(kinds):
    """Return a path for each option or setting that may hold one, and for each of an unknown kind."""
    return {name: PATH for name, kind in kinds.items() if not isinstance(kind, Choice | Number | Rising | Names)}


@pytest.mark.parametrize("task", ["timing", "language_modelling", "word_vectors", "gone"])
@pytest.mark.parametrize("method", ["sohsm", "class_hsm", "binary_tree", "cnn_softmax", "gone"])
def test_paths_of_files_in_options_and_settings_are_left_out(run, in_empty_folder, method, task):
    options = {"gone": None} if method == "gone" else registry.definition(method).options
    settings = {"gone": None} if task == "gone" else registry.task(task).settings
    values: dict[str, Any] = {"options": paths_for(options), "settings": paths_for(settings)}
    assert cli.main(["publish", run(row(method=method, task=task, **values))]) == 0
    (stored,) = published(in_empty_folder)
    for kind, named in values.items():
        assert stored["cell"][kind] == dict.fromkeys(named, FILE_NAME)
    assert "/home/me" not in json.dumps(stored)
    assert stored["key"] == Cell.from_json(stored["cell"]).key


def test_a_file_named_like_a_free_dataset_is_not_quoted(run, in_empty_folder):
    assert cli.main(["publish", run(row(dataset="pydoc-own.txt"))]) == 0
    assert "quoted" not in (in_empty_folder / "results" / "quick.jsonl").read_text()


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        ([row(dirty=True), row(1)], [], "1 of 2 rows come from code that no commit holds"),
        ([row(commit=""), row(1)], [], "1 of 2 rows come from code that no commit holds, or whose commit is unknown"),
        ([row(dirty=None), row(1)], [], "1 of 2 rows come from code that no commit holds, or whose commit is unknown"),
        ([row(status="timeout")], [], "no row that was measured"),
        ([row()], ["--as", "../quick"], "name '../quick'"),
        ([row()], ["--as", ".hidden"], "name '.hidden'"),
    ],
)
def test_nothing_is_written_if_publishing_is_refused(run, in_empty_folder, capsys, rows, more, message):
    assert cli.main(["publish", run(*rows), *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (in_empty_folder / "results").exists()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"cell": {}}, "not a cell: missing"),
        ({"cell": row()["cell"] | {"speed": 1}}, "unknown field 'speed'"),
        ({"cell": row()["cell"] | {"options": 3}}, "options=3"),
        ({"provenance": []}, "provenance=(a list of 0): allowed: an object"),
        ({"measurements": [3]}, "measurements[0]=3: allowed: an object"),
        (
            {"measurements": [{"quantity": "perplexity", "value": "ten"}]},
            "measurements[0].value='ten': allowed: a finite number",
        ),
        (
            {"measurements": [{"quantity": "perplexity", "value": 1, "samples": 3}]},
            "measurements[0].samples=3: allowed: a list",
        ),
        (
            {"measurements": [{"quantity": "perplexity", "value": 1, "ratio": 3}]},
            "measurements[0].ratio=3: allowed: an object",
        ),
    ],
)
@pytest.mark.parametrize("command", [["publish"], ["table", "--against", "published", "--run"]])
def test_invalid_rows_are_refused_in_one_line(run, capsys, command, broken, message):
    assert cli.main([*command, run(row() | broken)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_rows_of_a_changed_tree_can_be_allowed(run, in_empty_folder):
    assert cli.main(["publish", run(row(dirty=True)), "--allow-dirty"]) == 0
    assert published(in_empty_folder)[0]["provenance"]["code"]["dirty"] is True


def test_published_rows_are_replaced_only_with_the_option(run, in_empty_folder, capsys):
    assert cli.main(["publish", run(row()), "--as", "kept"]) == 0
    newer = run(row(1), name="newer.jsonl")
    assert cli.main(["publish", newer, "--as", "kept"]) == 2
    assert "--replace" in capsys.readouterr().err
    assert published(in_empty_folder, "kept")[0]["cell"]["seed"] == 0
    assert cli.main(["publish", newer, "--as", "kept.jsonl", "--replace"]) == 0
    assert published(in_empty_folder, "kept")[0]["cell"]["seed"] == 1


def test_a_failed_write_leaves_the_published_rows(run, in_empty_folder, monkeypatch, capsys):
    assert cli.main(["publish", run(row())]) == 0

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    newer = "newer.jsonl"
    (in_empty_folder / newer).write_text((in_empty_folder / "quick-0123456789ab.jsonl").read_text())
    assert cli.main(["publish", newer, "--as", "quick", "--replace"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert [p.name for p in (in_empty_folder / "results").iterdir()] == ["quick.jsonl"]
    assert len(published(in_empty_folder)) == 1
