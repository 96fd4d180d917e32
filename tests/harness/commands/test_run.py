"""`vocabench run`, `check` and `info`: plans, output for people and programs, and what a machine cannot run."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from vocabench.harness import cli, registry
from vocabench.harness.commands import reporter
from vocabench.harness.datasets.shared.dataset import TextDataset
from vocabench.harness.run import devices, pool, store
from vocabench.impls.errors import Unsupported

SMALL = ["run", "check", "-f", "numpy", "-m", "full_softmax", "-m", "huffman", "-s", "training=false"]
SUITE = """
description = "A suite of a user"
[[sweep]]
task = "agreement"
frameworks = ["numpy"]
methods = ["full_softmax"]
settings = { training = false }
"""


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_a_dry_run_lists_the_cells_and_measures_nothing(in_empty_folder, capsys):
    assert cli.main([*SMALL, "--dry-run", "--out", "rows.jsonl"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "agreement numpy full_softmax float64 cpu: time unknown",
        "agreement numpy huffman float64 cpu: time unknown",
        "2 of 2 cells to measure, time unknown: no earlier rows of these cells; rows: rows.jsonl",
    ]
    assert not list(in_empty_folder.iterdir())


def test_a_dry_run_estimates_from_earlier_rows_of_the_same_cells(in_empty_folder, capsys):
    assert cli.main([*SMALL, "-m", "huffman", "--out", "results/local/before.jsonl"]) == 0
    rows = json_lines(Path("results/local/before.jsonl").read_text())
    for row, seconds in zip(rows, (7, 600), strict=True):
        row["provenance"]["seconds"] = seconds
    Path("results/local/before.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    assert cli.main([*SMALL, "--dry-run", "--out", "rows.jsonl"]) == 0
    assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()[:2]] == [
        "about 7 s",
        "about 10 min",
    ]
    assert cli.main([*SMALL, "-m", "sohsm", "--dry-run", "--json", "--out", "rows.jsonl"]) == 0
    *cells, end = json_lines(capsys.readouterr().out)
    assert [cell["estimated_seconds"] for cell in cells] == [7, 600, None]
    assert [cell["measured"] for cell in cells] == [False, False, False]
    assert end == {"event": "end", "file": "rows.jsonl", "cells": 3, "to_measure": 3, "estimated_seconds": None}


def test_each_result_is_a_line_with_the_time_left(in_empty_folder, capsys):
    assert cli.main([*SMALL, "-m", "nce", "--out", "rows.jsonl"]) == 0
    first, second, third, last = capsys.readouterr().err.splitlines()
    assert first.startswith("full_softmax numpy float64: agrees, largest error 0.")
    assert first.endswith(" of the tolerance (1 of 3)")
    assert second.startswith("huffman numpy float64: agrees")
    assert " of the tolerance (2 of 3, about " in second
    assert second.endswith(" left)")
    assert third.endswith("(3 of 3)")
    assert last == "rows: rows.jsonl"


def test_quiet_shows_the_path_of_the_rows_alone(in_empty_folder, capsys):
    assert cli.main([*SMALL, "--quiet", "--out", "rows.jsonl"]) == 0
    assert capsys.readouterr() == ("", "rows: rows.jsonl\n")
    assert cli.main(["check", "-f", "numpy", "-m", "huffman", "--quiet", "--out", "rows.jsonl"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out.startswith("1 of 1 cells agree")


def test_quiet_shows_errors(in_empty_folder, capfd):
    Path("text.txt").write_text("a b c d\n" * 100)
    command = ["run", "quick", "-t", "language_modelling", "-f", "numpy", "-m", "full_softmax", "--dataset", "text.txt"]
    assert cli.main([*command, "-s", "batch=400", "--quiet", "--out", "rows.jsonl"]) == 2
    error, path = capfd.readouterr().err.splitlines()
    assert error.startswith("refused: language_modelling numpy full_softmax text.txt")
    assert path == "rows: rows.jsonl"


def test_json_is_one_event_a_line(in_empty_folder, capsys):
    assert cli.main([*SMALL, "--json", "--out", "rows.jsonl"]) == 0
    start, *cells, end = json_lines(capsys.readouterr().out)
    assert start == {"event": "start", "file": "rows.jsonl", "cells": 2, "to_measure": 2, "estimated_seconds": None}
    assert [(cell["event"], cell["status"], cell["done"], cell["of"]) for cell in cells] == [
        ("cell", "ok", 1, 2),
        ("cell", "ok", 2, 2),
    ]
    rows = json_lines(Path("rows.jsonl").read_text())
    assert [cell["key"] for cell in cells] == [row["key"] for row in rows]
    assert cells[0]["figures"][0]["quantity"] == "agreement_error"
    assert end == {"event": "end", "file": "rows.jsonl", "statuses": {"ok": 2}, "exit_code": 0}


def test_check_and_info_have_json_too(in_empty_folder, capsys):
    assert cli.main(["check", "-f", "numpy", "-m", "huffman", "--json", "--out", "rows.jsonl"]) == 0
    *_, end = json_lines(capsys.readouterr().out)
    assert end == {"event": "end", "file": "rows.jsonl", "statuses": {"ok": 1}, "disagreements": [], "exit_code": 0}


def test_info_as_json_says_how_to_install_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(registry, "is_installed", lambda name: name == "numpy")
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["frameworks"]["numpy"]["devices"]["cpu"]["numpy"]
    assert facts["frameworks"]["jax"] == {"status": "missing", "install": registry.install_line("jax")}
    assert {"code", "machine", "versions"} <= set(facts)


def test_without_any_framework_the_run_says_so_before_data_is_loaded(in_empty_folder, monkeypatch, capsys):
    monkeypatch.setattr(registry, "is_installed", lambda name: name == "numpy")
    for command in (["run"], ["run", "quick-tasks"], ["run", "pydoc"], ["check"]):
        assert cli.main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("vocabench: no framework")
        for framework in ("torch", "tensorflow", "jax"):
            assert registry.install_line(framework) in line or command == ["run", "pydoc"]
    assert not list(in_empty_folder.iterdir())


def test_a_framework_of_a_suite_that_is_missing_is_skipped(in_empty_folder, monkeypatch, capsys):
    Path("two.toml").write_text(SUITE.replace('["numpy"]', '["numpy", "jax"]'))
    monkeypatch.setattr(registry, "is_installed", lambda name: name == "numpy")
    assert cli.main(["run", "two.toml", "--out", "rows.jsonl"]) == 0
    output = capsys.readouterr()
    assert "| agreement | jax       | full_softmax |" in output.out
    rows = json_lines(Path("rows.jsonl").read_text())
    assert [row["status"] for row in rows] == ["ok", "skipped", "skipped", "skipped"][: len(rows)]
    assert (
        f"framework 'jax' is not installed here: install it with '{registry.install_line('jax')}'" in rows[1]["message"]
    )


class Missing:
    name = "pydoc-small"
    licence = "none"

    def is_here(self):
        return False

    def find(self, progress):
        raise Unsupported("a dataset that this machine cannot make")


def test_a_sweep_whose_data_cannot_be_had_is_skipped_and_the_others_run(in_empty_folder, monkeypatch, capsys):
    dataset = TextDataset(description="a toy", source="nowhere", origin=Missing())
    monkeypatch.setattr(registry, "dataset", lambda name: dataset)
    command = ["run", "quick", "-f", "numpy", "-m", "huffman", "-s", "training=false", "--out", "rows.jsonl"]
    assert cli.main([*command, "-t", "agreement,language_modelling"]) == 0
    output = capsys.readouterr()
    assert "skipped: language_modelling pydoc-small: a dataset that this machine cannot make" in output.err
    assert "a dataset that this machine cannot make" in output.out  # in the table of what was not measured
    (row,) = json_lines(Path("rows.jsonl").read_text())
    assert row["cell"]["task"] == "agreement"
    assert cli.main(["run", "quick", "-f", "numpy", "-t", "language_modelling"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "vocabench: a dataset that this machine cannot make"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda:7"], "device 'cuda:7': numpy has none here: allowed: cpu"),
        (["--device", "cpu:1"], "device 'cpu:1': numpy has none here: allowed: cpu"),
        (
            ["--out", "file/rows.jsonl"],
            "results file file/rows.jsonl: File exists: allowed: a place that can be written",
        ),
        (["--out", "/dev/null"], "results file /dev/null is not a regular file"),
        (["--out", "damaged.jsonl"], "results file damaged.jsonl, line 1: not a JSON row"),
        (["--processes", "1"], "rounds=4 in one process: allowed: at least 6"),
        (["-s", "epochs=0"], "setting epochs=0"),
        (["-o", "cutoffs=0"], "unknown option of huffman 'cutoffs'"),
    ],
)
def test_what_is_known_beforehand_is_refused_before_data_is_loaded(arguments, message, in_empty_folder, capsys):
    Path("file").touch()
    Path("damaged.jsonl").write_text("no row\n")
    files = sorted(in_empty_folder.iterdir())
    # Loading this dataset would fail with another message.
    command = [
        "run",
        "quick",
        "-t",
        "language_modelling,timing",
        "-f",
        "numpy",
        "-m",
        "huffman",
        "--dataset",
        "absent.txt",
    ]
    assert cli.main([*command, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted(in_empty_folder.iterdir()) == files


def test_a_run_that_ends_before_its_first_row_leaves_no_file(in_empty_folder, capsys):
    command = [
        "run",
        "quick",
        "-t",
        "language_modelling",
        "-f",
        "numpy",
        "--dataset",
        "absent.txt",
        "--out",
        "rows.jsonl",
    ]
    assert cli.main(command) == 2
    assert "no such file or folder" in capsys.readouterr().err
    assert not Path("rows.jsonl").exists()


def test_a_device_that_one_framework_has_skips_the_others(monkeypatch):
    monkeypatch.setattr(
        devices, "describe", lambda name: {"devices": ["cpu", "cuda:0"] if name == "torch" else ["cpu"]}
    )
    devices.check(["torch", "jax"], "cuda", every=False)
    for frameworks, every in ((["torch", "jax"], True), (["jax"], False)):
        with pytest.raises(Unsupported, match="device 'cuda': jax has none here"):
            devices.check(frameworks, "cuda", every=every)


def test_a_cell_on_a_missing_device_is_skipped(tmp_path):
    from tests.harness.run.test_pool import oracle_cells

    (cell,) = oracle_cells(["huffman"])
    on_gpu = type(cell)(**{**cell.to_json(), "device": "cuda"})
    with store.Store(tmp_path / "rows.jsonl") as rows:
        (row,) = pool.run([on_gpu], rows, deadline=60, progress=lambda cell, text: None)
    assert (row.status, row.message) == ("skipped", "device 'cuda': numpy has none here: allowed: cpu")


def test_a_suite_is_given_by_its_path(in_empty_folder, capsys):
    Path("folder[1]").mkdir()
    Path("folder[1]/my-suite.toml").write_text(SUITE)
    assert cli.main(["run", "folder[1]/my-suite.toml"]) == 0
    assert "agree" in capsys.readouterr().err
    (path,) = Path("results/local").iterdir()
    assert path.name.startswith("my-suite-")
    (row,) = json_lines(path.read_text())
    assert row["cell"]["suite"] == "my-suite"
    for content, message in ((None, "No such file or directory"), ("x = 1", "unknown key of none.toml 'x'")):
        if content:
            Path("none.toml").write_text(content)
        assert cli.main(["run", "none.toml"]) == 2
        assert message in capsys.readouterr().err


def test_brackets_in_paths_are_text_and_long_paths_are_not_folded(in_empty_folder, capsys):
    folder = "[/bold] " + "very-" * 40 + "long"
    for out in ("run[final].jsonl", f"{folder}/rows.jsonl"):
        assert cli.main([*SMALL, "--out", out]) == 0
        assert f"rows: {out}" in capsys.readouterr().err.splitlines()


def test_the_bar_of_a_terminal_takes_brackets_as_text(in_empty_folder):
    Path("corpora[").mkdir()
    Path("corpora[/old].txt").write_text(
        "".join(f"the cat sat on the mat and the dog {i} ran away\n" for i in range(800))
    )
    command = ["run", "quick", "-t", "language_modelling", "-f", "numpy", "-m", "huffman", "-s", "decode_rows=0"]
    command += ["-s", "updates=2", "--dataset", "corpora[/old].txt", "--out", "rows.jsonl"]
    main, child = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "vocabench", *command], env=environment, stdout=child, stderr=child
    )
    os.close(child)
    shown = b""
    while True:
        try:
            shown += os.read(main, 4096)
        except OSError:  # the terminal is closed
            break
    assert process.wait() == 0, shown
    assert b"corpora[/old].txt" in shown
    assert b"perplexity" in shown


def test_the_reporter_prints_text_as_it_is(capsys):
    reporter.Reporter().note("[red]a[/nothing] :smile: " + "x" * 300)
    assert capsys.readouterr().err == "[red]a[/nothing] :smile: " + "x" * 300 + "\n"


def complete(*words):
    """Return what the completion of bash offers for the last word."""
    script = subprocess.run(
        [sys.executable, "-m", "vocabench", "completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout
    quoted = " ".join(f"'{word}'" for word in words)
    program = f'vocabench() {{ {sys.executable} -m vocabench "$@"; }}\n{script}\nCOMP_WORDS=({quoted})\n'
    program += f'COMP_CWORD={len(words) - 1}\n_vocabench\necho "${{COMPREPLY[@]}}"'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["vocabench", "ch"], ["check"]),
        (["vocabench", "run", "quick-"], ["quick-tasks"]),
        (["vocabench", "run", "quick", "-m", "sohsm,huf"], ["sohsm,huffman"]),
        (["vocabench", "run", "quick", "--dry"], ["--dry-run"]),
        (["vocabench", "run", "--executor", ""], ["local", "ray"]),
        (["vocabench", "list", "me"], ["methods"]),
        (["vocabench", "run", "--out", "x"], []),  # the shell completes paths
    ],
)
def test_bash_completes_commands_options_and_names(words, offered):
    assert complete(*words) == offered


def test_the_script_of_zsh_loads_what_it_needs(capsys):
    assert cli.main(["completion", "zsh"]) == 0
    assert "bashcompinit" in capsys.readouterr().out
