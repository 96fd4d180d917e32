"""`vocabench compare`: exit codes, formats and mistakes, and the detection of a real slowdown on this machine."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

from tests import ROOT
from tests.harness.compare.runs import FACTORS, cell, perplexity, row, run, timed, verdicts
from tests.rows import write_json
from vocabench.harness import cli, layers, registry
from vocabench.harness.compare import gate
from vocabench.harness.measure import timing
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.store import Store
from vocabench.harness.run.suites import Suite


@pytest.fixture
def files(in_empty_folder):
    def write(name, rows):
        path = in_empty_folder / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        with Store(path) as store:
            for stored in rows:
                store.append(stored)
        return str(path)

    return write


def test_exit_codes_and_formats(files, capsys, in_empty_folder):
    rng = np.random.default_rng(10)
    before, slow = files("a.jsonl", run(rng, FACTORS)), files("b.jsonl", run(rng, FACTORS | {"sohsm": 0.2}))
    assert cli.main(["compare", before, before]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("level or better: ")
    assert cli.main(["compare", before, slow, "--out", "gate.md"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| worse ")
    assert "+100" in lines[2] or "+9" in lines[2]
    assert lines[-1].startswith("worse: 1 worse")
    assert (in_empty_folder / "gate.md").read_text().splitlines() == lines
    assert cli.main(["compare", before, slow, "--format", "json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["verdict"] == "worse"
    assert content["findings"][0]["quantity"] == "layer_seconds"
    assert cli.main(["compare", before, slow, "--threshold", "0.5"]) == 1
    assert cli.main(["compare", before, files("c.jsonl", run(rng, FACTORS, vocab=7))]) == 3
    assert cli.main(["compare", before, files("empty.jsonl", [])]) == 3
    assert cli.main(["compare", before, before, "--frameworks", "jax,torch"]) == 3
    assert capsys.readouterr().out.splitlines()[-1] == "not comparable: nothing shared"


def test_a_damaged_line_costs_that_line_and_one_line_on_the_terminal(files, capsys, in_empty_folder):
    path = in_empty_folder / files("a.jsonl", run(np.random.default_rng(3), FACTORS))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:200] + "\n" + lines[2])
    for command in (["compare", "a.jsonl", "a.jsonl"], ["table", "--run", "a.jsonl"], ["report", "--run", "a.jsonl"]):
        assert cli.main(command) == 0
        printed = capsys.readouterr()
        assert (
            printed.err == "vocabench: warning: results file a.jsonl, line 2: not a JSON row: this line is left out\n"
        )
        assert "huffman" in printed.out or command[0] == "report"


def test_many_rows_ask_the_disk_for_names_once(in_empty_folder, monkeypatch, capsys):
    """The rows of results/ with other seeds and sizes, as in a results file of 20,000 rows, which takes seconds."""
    lines = [json.loads(line) for line in (ROOT / "results" / "archive" / "quick.jsonl").read_text().splitlines()]
    with (in_empty_folder / "many.jsonl").open("w") as file:
        for number in range(5):
            for line in lines:
                varied = {**line["cell"], "seed": number, "vocab": line["cell"]["vocab"] + number}
                file.write(json.dumps({**line, "cell": varied, "key": Cell.from_json(varied).key}) + "\n")
    folders = []
    real = Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, pattern: folders.append(str(path)) or real(path, pattern))
    registry._own_names.cache_clear()
    for command in (["compare", "many.jsonl", "many.jsonl"], ["table", "--run", "many.jsonl"]):
        assert cli.main(command) == 0
    assert len(folders) == len(set(folders)) < 10
    assert capsys.readouterr().err == ""


def test_a_folder_is_read_as_runs_of_the_same_code(files, capsys):
    rng = np.random.default_rng(11)
    for number in (1, 2, 3):
        files(f"before/{number}.jsonl", run(rng, FACTORS))
        files(f"after/{number}.jsonl", run(rng, FACTORS | {"huffman": 0.06}))
    assert cli.main(["compare", "before", "after"]) == 1
    assert cli.main(["compare", "before", "before"]) == 0


def test_unclear_changes_fail_on_request(files, capsys):
    """A planted slowdown that noise hides must not pass where it matters."""
    rng = np.random.default_rng(12)
    for number in range(3):
        files(f"a/{number}.jsonl", run(rng, FACTORS))
        files(f"noisy/{number}.jsonl", run(rng, FACTORS | {"sohsm": 0.1 * np.exp(rng.normal(0.06, 0.1))}))
    assert cli.main(["compare", "a", "noisy"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| unclear ")]
    (line,) = [line for line in lines if "sohsm" in line]
    header = ["", "verdict", "cell", "quantity", "before", "after", "change", "interval", "detectable", "reason", ""]
    detectable = line.split("|")[header.index("detectable")]
    assert re.fullmatch(r" +\d+ % +", detectable)
    assert cli.main(["compare", "a", "noisy", "--fail-on-unclear"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("unclear: ")


def test_runs_of_different_code_or_definitions_are_refused_as_one_side(files, capsys):
    rng = np.random.default_rng(16)
    times = {side: 0.1 * np.exp(rng.normal(0, 0.01, 21)) for side in ("baseline", "other")}

    def code(fingerprint, definition):
        measurement = timed(times["baseline"], times["other"], detail={"timing": definition})
        return row(cell(), measurement, code={"fingerprint": fingerprint})

    for folder, second, reason in (
        ("code", code("bbb", 3), "code aaa and bbb"),
        ("definitions", code("aaa", 2), "layer_seconds by definition 3 and 2"),
    ):
        first = files(f"{folder}/1.jsonl", [code("aaa", 3)])
        files(f"{folder}/2.jsonl", [second])
        for pair in ([first, folder], [folder, first]):
            assert cli.main(["compare", *pair]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert folder in line
            assert reason in line
            assert "allowed: " in line
    assert cli.main(["compare", "code/1.jsonl", "code/2.jsonl"]) == 0


def test_rows_of_another_schema_are_not_comparable(files, capsys, in_empty_folder):
    path = files("a.jsonl", [perplexity(1.0)])
    write_json(in_empty_folder / "old.jsonl", [perplexity(1.0).to_json() | {"schema": 99}])
    assert cli.main(["compare", path, "old.jsonl"]) == 3
    assert "schema version 99" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.jsonl"], "required"),
        (["a.jsonl", "nowhere.jsonl"], "No such file"),
        (["a.jsonl", "broken.jsonl"], "not a JSON row"),
        (["a.jsonl", "a.jsonl", "--threshold", "5"], "--threshold 5"),
        (["a.jsonl", "a.jsonl", "--threshold", "nan"], "--threshold: 'nan': allowed: a number"),
        (["a.jsonl", "a.jsonl", "--quality-threshold", "-0.1"], "--quality-threshold -0.1"),
        (["a.jsonl", "a.jsonl", "--threshold", "much"], "--threshold: 'much': allowed: a number"),
        (["a.jsonl", "a.jsonl", "--format", "html"], "unknown format 'html'"),
        (["a.jsonl", "a.jsonl", "--frameworks", "jax"], "two of them"),
        (["a.jsonl", "a.jsonl", "--frameworks", "jax,jax"], "two of them"),
        (["a.jsonl", "a.jsonl", "--frameworks", "jax,pytorch"], "unknown framework 'pytorch'"),
        (["a.jsonl", "folder"], "no results file"),
        (["a.jsonl", "other.jsonl"], "not a cell: missing"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(files, capsys, in_empty_folder, arguments, message):
    files("a.jsonl", [perplexity(1.0)])
    write_json(in_empty_folder / "other.jsonl", [perplexity(1.0).to_json() | {"cell": {}}])
    (in_empty_folder / "broken.jsonl").write_text("{\n")
    (in_empty_folder / "folder").mkdir()
    assert cli.main(["compare", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["key"], []),
        (["measurements", 0, "samples", 0], 1e308),
        (["measurements", 0, "samples"], []),
        (["measurements", 0, "ratio", "low"], -1.5),
        (["measurements", 0, "ratio", "baseline_samples"], [0.0, None]),
        (["measurements", 0, "value"], None),
        (["measurements", 0, "unit"], 3),
        (["provenance", "machine"], "none"),
        (["cell", "settings"], {"rounds": {}}),
        (["cell", "task"], "no_longer"),
        (["status"], 3),
    ],
)
def test_invalid_rows_never_raise(files, in_empty_folder, place, value):
    rows = run(np.random.default_rng(14), FACTORS, rounds=7)
    valid = files("valid.jsonl", rows)
    for number in (0, 1):
        changed = [json.loads(json.dumps(stored.to_json())) for stored in rows]
        inner = changed[number]
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value
        write_json(in_empty_folder / "changed.jsonl", changed)
        for pair in ([valid, "changed.jsonl"], ["changed.jsonl", valid]):
            assert cli.main(["compare", *pair]) in (0, 1, 2, 3)


def test_the_commands_of_the_github_example_are_valid():
    text = (ROOT / "docs" / "examples" / "github-actions.yml").read_text()
    (cells,) = re.findall(r"^  CELLS: (.*)$", text, re.MULTILINE)
    parsed = cli._parser().parse_args(["run", *cells.split(), "--out", "x.jsonl"])
    selection = Selection(
        frameworks=["numpy"],
        methods=parsed.method,
        vocab=parsed.vocab,
        tasks=parsed.task,
        settings=dict(setting.split("=") for setting in parsed.set),
    )
    assert {measured.task for measured in Suite.load(parsed.suite).cells(selection)} == {"timing"}
    assert cli._parser().parse_args(["compare", "rows/base", "rows/head", "--out", "gate.md"]).before == "rows/base"


ROUNDS, RUNS, TRIALS = 21, 3, 20


@pytest.mark.slow
def test_a_slowdown_of_ten_percent_is_detected_on_this_machine_without_false_alarms():
    """Real layers are timed as the harness times them, with three alternating runs per side.

    A call takes a fraction of a millisecond, so that most calls fit between two interruptions by other processes.
    """
    counts = zipf_counts(300)
    inputs = batch(counts, tokens=16, dim=32, seed=0)

    def work(method):
        layer = layers.create("numpy", method, counts=counts, dim=32, seed=0, dtype="float64")
        return layer.prepare("layer", inputs.hidden_ND, inputs.targets_N)

    def slowed(call):
        """Add busy work of a tenth of the call's own time."""

        def slowed_call():
            start = time.perf_counter()
            call()
            end = time.perf_counter()
            stop = end + 0.1 * (end - start)
            while time.perf_counter() < stop:
                pass

        return slowed_call

    def measure(slowdown):
        rows = []
        for method in ("full_softmax", "huffman"):
            other = slowed(work(method)) if slowdown and method == "huffman" else work(method)
            result = timing.paired([work("full_softmax")], [other], rounds=ROUNDS, budget_seconds=60)
            rows.append(row(cell(method), timed(result.baseline.samples, result.other.samples)))
        return rows

    false_alarms, detected = [], 0
    for _ in range(TRIALS):
        before, same, slower = [], [], []
        for _ in range(RUNS):  # alternating, so that the machine's load changes for all of them
            before += measure(False)
            same += measure(False)
            slower += measure(True)
        findings = gate.compare(before, same, gate.Limits())
        false_alarms += [finding for finding in findings if finding.verdict == gate.WORSE]
        detected += verdicts(gate.compare(before, slower, gate.Limits()))["huffman", "layer_seconds"] == gate.WORSE
    assert not false_alarms
    assert detected == TRIALS
