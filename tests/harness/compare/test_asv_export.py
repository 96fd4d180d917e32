"""Export of rows to asv's history, as asv reads it."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from asv.results import Results
from asv_runner.statistics import compute_stats

from tests.harness.compare.asv_project import LAYER, MACHINE, RATIO, TIMES, asv, commit, configure, git, row
from vocabench.harness import cli
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.store import Store


@pytest.fixture
def repository(in_empty_folder):
    """Create a repository with two empty commits, and return their hashes."""
    git("init", "--quiet", "--initial-branch=main")
    return [commit(f"number {number}") for number in range(2)]


def export(*rows, more=(), name="rows.jsonl"):
    Path(name).unlink(missing_ok=True)
    with Store(Path(name)) as store:
        for one in rows:
            store.append(one)
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
    # The epochs differ from the default. Rounds and paths do not make it another measurement.
    assert parameters[2] == ["'novels@392cfeea V=100 D=8 N=64 float32 cpu epochs=3'"]
    assert results.get_result_value("language_modelling.perplexity", parameters) == [107.5]
    assert results.get_result_stats("language_modelling.perplexity", parameters)[0]["repeat"] == 1


def test_paths_are_reduced_to_file_names(repository):
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


def test_exports_accumulate_and_repeating_one_changes_nothing(repository):
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


def test_figures_of_two_definitions_have_two_versions(repository):
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
    # With both versions for one commit, the older figures are dropped.
    assert export(row(new, commit=repository[0], method="sohsm")) == 0
    assert version_of(first) == "2"
    assert Results.load(str(first)).get_result_params("timing.peak_bytes")[1] == ["'sohsm'"]
    assert Results.load(str(first)).get_result_params("timing.layer_seconds")[1] == ["'huffman'"]
    assert export(row(old, commit=repository[1])) == 0
    assert version_of(second) == version_of(Path("exported/benchmarks.json")) == "2"


def test_benchmarks_of_asv_itself_are_kept(repository):
    benchmarks = {"layers.Own.track_own": {"name": "layers.Own.track_own", "params": []}, "version": 2}
    Path("exported").mkdir()
    Path("exported/benchmarks.json").write_text(json.dumps(benchmarks))
    assert export(row(LAYER, commit=repository[0])) == 0
    assert benchmarks.items() <= json.loads(Path("exported/benchmarks.json").read_text()).items()
    # `asv run` removes all other benchmarks; a further export restores those of the commit.
    Path("exported/benchmarks.json").write_text(json.dumps(benchmarks))
    assert export(row(Measurement("peak_bytes", 10.0), commit=repository[0])) == 0
    assert {"timing.layer_seconds", "timing.peak_bytes"} <= json.loads(
        Path("exported/benchmarks.json").read_text()
    ).keys()


def test_a_gpu_is_another_machine(repository):
    on_gpu = row(LAYER, commit=repository[0], device="cuda", device_name="A GPU")
    assert export(row(LAYER, commit=repository[0]), on_gpu) == 0
    assert {path.parent.name for path in exported()} == {"A-Processor-R-2-cores", "A-GPU-A-Processor-R-2-cores"}
    machine = json.loads(Path("exported/A-GPU-A-Processor-R-2-cores/machine.json").read_text())
    assert (machine["gpu"], machine["num_cpu"], machine["version"]) == ("A GPU", "2", 1)
    assert (machine["os"], machine["ram"]) == ("Linux", "16 GiB")  # neither the kernel's version nor bytes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dirty": True}, "with changes that no commit holds"),
        ({"dirty": None}, "with changes that no commit holds"),
        ({"commit": ""}, "commit '': allowed: 40 hexadecimal digits"),
        ({"commit": None}, "commit None"),
        ({"commit": "d" * 40}, "commit dddddddd is not in this repository"),
        ({"status": "oom"}, "oom: no memory"),
        ({"machine": {}}, "no processor in its provenance"),
    ],
)
def test_rows_that_cannot_be_exported_are_reported(repository, capsys, fields, message):
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


def test_two_machines_cannot_share_a_name(repository, capsys):
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
def test_an_invalid_results_file_is_one_error_line(repository, capsys, content):
    assert export(row(LAYER, commit=repository[0])) == 0
    (path,) = exported()
    path.write_text(content)
    assert export(row(LAYER, commit=repository[0])) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line
    assert path.read_text() == content


@pytest.mark.asv
def test_asv_compares_and_publishes_exported_rows(repository):
    configure(results_dir="exported", html_dir="html", plugins=[], environment_type="existing")
    slower = Measurement("layer_seconds", 0.02, samples=[2 * time for time in TIMES], ratio=RATIO)
    for commit_hash, layer, perplexity in zip(repository, (LAYER, slower), (107.5, 109.0), strict=True):
        score = Measurement("perplexity", perplexity)
        assert export(row(layer, commit=commit_hash), row(score, commit=commit_hash, task="speech")) == 0

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
