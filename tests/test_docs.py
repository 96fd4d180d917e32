"""The documentation is correct: its code runs, its commands parse, its links exist and its ratios are measured."""

import dataclasses
import doctest
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests import ROOT
from vocabench.harness import cli, layer_file, layers, network_folder, registry
from vocabench.harness.datasets import spoken_names
from vocabench.harness.datasets.speech.synthesis import SpokenNames
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.report.rows import flatten, ratio_of
from vocabench.harness.run import store
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import parse
from vocabench.harness.run.suites import Suite
from vocabench.impls.calls import has_z_loss
from vocabench.impls.errors import BadInput
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.spec import Definition
from vocabench.impls.tying import can_tie

DOCS = ROOT / "docs"
PAGES = DOCS / "methods"
TEXTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
TOYS = ("<method>", "scaled_softmax", "my_softmax")  # stand for a method that a reader adds
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
HEADINGS = {"torch": "PyTorch:", "tensorflow": "TensorFlow:", "jax": "JAX:"}
FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
# Pages whose code has a test of its own: it runs in every framework, is written to files, or is followed by checks.
# The scripts of in-your-model.md and parallel.md run in tests of these names.
_MODEL_PAGES = ("in-your-model.md", "parallel.md")
TESTED_SEPARATELY = ("contract.md", "adding-a-method.md", "trained-layer.md", "scoring.md", *_MODEL_PAGES)
PAGES_WITH_CODE = [
    path
    for path in TEXTS
    if BLOCK.search(path.read_text()) and path.parent != PAGES and path.name not in TESTED_SEPARATELY
]
NAMES_A_FRAMEWORK = re.compile(r"\bvocabench\.(torch|tensorflow|jax)\b")


def _named(path):
    return str(path.relative_to(ROOT))


def test_there_is_a_page_for_each_method_and_no_other():
    assert sorted(page.stem for page in PAGES.glob("*.md")) == sorted(registry.methods())


@pytest.mark.parametrize("method", registry.methods())
def test_options_and_parameters_are_named(method):
    page = (PAGES / f"{method}.md").read_text()
    for name in registry.definition(method).options:
        assert f"`{name}`" in page, name


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", registry.methods())
def test_the_code_runs(method, framework):
    page = (PAGES / f"{method}.md").read_text()
    if method not in registry.methods(framework):
        assert HEADINGS[framework] not in page
        return
    counts = zipf_counts(300)
    inputs = batch(counts, tokens=20, dim=512, seed=0)
    before, after = page.split(HEADINGS[framework], 1)
    names: dict[str, object] = {"counts": counts, **_inputs(framework, inputs)}
    for block in BLOCK.findall(before.split("PyTorch:")[0].split("TensorFlow:")[0]):
        exec(block, names)
    exec(BLOCK.findall(after)[0], names)
    loss = names["loss"].detach() if framework == "torch" else names["loss"]  # type: ignore[attr-defined]
    values, ids = (np.asarray(names[name]) for name in ("values", "ids"))
    assert values.shape == ids.shape == (20, 10)
    assert np.isfinite(np.asarray(loss))


def _inputs(framework, inputs):
    hidden_ND, targets_N = inputs.hidden_ND.astype(np.float32), inputs.targets_N
    if framework == "torch":
        torch = importlib.import_module("torch")
        return {"torch": torch, "hidden": torch.tensor(hidden_ND), "targets": torch.tensor(targets_N)}
    if framework == "tensorflow":
        tf = importlib.import_module("tensorflow")
        return {"tf": tf, "hidden": tf.constant(hidden_ND), "targets": tf.constant(targets_N, tf.int32)}
    jax = importlib.import_module("jax")
    jnp = jax.numpy
    return {"jax": jax, "jnp": jnp, "hidden": jnp.asarray(hidden_ND), "targets": jnp.asarray(targets_N)}


