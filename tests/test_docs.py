"""The documentation is correct: its code runs, its commands parse, its links exist and its ratios are measured."""

import dataclasses
import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests import ROOT, published_files
from vocabench.harness import layer_file, layers, network_folder, registry
from vocabench.harness.datasets import spoken_names
from vocabench.harness.datasets.speech.synthesis import SpokenNames
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.report.rows import flatten, ratio_of
from vocabench.harness.run import store
from vocabench.harness.run.cells import Cell
from vocabench.impls.calls import has_z_loss
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
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text())):
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


def prose(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _headings(text):
    """Return the anchors of the headings, which are the same on the site and on the repository's web page."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
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


RATIO = re.compile(r"(\d[\d.]*)x (\[\d[\d.]*, \d[\d.]*\])")


@pytest.fixture(scope="module")
def ratios():
    """The ratios of all published rows with their intervals, as printed."""
    from vocabench.harness.report.units import ratio

    measured = set()
    for file in published_files():
        for record in flatten(store.latest(store.read(file))):
            if (found := ratio_of(record)) is not None:
                value, low, high = map(ratio, found)
                measured.add((value, f"[{low}, {high}]"))
    return measured


@pytest.mark.parametrize("path", [path for path in TEXTS if RATIO.search(path.read_text())], ids=_named)
def test_ratios_are_measured(path, ratios):
    """Every speed-up with an interval is in a published row."""
    assert set(RATIO.findall(path.read_text())) <= ratios
