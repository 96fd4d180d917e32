"""asv's history: what it keeps of a row, rows exported to it, and that it sees what became worse."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from asv.results import Results
from asv_runner.statistics import compute_stats

from benchmarks import layers, quality
from benchmarks._rows import Cell as Known
from benchmarks._rows import LookUp, Score
from harness import cli, history, memory, timing
from harness.cells import Cell, Selection, Suite
from harness.quantities import NOT_JUDGED, Measurement
from harness.store import Store

ROOT = Path(__file__).resolve().parents[2]
TIMES = [0.011, 0.010, 0.012, 0.010, 0.013, 0.011, 0.010, 0.015, 0.011]
FULL = [0.10, 0.11, 0.12, 0.10, 0.10, 0.11, 0.10, 0.10, 0.11]
RATIO = {"value": 9.0, "low": 8.0, "high": 10.0, "samples": [], "baseline_samples": FULL}
LAYER = Measurement("layer_seconds", 0.0111, samples=TIMES, ratio=RATIO)
MACHINE = {"cpu": "A Processor (R)", "cores": 2, "memory_bytes": 2**34, "system": "Linux 6", "python": "3.11.7"}


def row(
    *measurements,
    task="timing",
    method="huffman",
    commit="c" * 40,
    dirty: bool | None = False,
    status="ok",
    machine=MACHINE,
    **fields,
):
    vocab = fields.pop("vocab", 100)
    cell = Cell("quick", task, fields.pop("framework", "torch"), method, vocab, 8, 64, **fields)
    return {
        "schema": 1,
        "key": cell.key,
        "cell": cell.to_json(),
        "status": status,
        "message": "no memory" if status == "oom" else "",
        "measurements": [each.to_json() for each in measurements] if status in ("ok", "disagree") else [],
        "agreement": {},
        "provenance": {
            "code": {"commit": commit, "dirty": dirty},
            "machine": machine,
            "framework": {"torch": "2.13.0", "threads": "2", "device_name": "x86_64"},
        },
    }


def test_a_time_is_its_rounds_and_a_share_of_full_softmax():
    found = history.figures(row(LAYER))
    assert found.keys() == {"layer_seconds", "relative_layer_seconds"}
    assert found["layer_seconds"] == TIMES
    assert found["relative_layer_seconds"] == pytest.approx([t / f for t, f in zip(TIMES, FULL, strict=True)])
    assert history.figures(row(LAYER, method="full_softmax")).keys() == {"layer_seconds"}


def test_steps_in_flight_have_a_name_of_their_own():
    measured = Measurement("layer_seconds", 0.0111, samples=TIMES, ratio=RATIO, detail={"timing": 4})
    found = history.figures(row(measured, device="cuda"))
    assert found.keys() == {"in_flight_layer_seconds", "relative_in_flight_layer_seconds"}
    assert {history.definition(row(measured), figure) for figure in found} == {4}
    awaited = Measurement("topk_seconds", 0.1, samples=TIMES, ratio=RATIO, detail={"timing": 3})
    assert history.figures(row(awaited, device="cuda")).keys() == {"topk_seconds", "relative_topk_seconds"}


def test_the_machine_s_and_the_method_s_figures_are_no_history():
    others = [Measurement(quantity, 0.1) for quantity in NOT_JUDGED]
    assert NOT_JUDGED
    assert history.figures(row(LAYER, *others)).keys() == history.figures(row(LAYER)).keys()


def test_a_score_is_one_sample_of_which_lower_is_better():
    cer = Measurement("cer", 0.25, samples=[0.0, 0.0, 1.0])
    rouge = Measurement("rouge1_f1", 0.9, samples=[1.0, 0.8])
    assert history.figures(row(cer, rouge)) == {"cer": [0.25], "one_minus_rouge1_f1": [pytest.approx(0.1)]}
    nothing = row(cer)
    nothing["measurements"][0]["value"] = None  # not a number, in JSON
    assert history.figures(nothing) == {}


def test_what_disagrees_has_no_speed():
    found = history.figures(row(LAYER, Measurement("agreement_error", 3.0), status="disagree"))
    assert found == {"agreement_error": [3.0]}


@pytest.mark.parametrize(
    ("figure", "unit"),
    [
        ("layer_seconds", "seconds"),
        ("peak_bytes", "bytes"),
        ("relative_topk_seconds", "full softmax's"),
        ("in_flight_layer_seconds", "seconds"),
        ("relative_in_flight_layer_seconds", "full softmax's"),
        ("one_minus_rougeL_f1", "1"),
    ],
)
def test_units_are_those_that_asv_scales(figure, unit):
    assert history.unit(figure) == unit


def look_ups():
    found = [value for module in (layers, quality) for value in vars(module).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, LookUp) and hasattr(value, "figure")]


@pytest.mark.parametrize("look_up", look_ups(), ids=lambda value: value.__name__)
def test_a_benchmark_is_named_by_its_figure_and_has_its_unit(look_up):
    assert callable(getattr(look_up, f"track_{look_up.figure}"))
    assert look_up.unit == history.unit(look_up.figure)


@pytest.mark.parametrize("look_up", look_ups(), ids=lambda value: value.__name__)
def test_a_benchmark_s_version_is_its_definition(look_up):
    timed, counted = str(timing.DEFINITION), f"counting {memory.DEFINITION}"
    recorded = {"seconds": timed, "full softmax's": timed, "bytes": counted}
    assert look_up.version == recorded.get(look_up.unit, Score.version)
    assert issubclass(look_up, Score) == (look_up.unit not in recorded)


def test_every_quantity_of_the_history_is_there():
    expected = {"layer_seconds", "peak_bytes", "agreement_error", "perplexity", "cer", "per"}
    expected |= {f"one_minus_rouge{n}_f1" for n in "12L"}
    assert expected <= {each.figure for each in look_ups()}


def test_a_cell_that_is_missing_is_skipped_and_one_that_failed_fails():
    known = {("torch", "huffman"): Known({"per": [0.5]}), ("jax", "huffman"): Known(failure="oom: no memory")}
    benchmark = quality.PhoneErrorRate()
    benchmark.setup(known, "torch", "huffman")
    assert benchmark.track_per(known, "torch", "huffman") == {"samples": [0.5], "number": 1}
    with pytest.raises(NotImplementedError):
        benchmark.setup(known, "tensorflow", "huffman")
    benchmark.setup(known, "jax", "huffman")
    with pytest.raises(RuntimeError, match="oom: no memory"):
        benchmark.track_per(known, "jax", "huffman")


@pytest.mark.parametrize("task", ["agreement", "timing"])
def test_the_suite_measures_what_is_looked_up(task):
    cells = Suite.load("asv").cells(Selection(tasks=[task], frameworks=["numpy"]))
    benchmark = layers.Agreement if task == "agreement" else layers.ForwardBackward
    assert {cell.method for cell in cells} >= set(benchmark.params[1])


@pytest.fixture
def repository(in_empty_folder):
    """An empty one with two commits."""
    git("init", "--quiet", "--initial-branch=main")
    return [commit(f"number {number}") for number in range(2)]


def git(*arguments):
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@localhost", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(message):
    git("commit", "--quiet", "--allow-empty", "--message", message)
    return git("rev-parse", "HEAD")


def export(*rows, more=(), name="rows.jsonl"):
    Path(name).unlink(missing_ok=True)
    with Store(Path(name)) as store:
        for each in rows:
            store.append(each)
    return cli.main(["export", name, "--out", "exported", *more])


def exported(pattern="*"):
    return sorted(path for path in Path("exported").glob(f"*/{pattern}.json") if path.name != "machine.json")


def test_asv_reads_what_was_exported(repository):
    perplexity = Measurement("perplexity", 107.5)
    first, second = row(LAYER, commit=repository[0]), row(LAYER, commit=repository[0], method="sohsm", vocab=200)
    third = row(
        perplexity,
        commit=repository[0],
        task="language_modelling",
        dataset="/home/me/novels",
        dataset_sha256="392cfeea" * 8,
        settings={"epochs": 3, "rounds": 6, "layer_folder": "/home/me/layers"},
    )
    assert export(first, second, third) == 0
    (path,) = exported()
    assert path.parent.name == "A-Processor-R-2-cores"
    results = Results.load(str(path), machine_name=path.parent.name)
    assert results.commit_hash == repository[0]
    assert results.date == 1000 * int(git("log", "-1", "--format=%at", repository[0]))
    assert results.params["torch"] == "2.13.0"
    assert set(results.get_all_result_keys()) == {
        "timing.layer_seconds", "timing.relative_layer_seconds", "language_modelling.perplexity",
    }  # fmt: skip

    parameters = results.get_result_params("timing.layer_seconds")
    assert parameters[1] == ["'huffman'", "'sohsm'"]
    assert parameters[2] == ["'V=100 D=8 N=64 float32 cpu'", "'V=200 D=8 N=64 float32 cpu'"]
    values = results.get_result_value("timing.layer_seconds", parameters)
    value, stats = compute_stats(TIMES, 1)
    assert [values[0], values[3]] == [value, value]
    assert math.isnan(values[1])  # skipped: there is no such cell
    [kept, *_] = results.get_result_stats("timing.layer_seconds", parameters) or [{}]
    assert kept == pytest.approx(stats)
    assert results.get_result_samples("timing.layer_seconds", parameters)[0] == TIMES

    parameters = results.get_result_params("language_modelling.perplexity")
    # Epochs differ from the task's own; neither the rounds nor where the text lies or the
    # layer goes make it another measurement.
    assert parameters[2] == ["'novels@392cfeea V=100 D=8 N=64 float32 cpu epochs=3'"]
    assert results.get_result_value("language_modelling.perplexity", parameters) == [107.5]
    assert results.get_result_stats("language_modelling.perplexity", parameters)[0]["repeat"] == 1


def test_files_go_by_their_names(repository):
    vectors = row(
        Measurement("perplexity", 107.5),
        commit=repository[0],
        task="word_vectors",
        options={"children": "/home/me/children.npy@0123456789ab"},
        settings={"similarity": "/home/me/pairs.csv@ba9876543210"},
        method="binary_tree",
    )
    assert export(vectors) == 0
    (path,) = exported()
    parameters = Results.load(str(path)).get_result_params("word_vectors.perplexity")
    assert parameters[1] == ["'binary_tree[children=children.npy@0123456789ab]'"]
    assert parameters[2] == ["'V=100 D=8 N=64 float32 cpu similarity=pairs.csv@ba9876543210'"]


def test_exports_add_up_and_the_same_again_changes_nothing(repository):
    first, second = row(LAYER, commit=repository[0]), row(LAYER, commit=repository[0], method="sohsm")
    assert export(first) == export(second) == 0
    (path,) = exported()
    both = path.read_text()
    assert Results.load(str(path)).get_result_params("timing.layer_seconds")[1] == ["'huffman'", "'sohsm'"]
    assert json.loads(Path("exported/benchmarks.json").read_text())["timing.layer_seconds"]["params"][1] == [
        "'huffman'", "'sohsm'",
    ]  # fmt: skip
    assert export(first, second) == 0
    assert path.read_text() == both


def test_figures_of_two_definitions_are_two_versions(repository):
    def version_of(path, benchmark="timing.peak_bytes"):
        content = json.loads(path.read_text())
        columns = content["results"][benchmark] if "results" in content else [None, content[benchmark]["version"]]
        return columns[1]

    old, new = (Measurement("peak_bytes", 10.0, detail=detail) for detail in ({}, {"counting": 2}))
    assert export(row(LAYER, old, commit=repository[0])) == 0
    (first,) = exported()
    assert version_of(first) == version_of(Path("exported/benchmarks.json")) == "1"
    assert export(row(new, commit=repository[1])) == 0
    (second,) = (path for path in exported() if path != first)
    assert (version_of(first), version_of(second)) == ("1", "2")
    assert version_of(Path("exported/benchmarks.json")) == "2"
    assert version_of(Path("exported/benchmarks.json"), "timing.layer_seconds") == "1"
    # Both of one commit: the earlier goes, and comes into no other figure's version.
    assert export(row(new, commit=repository[0], method="sohsm")) == 0
    assert version_of(first) == "2"
    assert Results.load(str(first)).get_result_params("timing.peak_bytes")[1] == ["'sohsm'"]
    assert Results.load(str(first)).get_result_params("timing.layer_seconds")[1] == ["'huffman'"]
    assert export(row(old, commit=repository[1])) == 0
    assert version_of(second) == version_of(Path("exported/benchmarks.json")) == "2"


def test_benchmarks_of_asv_itself_stay(repository):
    own = {"layers.Own.track_own": {"name": "layers.Own.track_own", "params": []}, "version": 2}
    Path("exported").mkdir()
    Path("exported/benchmarks.json").write_text(json.dumps(own))
    assert export(row(LAYER, commit=repository[0])) == 0
    assert own.items() <= json.loads(Path("exported/benchmarks.json").read_text()).items()
    # `asv run` leaves only its own; an export of other rows brings all of the commit's back.
    Path("exported/benchmarks.json").write_text(json.dumps(own))
    assert export(row(Measurement("peak_bytes", 10.0), commit=repository[0])) == 0
    assert {"timing.layer_seconds", "timing.peak_bytes"} <= json.loads(
        Path("exported/benchmarks.json").read_text()
    ).keys()


def test_a_gpu_is_a_machine_of_its_own(repository):
    there = row(LAYER, commit=repository[0], device="cuda")
    there["provenance"]["framework"]["device_name"] = "A GPU"
    assert export(row(LAYER, commit=repository[0]), there) == 0
    assert {path.parent.name for path in exported()} == {"A-Processor-R-2-cores", "A-GPU-A-Processor-R-2-cores"}
    machine = json.loads(Path("exported/A-GPU-A-Processor-R-2-cores/machine.json").read_text())
    assert (machine["gpu"], machine["num_cpu"], machine["version"]) == ("A GPU", "2", 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dirty": True}, "with changes that no commit holds"),
        ({"dirty": None}, "with changes that no commit holds"),
        ({"commit": ""}, "commit '': allowed: the 40 digits of one"),
        ({"commit": None}, "commit None"),
        ({"commit": "d" * 40}, "commit dddddddd is not in the repository here"),
        ({"status": "oom"}, "oom: no memory"),
        ({"machine": {}}, "no processor in its provenance"),
    ],
)
def test_a_row_that_has_no_place_is_left_out_with_a_line(repository, capsys, fields, message):
    refused = row(LAYER, method="sohsm", **({"commit": repository[0]} | fields))
    assert export(row(LAYER, commit=repository[0]), refused) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out: ")]
    assert line.startswith("left out: timing torch sohsm")
    assert message in line
    (path,) = exported()
    assert Results.load(str(path)).get_result_params("timing.layer_seconds")[1] == ["'huffman'"]

    shutil.rmtree("exported")
    assert export(refused) == 2
    assert "no row to export" in capsys.readouterr().err
    assert not Path("exported").exists()


def test_two_machines_do_not_share_a_name(repository, capsys):
    other = row(LAYER, commit=repository[0], method="sohsm", machine=MACHINE | {"cores": 64})
    assert export(row(LAYER, commit=repository[0]), more=["--machine", "mine"]) == 0
    message = "machine {} in exported has num_cpu '2', a row '64'"
    for name, rows in (("mine", [other]), ("theirs", [row(LAYER, commit=repository[0]), other])):
        assert export(*rows, more=["--machine", name]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message.format(repr(name)) in line
    assert len(exported()) == 1
    assert export(other, more=["--machine", "../mine"]) == 2
    assert "machine '../mine'" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "{", '{"results": {"timing.layer_seconds": []}}'])
def test_a_results_file_that_is_none_is_one_line(repository, capsys, content):
    assert export(row(LAYER, commit=repository[0])) == 0
    (path,) = exported()
    path.write_text(content)
    assert export(row(LAYER, commit=repository[0])) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line
    assert path.read_text() == content


def asv(*arguments, home, config="asv.conf.json"):
    return subprocess.run(
        [sys.executable, "-m", "asv", "--config", str(config), *arguments],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env={**os.environ, "HOME": str(home)},
    )


def configure(**changes):
    """The repository's own configuration, with `changes`."""
    content = json.loads((ROOT / "asv.conf.json").read_text()) | changes
    Path("asv.conf.json").write_text(json.dumps(content))


