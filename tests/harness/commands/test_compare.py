"""`vocabench compare`: exit codes, formats and mistakes; a planted slowdown on this machine."""

import json
import re
import time

import numpy as np
import pytest

from tests import ROOT
from tests.harness.compare.runs import FACTORS, cell, perplexity, row, run, timed, verdicts
from vocabench.harness import cli, layers
from vocabench.harness.compare import gate
from vocabench.harness.measure import timing
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run.cells import Selection, Suite
from vocabench.harness.run.store import Store


@pytest.fixture
def files(in_empty_folder):
    def write(name, rows):
        path = in_empty_folder / name
        path.parent.mkdir(exist_ok=True)
        with Store(path) as store:
            for each in rows:
                store.append(each)
        return str(path)

    return write


def test_the_command_s_exit_codes_and_formats(files, capsys, in_empty_folder):
    rng = np.random.default_rng(10)
    before, slow = files("a.jsonl", run(rng, FACTORS)), files("b.jsonl", run(rng, FACTORS | {"sohsm": 0.2}))
    assert cli.main(["compare", before, before]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("same or better: ")
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


def test_a_folder_stands_for_runs_of_the_same_code(files, capsys):
    rng = np.random.default_rng(11)
    for number in (1, 2):
        files(f"before/{number}.jsonl", run(rng, FACTORS))
        files(f"after/{number}.jsonl", run(rng, FACTORS | {"huffman": 0.06}))
    assert cli.main(["compare", "before", "after"]) == 1
    assert cli.main(["compare", "before", "before"]) == 0


def test_runs_of_other_code_or_definitions_are_not_taken_for_one_side(files, capsys):
    rng = np.random.default_rng(16)
    times = {side: 0.1 * np.exp(rng.normal(0, 0.01, 21)) for side in ("baseline", "own")}

    def code(fingerprint, definition):
        found = row(cell(), timed(times["baseline"], times["own"], detail={"timing": definition}))
        return found | {"provenance": found["provenance"] | {"code": {"fingerprint": fingerprint}}}

    for folder, second, told in (
        ("code", code("bbb", 3), "code aaa and bbb"),
        ("definitions", code("aaa", 2), "layer_seconds by definition 3 and 2"),
    ):
        first = files(f"{folder}/1.jsonl", [code("aaa", 3)])
        files(f"{folder}/2.jsonl", [second])
        for pair in ([first, folder], [folder, first]):
            assert cli.main(["compare", *pair]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert folder in line
            assert told in line
            assert "allowed: " in line
    assert cli.main(["compare", "code/1.jsonl", "code/2.jsonl"]) == 0


def test_rows_of_another_schema_are_not_comparable(files, capsys, in_empty_folder):
    path = files("a.jsonl", [perplexity(1.0)])
    (in_empty_folder / "old.jsonl").write_text(json.dumps(perplexity(1.0) | {"schema": 99}) + "\n")
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
        (["a.jsonl", "other.jsonl"], "no cell: missing"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(files, capsys, in_empty_folder, arguments, message):
    files("a.jsonl", [perplexity(1.0)])
    files("other.jsonl", [perplexity(1.0) | {"cell": {}}])
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
def test_odd_rows_are_no_traceback(files, in_empty_folder, place, value):
    rows = [{"schema": 1, **each} for each in run(np.random.default_rng(14), FACTORS, rounds=7)]
    good = files("good.jsonl", rows)
    for number in (0, 1):
        odd = json.loads(json.dumps(rows))
        inner = odd[number]
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value
        (in_empty_folder / "odd.jsonl").write_text("".join(json.dumps(each) + "\n" for each in odd))
        for pair in ([good, "odd.jsonl"], ["odd.jsonl", good]):
            assert cli.main(["compare", *pair]) in (0, 1, 2, 3)


def test_the_example_s_commands_are_ours():
    text = (ROOT / "docs" / "examples" / "github-actions.yml").read_text()
    (cells,) = re.findall(r"^  CELLS: (.*)$", text, re.MULTILINE)
    parsed = cli._parser().parse_args(["run", *cells.split(), "--out", "x.jsonl"])
    selection = Selection(
        frameworks=["numpy"],
        methods=parsed.method,
        vocab=parsed.vocab,
        tasks=parsed.task,
        settings=dict(each.split("=") for each in parsed.set),
    )
    assert {each.task for each in Suite.load(parsed.suite).cells(selection)} == {"timing"}
    assert cli._parser().parse_args(["compare", "rows/base", "rows/head", "--out", "gate.md"]).before == "rows/base"


ROUNDS, RUNS, TRIALS = 21, 3, 20


@pytest.mark.slow
def test_on_this_machine_ten_percent_is_caught_and_none_is_not():
    """Real layers, timed as the harness does, three runs a side in turns. A call takes a fraction of a millisecond, so
    that most run between two interruptions by whatever else the machine does."""
    counts = zipf_counts(300)
    inputs = batch(counts, tokens=16, dim=32, seed=0)

    def work(method):
        layer = layers.create("numpy", method, counts=counts, dim=32, seed=0, dtype="float64")
        return layer.prepare("layer", inputs.hidden_ND, inputs.targets_N)

    def slowed(call):
        """A tenth of the call's own time in busy work after it."""

        def both():
            start = time.perf_counter()
            call()
            end = time.perf_counter()
            stop = end + 0.1 * (end - start)
            while time.perf_counter() < stop:
                pass

        return both

    def measure(planted):
        rows = []
        for method in ("full_softmax", "huffman"):
            own = slowed(work(method)) if planted and method == "huffman" else work(method)
            found = timing.paired([work("full_softmax")], [own], rounds=ROUNDS, budget_seconds=60)
            rows.append(row(cell(method), timed(found.baseline.samples, found.other.samples)))
        return rows

    alarms, caught = [], 0
    for _ in range(TRIALS):
        before, again, planted = [], [], []
        for _ in range(RUNS):  # in turns, so that no side has the machine at another time of the day
            before += measure(False)
            again += measure(False)
            planted += measure(True)
        alarms += [each for each in gate.compare(before, again, gate.Limits()) if each.verdict == gate.WORSE]
        caught += verdicts(gate.compare(before, planted, gate.Limits()))["huffman", "layer_seconds"] == gate.WORSE
    assert not alarms
    assert caught == TRIALS