class _UnigramModel:
    """A model for examples of decoding: the next word depends on no other word."""

    def prime(self, prompts_BT, k):
        return self.extend(prompts_BT[:, 0], prompts_BT[:, -1], k)

    def extend(self, rows_R, ids_R, k):
        return np.tile(-np.arange(1.0, k + 1), (len(ids_R), 1)), np.tile(np.arange(k), (len(ids_R), 1))


@pytest.fixture
def few_spoken_names(empty_cache, monkeypatch):
    """Reduce the dataset `spoken-names` to a few names in two languages."""
    for package in ("babel", "espeakng_loader"):
        pytest.importorskip(package)
    few = SpokenNames("spoken-names", ("ba", "tt"), {"train": 8, "valid": 2, "test": 3}, "")
    monkeypatch.setattr(spoken_names, "DATASET", dataclasses.replace(spoken_names.DATASET, origin=few))


@pytest.mark.parametrize("path", PAGES_WITH_CODE, ids=_named)
def test_the_code_of_a_page_runs(path, tmp_path, monkeypatch, request):
    """The blocks of a page run in order in one namespace, and may take these inputs as given."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(path.read_text())
    missing = set(NAMES_A_FRAMEWORK.findall("".join(blocks))) - {*FRAMEWORKS}
    if missing:
        pytest.skip(f"the page's examples are in {', '.join(sorted(missing))}, which is not installed")
    if "spoken-names" in "".join(blocks):
        request.getfixturevalue("few_spoken_names")
    counts = zipf_counts(300)
    inputs = batch(counts, tokens=20, dim=512, seed=0)
    names: dict[str, object] = {"np": np, "counts": counts}
    names |= {"model": _UnigramModel(), "prompts": np.zeros((2, 1), np.int64), "eos": 2}
    for block in blocks:
        for framework in NAMES_A_FRAMEWORK.findall(block)[:1]:
            names |= _inputs(framework, inputs)
        exec(block.replace('device="cuda"', 'device="cpu"'), names)


def test_pages_with_code_are_found():
    assert {"README.md", "layers.md", "speech-data.md"} <= {path.name for path in PAGES_WITH_CODE}


def test_what_each_loss_takes_is_in_the_table_of_layers():
    def mark(has: bool) -> str:
        return "yes" if has else "no"

    def has_word_vectors(method: str) -> bool:
        return can_tie(layers.spec(method, counts=zipf_counts(60), dim=8, vocab=None))

    def without_bias(definition: Definition) -> str:
        if "bias" not in definition.options:
            return "always"
        return "yes" if definition.options["bias"].default else "default"

    definitions = {method: registry.definition(method) for method in registry.methods()}
    lines = [
        f"| [{method}](methods/{method}.md) | {mark(not definition.train_only_loss)} | {mark(has_z_loss(definition))} "
        f"| yes | {mark(has_word_vectors(method))} | {mark(not definition.needs_counts)} "
        f"| {without_bias(definition)} |"
        for method, definition in definitions.items()
    ]
    table = "\n".join(lines)
    assert table in (DOCS / "layers.md").read_text(), f"docs/layers.md needs these lines:\n{table}"


@pytest.mark.parametrize("framework", registry.installed_frameworks())
def test_the_contract_runs(framework, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "contract.md").read_text().replace('"torch"', f'"{framework}"')
    names: dict[str, object] = {}
    for kind, block in re.findall(r"```(python|pycon)\n(.*?)```", page, re.DOTALL):
        if kind == "python":
            exec(block, names)
            continue
        examples = doctest.DocTestParser().get_doctest(block, names, "contract.md", None, None)
        said: list[str] = []
        assert not doctest.DocTestRunner().run(examples, out=said.append).failed, "".join(said)


@pytest.mark.skipif(not {"torch", "jax"} <= {*FRAMEWORKS}, reason="the page's example is in PyTorch and JAX")
def test_a_layer_goes_to_a_file_and_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_hand, by_project = BLOCK.findall((DOCS / "trained-layer.md").read_text())
    inputs = batch(zipf_counts(300), tokens=20, dim=512, seed=0)
    names: dict[str, Any] = {"counts": zipf_counts(300), "hidden": inputs.hidden_ND, "targets": inputs.targets_N}
    exec(by_hand, names | {"weight": np.ones((300, 512)), "bias": np.zeros(300)})
    assert layer_file.load("layer.npz").methods[0] == "full_softmax"
    exec(by_project, names := names | {"clusters": np.arange(300) % 18})
    assert np.shape(names["ids"]) == (20, 10)


@pytest.mark.skipif("jax" not in FRAMEWORKS, reason="the page's example is in JAX")
def test_a_saved_network_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = layers.spec("huffman", counts=zipf_counts(30), dim=5, dtype="float64")
    saved = layers.create_network("numpy", spec, LanguageModelConfig(embedding=4, hidden=5))
    settings = {"steps": 5}
    cell = Cell("quick", "language_modelling", "numpy", "huffman", 30, 5, 20, precision="float64", settings=settings)
    data, scores = {"dataset": "text", "sha256": ""}, {"split": "test", "perplexity": 30.0}
    words = [f"w{number}" for number in range(30)]
    network_folder.save(Path("net-huffman-torch"), saved, spec, words, cell, data, scores)
    names: dict[str, Any] = {}
    for block in BLOCK.findall((DOCS / "scoring.md").read_text()):
        exec(block, names)
    for name, value in saved.parameters().items():
        assert names["network"].parameters()[name] == pytest.approx(value, abs=1e-7)


@pytest.mark.lengthy
@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="the page's example is in PyTorch")
def test_the_method_added_on_the_page_agrees(tmp_path):
    page = (DOCS / "adding-a-method.md").read_text()
    for room in ("harness", "impls", "vocabench"):
        shutil.copytree(ROOT / room, tmp_path / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    paths = re.findall(r"^`(impls/.*?/methods/.*?\.py)`", page, re.MULTILINE)
    assert len(paths) == 4
    for path, content in zip(paths, BLOCK.findall(page), strict=True):
        (tmp_path / path).write_text(content)
    assert "vocabench check -m scaled_softmax\n" in page
    done = subprocess.run(
        [sys.executable, "-m", "vocabench", "check", "-m", "scaled_softmax"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 of 9 cells agree" in done.stdout  # three frameworks in three precisions


@pytest.mark.parametrize("path", TEXTS, ids=_named)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(path.read_text())):
        if re.match(r"https?://", target):
            continue
        file, _, heading = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        assert linked.is_relative_to(ROOT), target
        # The site shows pages and files, but no folders.
        assert linked.is_file() or not path.is_relative_to(DOCS), target
        if heading:
            assert heading in _headings(linked.read_text()), target


def _prose(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _headings(text):
    """Return the anchors of the headings, which are the same on the site and on the repository's web page."""
    headings = re.findall(r"^#+ (.*)$", _prose(text), re.MULTILINE)
    plain = (unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode() for heading in headings)
    return [re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain]


