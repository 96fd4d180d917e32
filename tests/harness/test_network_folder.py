"""Saved networks: the same in every framework, and invalid folders are refused."""

import json

import numpy as np
import pytest

from tests.harness.test_layer_file import COUNTS, LAYERS, WORDS, D
from vocabench.harness import layers, network_folder, registry
from vocabench.harness.run.cells import Cell
from vocabench.impls.errors import BadInput
from vocabench.impls.models.language_model import LanguageModelConfig

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
RNG = np.random.default_rng(4)
TEXT_BT = RNG.integers(0, len(COUNTS), (3, 8)).astype(np.int32)
# Those that cannot be created with default options, or whose structure comes from elsewhere, have options.
METHODS = sorted({method for framework in FRAMEWORKS for method in registry.methods(framework)})


def cell(framework, method, **changes):
    fields = {
        "suite": "s",
        "task": "language_modelling",
        "vocab": len(COUNTS),
        "dim": D,
        "tokens": 24,
        "settings": {"steps": 5},
    }
    return Cell(framework=framework, method=method, **fields, **changes)


def network(framework, method):
    """Return a network whose parameters differ from its initial ones."""
    dtype = "float64" if framework == "numpy" else "float32"
    spec = layers.spec(method, counts=COUNTS, dim=D, seed=3, dtype=dtype, **LAYERS.get(method, {}))
    model = layers.create_network(framework, spec, LanguageModelConfig(embedding=6, hidden=D))
    model.load({name: v + 0.1 * RNG.standard_normal(v.shape) for name, v in model.parameters().items()})
    return model


def save(folder, model, framework="torch"):
    about = {"dataset": "text", "sha256": "0" * 64}
    scores = {"split": "test", "perplexity": 7.5}
    made_by = cell(framework, model.spec.method, precision=model.spec.dtype)
    return network_folder.save(folder, model, model.spec, WORDS, made_by, about, scores)


def nll(model):
    parts = model.nll_parts(TEXT_BT[:, :-1], TEXT_BT[:, 1:], carry=False)
    return np.sum(parts, axis=0, dtype=np.float64)


@pytest.mark.many_cells
@pytest.mark.parametrize(
    ("method", "source"), [(m, f) for m in METHODS for f in FRAMEWORKS if m in registry.methods(f)]
)
def test_a_network_of_one_framework_gives_the_same_probabilities_in_another(method, source, tmp_path):
    """Each framework writes a network of each method once, and reads one of another framework."""
    target = FRAMEWORKS[(FRAMEWORKS.index(source) + 1) % len(FRAMEWORKS)]
    before = network(source, method)
    save(tmp_path / "network", before, source)
    saved = network_folder.load(tmp_path / "network")
    assert (list(saved.words), saved.scores["perplexity"]) == (WORDS, 7.5)
    assert {source, "numpy"} <= {*saved.frameworks}
    if target not in saved.frameworks:
        # Only PyTorch has its adaptive softmax, and no other method computes the same function of its parameters.
        assert method == "adaptive_log_softmax"
        with pytest.raises(BadInput, match=f"method 'adaptive_log_softmax' is not in {target}: allowed: "):
            saved.network(target)
        return
    assert nll(saved.network(target)) == pytest.approx(nll(before), abs=2e-5)


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "network", network("numpy", "full_softmax"), "numpy")
    return tmp_path / "network"


def test_the_definitions_read_it_in_float64(folder):
    saved = network_folder.load(folder)
    assert saved.network("numpy").spec.dtype == "float64"
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.npz", "network.json", "words.txt"]
    assert [path.name for path in folder.parent.iterdir()] == ["network"]


def test_nothing_is_overwritten(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(BadInput, match="allowed: a new folder"):
        save(folder, network("numpy", "full_softmax"), "numpy")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["network"]
    (folder.parent / "empty").mkdir()
    save(folder.parent / "empty", network("numpy", "full_softmax"), "numpy")


def change_about(folder, **changes):
    path = folder / "network.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_cell(folder, **changes):
    change_about(folder, cell=json.loads((folder / "network.json").read_text())["cell"] | changes)


def change_arrays(folder, **changes):
    """Change arrays and their checksum, as another program might write them."""
    path = folder / "arrays.npz"
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{name: value for name, value in (arrays | changes).items() if value is not None})
    about = json.loads((folder / "network.json").read_text())
    change_about(folder, sha256=about["sha256"] | {"arrays.npz": network_folder.sha256_of_file(path)})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "network.json").unlink(), "no network.json in it: allowed: a folder that -s save="),
        (lambda folder: (folder / "network.json").write_text("{"), "network.json: .*allowed: JSON as"),
        (lambda folder: (folder / "network.json").write_text("[]"), r"network.json: \(a list of 0\): allowed: an"),
        (lambda folder: change_about(folder, format="other"), "format='other': allowed: vocabench network"),
        (lambda folder: change_about(folder, version=2), "version=2: allowed: a whole number from 1 to 1"),
        (
            lambda folder: change_about(folder, network="encoder"),
            "network 'encoder': allowed: language_model, ",
        ),
        (
            lambda folder: change_about(folder, network="summarizer"),
            "_modelling': allowed: summarization",
        ),
        (
            lambda folder: (change_cell(folder, task="speech"), change_about(folder, network="recognizer")),
            "data: no longest",
        ),
        (lambda folder: change_about(folder, config={"embedding": 6}), "config: no hidden"),
        (lambda folder: change_about(folder, config={"embedding": 6, "hidden": D, "layers": 2}), "field 'layers'"),
        (lambda folder: change_about(folder, cell={}), "cell: no task"),
        (lambda folder: change_cell(folder, task="timing"), "task='timing': allowed: language_modelling"),
        (lambda folder: change_cell(folder, settings={}), "settings: no steps"),
        (lambda folder: change_cell(folder, seed=-1), "not a cell: seed=-1"),
        (lambda folder: change_cell(folder, precision="float99"), "unknown precision 'float99'"),
        (lambda folder: (folder / "words.txt").unlink(), "no words.txt in it: allowed: the complete folder"),
        (lambda folder: (folder / "words.txt").write_text("a\nb"), "words.txt is damaged or of another network"),
        (lambda folder: (folder / "arrays.npz").write_bytes(b"PK"), "arrays.npz is damaged or of another network"),
        (lambda folder: change_arrays(folder, **{"body.embedding": None}), "missing .*embedding"),
        (lambda folder: change_arrays(folder, **{"parameter.bias": None}), "bias"),
        (lambda folder: change_arrays(folder, more=np.zeros(2)), "unknown array 'more'"),
        (lambda folder: change_arrays(folder, counts=None), "no counts: allowed: method, counts"),
        (lambda folder: change_arrays(folder, counts=COUNTS[:-1]), "parameter|weight|bias"),
    ],
)
def test_a_damaged_or_foreign_folder_is_one_line(damage, message, folder):
    damage(folder)
    with pytest.raises(BadInput, match=message) as error:
        network_folder.load(folder)
    assert "\n" not in str(error.value)
