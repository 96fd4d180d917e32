"""The command as a user types it: exit codes, errors in one line, and no framework imported to list names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from vocabench.harness import cli, registry
from vocabench.harness.quantities import ROOFLINE


def vocabench(*arguments, cwd=None):
    """Run the command in a new process."""
    return subprocess.run(
        [sys.executable, "-m", "vocabench", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def imports_of(*arguments):
    """Return what the command prints, the top-level modules that it imports, and the seconds of importing them."""
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "vocabench", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    lines = [line for line in process.stderr.splitlines()[1:] if "|" in line]
    modules = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}
    seconds = max(int(line.split("|")[1]) for line in lines) / 1e6
    return process.stdout, modules, seconds


@pytest.mark.parametrize("kind", ["methods", "frameworks", "tasks", "datasets", "suites"])
def test_list_imports_no_framework(kind):
    printed, modules, seconds = imports_of("list", kind)
    assert len(printed.split()) >= 3
    assert not modules & {"torch", "tensorflow", "jax", "keras", "pandas"}
    assert seconds < 3  # a busy machine takes several times as long as a quiet one


@pytest.mark.parametrize("command", [None, *(command.name for command in cli.COMMANDS)])
def test_help_imports_nothing_heavy(command):
    printed, modules, seconds = imports_of(*([command] if command else []), "--help")
    assert printed.startswith("usage: vocabench")
    assert not modules & {"torch", "tensorflow", "jax", "keras", "pandas", "numpy", "scipy", "rich"}
    assert seconds < 0.5


def test_the_bare_command_shows_help_with_exit_codes_and_variables(in_empty_folder):
    process = vocabench(cwd=in_empty_folder)
    assert process.returncode == 0
    for text in ("examples:", "exit codes:", "VOCABENCH_DATA", "calibrate"):
        assert text in process.stdout


def test_version(in_empty_folder):
    process = vocabench("--version", cwd=in_empty_folder)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("vocabench")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "qick"], "unknown suite 'qick': did you mean 'quick'?"),
        (["run", "quick", "-m", "sohms"], "did you mean 'sohsm'"),
        (["run", "quick", "-f", "pytorch"], "unknown framework 'pytorch'"),
        (["run", "quick", "-v", "0"], "vocabulary of 0"),
        (["run", "quick", "-v", "1"], "vocabulary of 1"),
        (["run", "quick", "-v", "-3"], "vocabulary of -3"),
        (["run", "quick", "-v", "many"], "-v/--vocab: 'many': allowed: a whole number"),
        (["run", "quick", "--device", "tpu"], "unknown device 'tpu'"),
        (["run", "quick", "--dim", "0"], "--dim 0: allowed: a whole number from 1"),
        (["run", "quick", "--tokens", "-3"], "--tokens: '-3': allowed: a whole number from 0"),
        (["run", "gpu", "-f", "numpy", "--precision", "float64", "--device", "cuda"], "numpy has none here"),
        (["run", "quick", "--dataset", "pydocs", "-t", "language_modelling"], "pydocs"),
        (["run", "quick", "-o", "projection"], "allowed: NAME=VALUE"),
        (["run", "quick", "-s", "epochs=1", "-s", "epochs=2"], "--set epochs is given twice"),
        (["run", "quick", "-f", "numpy", "-t", "agreement", "--out", "/dev/null"], "/dev/null is not a regular file"),
        (["run", "quick", "--seed", "1", "--seed", "2"], "--seed is given twice: allowed: once"),
        (["run", "quick", "--seeds", "0"], "--seeds 0: allowed: a whole number from 1 to 1000"),
        (["run", "quick", "--seeds", "3", "--seed", "1"], "--seed and --seeds: allowed: one of them"),
        (["table", "--clusters", "-3"], "'-3': allowed: a whole number from 0"),
        (["table", "--examples", "1.5"], "'1.5': allowed: a whole number from 0"),
        (["data", "list", "pydoc"], "data list pydoc: allowed"),
        (["run", "quick", "--out", "/proc/rows.jsonl", "-f", "numpy", "-t", "agreement"], "/proc"),
        (["table", "--run", "nowhere.jsonl"], "No such file"),
        (["table", "--format", "pdf"], "unknown format 'pdf'"),
        (
            ["table", "--run", "a.jsonl", "--run", "b.jsonl"],
            "2 results files: allowed: one, or several with --against published",
        ),
        (["table", "--against", "publshed"], "unknown --against 'publshed': did you mean 'published'?"),
        (["table", "--against", "published"], "no run below"),
        (["table", "--against", "published", "--run", "nowhere.jsonl"], "No such file"),
        (["table", "--against", "published", "--plot", "x.svg"], "has no plot"),
        (["table"], "no run below"),
        (["export", "nowhere.jsonl"], "No such file"),
        (["export"], "required: run"),
        (["data", "get", "txt8"], "did you mean 'text8'"),
        (["list", "everything"], "unknown kind 'everything': allowed: "),
        (["tabel"], "unknown command 'tabel': did you mean 'table'?"),
        (["run", "--devize", "cpu"], "unknown option '--devize': did you mean '--device'?"),
        (["run", "quick", "slow"], "argument 'slow': one too many"),
        (["run", "quick", "-m", "sohsm,hufman"], "unknown method 'hufman': did you mean 'huffman'?"),
        (["run", "quick", "-m", "SOHSN"], "did you mean 'sohsm'?"),
        (["run", "quick", "-m", "sohsm,"], "argument -m/--method: it is empty"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(arguments, message, in_empty_folder, capsys):
    assert cli.main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_mistake_ends_the_process_with_exit_code_2(in_empty_folder):
    process = vocabench("run", "qick", cwd=in_empty_folder)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("vocabench: unknown suite 'qick': did you mean 'quick'?")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "quick", "--seed", "１２"], "--seed: '１２': allowed: a whole number"),
        (["run", "quick", "-t", "timing", "-f", "numpy", "-s", "rounds=1_0"], "rounds='1_0': allowed: a whole number"),
        (["table", "--clusters", "３"], "'３': allowed: a whole number"),
        (["run", "quick", "--dataset", ""], "argument --dataset: it is empty"),
        (["run", "quick", "--out="], "argument --out: it is empty"),
        (["run", ""], "argument suite: it is empty"),
        (["check", "--out", ""], "argument --out: it is empty"),
        (["table", "--run", ""], "argument --run: it is empty"),
        (["table", "--plot", ""], "argument --plot: it is empty"),
        (["table", "-f", ""], "argument -f/--framework: it is empty"),
        (["report", "--title", ""], "argument --title: it is empty"),
        (["data", "verify", ""], "argument name: it is empty"),
        (["compare", "", "b.jsonl"], "argument A: it is empty"),
        (["export", "a.jsonl", ""], "argument run: it is empty"),
    ],
)
def test_empty_arguments_and_numbers_in_other_digits_are_refused(arguments, message, in_empty_folder, capsys):
    assert cli.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_errors_with_unprintable_names_are_one_line(in_empty_folder, capsys):
    for name in ("two\nlines", "a\x1b[31mred", "a\u2028b", "half\ud800", "nul\0"):
        assert cli.main(["table", "--run", name]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.isprintable()


def list_methods_to(stdout, unbuffered):
    """Return the exit code and the errors of a listing that is written to `stdout`."""
    process = subprocess.run(
        [sys.executable, "-m", "vocabench", "list", "methods"],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    return process.returncode, process.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_not_an_error(unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    assert list_methods_to(writing, unbuffered) == (141, "")
    os.close(writing)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_reported_in_one_line(unbuffered):
    with open("/dev/full", "w") as full:
        assert list_methods_to(full, unbuffered) == (2, "vocabench: No space left on device\n")


def test_verify_reports_that_no_dataset_is_here(monkeypatch, capsys):
    from vocabench.harness.datasets.shared import catalogue

    monkeypatch.setattr(catalogue, "describe", list)
    assert cli.main(["data", "verify"]) == 0
    assert "no dataset is here" in capsys.readouterr().out


def test_a_system_error_without_a_file_name_is_one_line(monkeypatch, capsys):
    def fail():
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(registry, "tasks", fail)
    assert cli.main(["list", "tasks"]) == 2
    assert capsys.readouterr().err == "vocabench: Invalid argument\n"


def test_a_run_and_its_tables(in_empty_folder, capsys):
    selection = ["-f", "numpy", "-m", "full_softmax", "-m", "huffman", "--precision", "float64", "-v", "50"]
    selection += ["-t", "timing", "-s", "budget=0"]
    selection += [
        "-s",
        "quantities=layer_seconds,layer_step_seconds,topk_seconds,beam_seconds,sample_seconds,step_seconds,peak_bytes",
    ]
    first = vocabench("run", "quick", *selection, cwd=in_empty_folder)
    assert first.returncode == 0, first.stderr
    assert "| full_softmax | numpy" in first.stdout
    (path,) = (in_empty_folder / "results" / "local").glob("*.jsonl")
    content = path.read_text()
    assert len({json.loads(line)["key"] for line in content.splitlines()}) == 2
    second = vocabench("run", "quick", *selection, cwd=in_empty_folder)
    assert "2 of 2 cells are in" in second.stderr
    assert path.read_text() == content

    for text_format, start in (
        ("markdown", "### Speed"),
        ("latex", r"\begin{tabular}"),
        ("html", "<table"),
        ("csv", "suite,"),
    ):
        assert cli.main(["table", "--format", text_format]) == 0
        assert start in capsys.readouterr().out
    assert cli.main(["table", "--format", "json", "-m", "huffman"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {r["method"] for r in records} == {"huffman"}
    training = {"layer_seconds", "layer_step_seconds", "step_seconds", "peak_bytes", "compile_seconds", "parameters"}
    decoding = {"topk_seconds", "topk1_seconds", "expanded_share", "beam_seconds", "beam_recall", "sample_seconds"}
    assert {r["quantity"] for r in records} == training | decoding | set(ROOFLINE)
    (layer,) = [r for r in records if r["quantity"] == "layer_seconds"]
    assert layer["ratio_low"] <= layer["ratio_to_full_softmax"] <= layer["ratio_high"]
    assert (layer["agreement"], layer["status"], layer["unit"], layer["better"]) == ("agree", "ok", "s", "lower")

    path.write_text(path.read_text()[:-100])
    assert cli.main(["table"]) == 2
    assert "cut in the middle" in capsys.readouterr().err


def test_a_method_without_a_layer_is_given_by_its_name(in_empty_folder, capsys):
    for split in ("train", "valid"):
        (in_empty_folder / f"{split}.txt").write_text("a b c d e\n" * 50)
    assert cli.main(["list", "methods"]) == 0
    assert {"huffman", "unigram", "lead", "glove"} <= set(capsys.readouterr().out.split())
    selection = ["-m", "unigram", "-m", "glove", "-f", "torch", "--dataset", str(in_empty_folder)]
    assert cli.main(["run", "quick", *selection, "--out", "rows.jsonl"]) == 0
    output = capsys.readouterr()
    assert "left out, because no task of the suite has them: glove" in " ".join(output.err.split())
    (row,) = map(json.loads, (in_empty_folder / "rows.jsonl").read_text().splitlines())
    assert (row["cell"]["framework"], row["cell"]["method"], row["status"]) == ("numpy", "unigram", "ok")
    assert cli.main(["table", "--run", "rows.jsonl", "-m", "unigram"]) == 0
    assert "| unigram | numpy" in capsys.readouterr().out
    assert cli.main(["compare", "rows.jsonl", "rows.jsonl"]) == 0
    assert "unigram" in capsys.readouterr().out
    assert cli.main(["report", "--run", "rows.jsonl", "--out", "report.html"]) == 0
    assert "unigram" in (in_empty_folder / "report.html").read_text()
    assert cli.main(["check", "-m", "unigram"]) == 2
    assert "none of its tasks measures unigram: allowed: a suite" in capsys.readouterr().err


def test_a_run_reports_rows_that_other_code_measured(in_empty_folder, capsys):
    command = ["run", "check", "-f", "numpy", "-m", "huffman", "-s", "training=false", "--out", "rows.jsonl"]
    assert cli.main(command) == 0
    assert "other code" not in capsys.readouterr().err
    path = in_empty_folder / "rows.jsonl"
    row = json.loads(path.read_text())
    row["provenance"]["code"]["fingerprint"] = "0" * 12
    path.write_text(json.dumps(row) + "\n")
    assert cli.main(command) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert "1 cells of rows.jsonl were measured by other code: another --out measures them anew" in printed


@pytest.mark.skipif("jax" not in registry.installed_frameworks(), reason="needs JAX")
def test_a_run_reports_methods_that_a_framework_lacks(in_empty_folder, capsys):
    assert cli.main(["run", "quick", "-t", "timing", "-f", "jax", "-m", "compiled_cross_entropy"]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert "left out, because jax does not have them: compiled_cross_entropy" in printed
    assert "no cell left" in printed


def test_input_refused_by_a_cell_exits_with_2_and_keeps_its_row(in_empty_folder, capfd):
    Path("text.txt").write_text("a b c d\n" * 100)
    command = ["run", "quick", "-t", "language_modelling", "-f", "numpy", "-m", "full_softmax", "--dataset", "text.txt"]
    assert cli.main([*command, "-s", "batch=400", "--out", "rows.jsonl"]) == 2
    errors = capfd.readouterr().err
    assert "too short for 400 rows" in errors
    assert "Traceback" not in errors
    (row,) = map(json.loads, Path("rows.jsonl").read_text().splitlines())
    assert row["status"] == "refused"


def test_check_reports_what_disagrees_and_exits_with_1(in_empty_folder, monkeypatch, capsys):
    """The worker process gets a layer with one sign flipped."""
    site = in_empty_folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import vocabench.impls.on_numpy.methods.huffman as huffman\n"
        "real = huffman.LAYER._target_log_probs\n"
        "import vocabench.impls.on_numpy.adapter as adapter, dataclasses\n"
        "create_correct = adapter.create_layer\n"
        "layers = []\n"
        "def create(spec, device='cpu'):\n"
        "    layer = create_correct(spec, device)\n"
        "    layers.append(layer)\n"
        "    if spec.method == 'huffman' and len(layers) % 2:\n"  # the layer under test, not its oracle
        "        layer._target_log_probs = lambda h, t: -real(layer, h, t)\n"
        "    return layer\n"
        "adapter.create_layer = create\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    code = cli.main(["check", "-f", "numpy", "-m", "huffman", "--precision", "float64", "--out", "rows.jsonl"])
    printed = capsys.readouterr().out
    assert code == 1
    assert "agreement numpy huffman" in printed
    assert "target_log_probs DISAGREES" in printed
    assert "loss DISAGREES" not in printed


def test_check_measures_again_what_its_file_holds(in_empty_folder, capsys):
    command = ["check", "-f", "numpy", "-m", "full_softmax", "--precision", "float64", "--out", "rows.jsonl"]
    for rows in (1, 2):
        assert cli.main(command) == 0
        assert "1 of 1 cells agree" in capsys.readouterr().out
        assert len((in_empty_folder / "rows.jsonl").read_text().splitlines()) == rows


def test_info_shows_how_to_install_what_is_missing(in_empty_folder, monkeypatch, capsys):
    monkeypatch.setattr(registry, "is_installed", lambda name: name == "numpy")
    assert cli.main(["info"]) == 0
    printed = capsys.readouterr().out
    assert "numpy       cpu: numpy" in printed
    for framework in set(registry.frameworks()) - {"numpy"}:
        assert f"missing: {registry.install_line(framework)}" in printed


def test_a_missing_framework_is_refused_with_the_command_that_installs_it(monkeypatch, capsys):
    monkeypatch.setattr(registry, "frameworks", lambda: ["numpy", "absent"])
    assert cli.main(["run", "quick", "-f", "absent"]) == 2
    assert "install it with 'pip install -c constraints.txt absent'" in capsys.readouterr().err