def test_every_page_is_in_the_navigation():
    def pages(entry):
        return [entry] if isinstance(entry, str) else [page for part in entry for page in pages(part)]

    def values(entry):
        if isinstance(entry, list):
            return [values(part) for part in entry]
        return [values(part) for part in entry.values()] if isinstance(entry, dict) else entry

    listed = pages(values(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    own = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*own, "CHANGELOG.md", "CONTRIBUTING.md"])


def _commands(text):
    """Return the command lines in code blocks and in sentences. Text after two spaces explains a command."""
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^ {4}(vocabench .*)$", text, re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"(?<!`)`(vocabench [^`]+)`(?!`)", _prose(text))
    starts = (re.sub(r"^(.*?\S) {2,}\S.*", r"\1", re.sub(r"\\? +(?=-)", " ", line)) for line in [*lines, *indented])
    return [line for line in [*starts, *spans] if line.startswith("vocabench ")]


COMMANDS = [(path, line) for path in TEXTS for line in dict.fromkeys(_commands(path.read_text()))]


def test_commands_are_found():
    assert len(COMMANDS) > 50
    assert len({path for path, _ in COMMANDS}) > 10


@pytest.mark.parametrize(("path", "line"), COMMANDS, ids=lambda value: value if isinstance(value, str) else value.stem)
def test_commands_parse(path, line, monkeypatch):
    """Suites, methods, tasks, options, settings and datasets in commands exist. Nothing is run."""
    arguments = shlex.split(re.sub(r"\bN\b", "1", line), comments=True)[1:]
    if len(arguments) == 1 and arguments[0] in ("compare", "publish", "export", "data", "list", "score", "eval"):
        return  # a command's name in a sentence
    parsed = cli._parser().parse_args(arguments)
    for kind, names in (
        ("framework", registry.frameworks()),
        ("method", [*registry.methods(), *registry.extra_methods()]),
        ("task", registry.tasks()),
    ):
        assert set(getattr(parsed, kind, None) or ()) <= {*names, *TOYS}
    if arguments[0] == "run":
        _check_run(parsed, monkeypatch)
        # Any other name is a path, which the page must explain.
        known = parsed.dataset is None or parsed.dataset.isupper() or parsed.dataset in registry.datasets()
        assert known or f"`{parsed.dataset}`" in path.read_text()
    if arguments[0] == "data" and parsed.name and not parsed.name.isupper():
        assert parsed.name in registry.datasets()
    for run in getattr(parsed, "run", None) or ():
        assert run.isupper() or (ROOT / run).is_file()


# Commands that read stored rows or outputs, or write a few files. To measure what the others measure would take hours.
READING = ("table", "report", "compare", "score", "list", "completion", "new")
RUN_AS_THEY_ARE = sorted({line for _, line in COMMANDS if line.split()[1] in (*READING, "data")} - {"vocabench data"})


@pytest.fixture
def with_outputs(in_empty_folder):
    """Set up an empty folder with rows, and with outputs of systems, under the names of the examples."""
    (in_empty_folder / "results" / "local").mkdir(parents=True)
    for path in (ROOT / "results").glob("*.jsonl"):
        (in_empty_folder / "results" / path.name).symlink_to(path)
    for name in ("results/local/newest.jsonl", "before.jsonl", "after.jsonl"):
        shutil.copy(ROOT / "results" / "quick-epyc.jsonl", name)
    sample = {"text": "a b", "reference": "a c", "references": ["a c"], "words": ["a", "b"], "log_probs": [-1.0, -2.0]}
    for name in ("ours", "theirs"):
        Path(f"{name}.jsonl").write_text(f"{json.dumps(sample)}\n" * 3)
        Path(f"{name}.trn").write_text("a b (one)\nc d (two)\n")
    Path("references.trn").write_text("a b (one)\nc e (two)\n")
    Path("outputs.txt").write_text("a b\nc d\n")
    Path("references.txt").write_text("a b\nc e\n")


@pytest.mark.usefixtures("with_outputs", "empty_cache")
@pytest.mark.parametrize("line", [line for line in RUN_AS_THEY_ARE if not re.search("data (get|verify)", line)])
def test_commands_that_measure_nothing_run(line, capsys):
    arguments = shlex.split(line, comments=True)[1:]
    if arguments in (["compare"], ["score"], ["list"]):
        return  # a command's name in a sentence
    names = {"A": "before.jsonl", "B": "after.jsonl", "N": "1", "NAME": "my_method"}
    names["FILE"] = "plot.svg" if "--plot" in arguments else "ours.jsonl"
    code = cli.main([names.get(argument, argument) for argument in arguments])
    printed = capsys.readouterr()
    assert code == ("--fail-on-unclear" in arguments), printed.err  # one run on each side shows little
    assert printed.out


# Commands that measure, up to the list of their cells; in sentences, a bare `vocabench run` is a command's name.
PLANNED = sorted({line for _, line in COMMANDS if line.startswith("vocabench run ")})
MAY_BE_MISSING = re.compile(r"no CUDA device|not installed|no such file|needs --dataset|download|vocabench data get")


@pytest.mark.many_cells
@pytest.mark.usefixtures("with_outputs")
@pytest.mark.parametrize("line", PLANNED)
def test_commands_that_measure_list_their_cells(line, capsys):
    arguments = shlex.split(line, comments=True)[1:]
    shutil.copy(ROOT / "harness" / "suites" / "quick.toml", "my-suite.toml")
    Path("text.txt").write_text("the cat sat on the mat . \n" * 2000)
    names = {
        "SUITE": "quick",
        "PATH.toml": "my-suite.toml",
        "FILE": "text.txt",
        "N": "1",
        "HEAD:6379": "localhost:6379",
    }
    names |= dict.fromkeys(TOYS, "full_softmax")
    code = cli.main([*(names.get(argument, argument) for argument in arguments if argument), "--dry-run"])
    printed = capsys.readouterr()
    if code:
        assert MAY_BE_MISSING.search(printed.err), printed.err
    else:
        assert re.search(r"^\d+ of \d+ cells to measure", printed.out, re.MULTILINE), printed.out


def _check_run(parsed, monkeypatch):
    seen = []
    monkeypatch.setattr(registry, "check_framework", lambda name: name)  # need not be installed
    monkeypatch.setattr(
        "vocabench.harness.commands.run.run", lambda suite, selection, **_: seen.append((suite, selection)) or 0
    )
    parsed.command(parsed)
    [(name, selection)] = seen
    if name.isupper() or name.endswith(".toml"):  # any, or the reader's own
        return
    suite = Suite.load(name)
    if not set(selection.methods or ()) & set(TOYS):
        try:
            suite.plan(selection)
        except BadInput as error:  # the files of an example do not exist
            if not re.search(r"no such file|needs --dataset", str(error)):
                raise
    for method in selection.methods or registry.methods():
        options = {} if method in (*TOYS, *registry.extra_methods()) else registry.definition(method).options
        for option in options.keys() & selection.options:
            _check_value(option, options[option], selection.options[option])
    for task in selection.tasks or registry.tasks():
        settings = registry.task(task).settings
        for setting in settings.keys() & selection.settings:
            _check_value(setting, settings[setting], selection.settings[setting])


def _check_value(name, setting, text):
    if not text.isupper():
        setting.check(name, parse(setting, text))


@pytest.mark.parametrize(
    "line",
    [
        "vocabench tabel",
        "vocabench run quik",
        "vocabench run quick -m sohms",
        "vocabench run quick -o projecton=none",
        "vocabench run quick -o projection=some",
        "vocabench run quick -t language_modelling --dataset pydocs",
        "vocabench table --run results/quik.jsonl",
    ],
)
def test_a_wrong_command_would_be_seen(line, monkeypatch):
    with pytest.raises((AssertionError, BadInput)):
        test_commands_parse(ROOT / "README.md", line, monkeypatch)


RATIO = re.compile(r"(\d[\d.]*)x (\[\d[\d.]*, \d[\d.]*\])")


@pytest.fixture(scope="module")
def ratios():
    """The ratios of all published rows with their intervals, as printed."""
    from vocabench.harness.report.units import ratio

    measured = set()
    for file in sorted((ROOT / "results").glob("*.jsonl")):
        for record in flatten(store.latest(store.read(file))):
            if (found := ratio_of(record)) is not None:
                value, low, high = map(ratio, found)
                measured.add((value, f"[{low}, {high}]"))
    return measured


@pytest.mark.parametrize("path", [path for path in TEXTS if RATIO.search(path.read_text())], ids=_named)
def test_ratios_are_measured(path, ratios):
    """Every speed-up with an interval is in a published row."""
    assert set(RATIO.findall(path.read_text())) <= ratios