@pytest.mark.asv
def test_asv_compares_and_publishes_what_was_exported(repository):
    configure(results_dir="exported", html_dir="html", plugins=[], environment_type="existing")
    slower = Measurement("layer_seconds", 0.02, samples=[2 * time for time in TIMES], ratio=RATIO)
    for place, layer, perplexity in zip(repository, (LAYER, slower), (107.5, 109.0), strict=True):
        score = Measurement("perplexity", perplexity)
        assert export(row(layer, commit=place), row(score, commit=place, task="speech")) == 0

    done = asv("compare", "--split", *repository, home=Path.cwd())
    assert done.returncode == 0, done.stderr
    worse = done.stdout.partition("got worse")[2]
    assert re.search(
        r"\| \+ +\| 11.0±\S*ms +\| 22.0±\S*ms +\| +2\S* \| timing.layer_seconds\('torch', 'huffman'", worse
    )
    assert "perplexity" not in worse  # less than asv's factor of 1.1
    assert "speech.perplexity" in done.stdout
    stricter = asv("compare", "--split", "--factor", "1.01", *repository, home=Path.cwd()).stdout
    assert "speech.perplexity" in stricter.partition("got worse")[2]

    done = asv("publish", "--no-pull", home=Path.cwd())
    assert done.returncode == 0, done.stdout + done.stderr
    index = json.loads(Path("html/index.json").read_text())
    assert {"timing.layer_seconds", "speech.perplexity"} <= index["benchmarks"].keys()
    assert list(index["machines"]) == ["A-Processor-R-2-cores"]
    (graph,) = Path("html/graphs").glob("arch-*/**/speech.perplexity.json")
    assert [values for _, values in json.loads(graph.read_text())] == [[107.5], [109.0]]


SMALL = """
description = "Enough for a test"

[[sweep]]
task = "timing"
frameworks = ["torch"]
methods = ["huffman"]
vocab = [5000]
dim = 64
tokens = 320
settings = { rounds = 15, budget = 60, quantities = ["layer_seconds"] }

[[sweep]]
task = "language_modelling"
frameworks = ["torch"]
methods = ["huffman"]
dataset = "pydoc-small"
dim = 16
tokens = 640
settings = { epochs = 1, batch = 32, steps = 20, embedding = 16, decode_rows = 0 }
"""


@pytest.fixture
def copied(in_empty_folder):
    """A repository of this code with a small suite."""
    for room in ("harness", "impls", "benchmarks"):
        shutil.copytree(ROOT / room, room, ignore=shutil.ignore_patterns("__pycache__"))
    Path("harness/suites/asv.toml").write_text(SMALL)
    configure()
    git("init", "--quiet", "--initial-branch=main")
    git("add", "asv.conf.json", "harness", "impls", "benchmarks")
    commit("as it is")
    assert asv("machine", "--yes", home=in_empty_folder).returncode == 0
    return in_empty_folder


def replaced(path, old, new):
    text = Path(path).read_text()
    assert text.count(old) == 1
    Path(path).write_text(text.replace(old, new))
    git("add", path)
    commit(f"changes {path}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "path", "old", "new"),
    [
        (
            "relative_layer_seconds",
            "impls/on_torch/_tree.py",
            "near_scores_NH = hidden_ND_cast @ node_weight[first:].T",
            "near_scores_NH = [hidden_ND_cast @ node_weight[first:].T for _ in range(50)][-1]",
        ),
        ("perplexity", "impls/on_torch/_optimizers.py", " lr=rate,\n", " lr=rate / 4,\n"),
    ],
)
def test_continuous_catches_what_is_planted_and_nothing_else(copied, pattern, path, old, new):
    commit("changes nothing")
    same = asv("continuous", "HEAD~1", "HEAD", "--bench", pattern, home=copied)
    assert same.returncode == 0, same.stdout + same.stderr
    assert "BENCHMARKS NOT SIGNIFICANTLY CHANGED" in same.stdout
    replaced(path, old, new)
    worse = asv("continuous", "HEAD~1", "HEAD", "--bench", pattern, home=copied)
    assert worse.returncode == 1, worse.stdout + worse.stderr
    assert re.search(rf"\| \+ .*{pattern}\('torch', 'huffman'\)", worse.stdout)
    assert asv("publish", home=copied).returncode == 0
