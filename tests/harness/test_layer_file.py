"""Layer files: a layer is the same after loading in every framework, and invalid files are refused."""

import json
import zipfile

import numpy as np
import pytest

from vocabench.harness import cli, layer_file, layers, registry
from vocabench.harness.measure.workload import batch, zipf_counts
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite
from vocabench.harness.tasks import trained_layer
from vocabench.impls.errors import BadInput

FRAMEWORKS = registry.installed_frameworks()
V, D, N = 60, 8, 24
COUNTS = zipf_counts(V)
INPUTS = batch(COUNTS, tokens=N, dim=D, seed=0)
RNG = np.random.default_rng(0)
PAIRS = np.unique(RNG.integers(0, V, (200, 2)), axis=0)
PAIR_COUNTS = np.column_stack([PAIRS, np.ones(len(PAIRS), np.int64)])
WORDS = [f"w{number}" for number in range(V)]
QUICK = {"processes": "1", "rounds": "6", "budget": "0", "decode_rows": "4"}

LAYERS = {
    "full_softmax": {},
    "huffman": {},
    "sohsm": {"cluster": np.arange(V) % 8, "interval": 0, "projection": "none", "bias": True},
    "class_hsm": {"bins": "bigram", "pairs": PAIR_COUNTS},
    "binary_tree": {"tree": "adaptive", "vectors": RNG.standard_normal((V, 4))},
    "adaptive_softmax": {"cutoffs": "10,30"},
    "cnn_softmax": {"words": WORDS},
}


def trained(method, seed=3, **options):
    """Return a layer whose parameters differ from its initial ones."""
    layer = layers.create("numpy", method, counts=COUNTS, dim=D, seed=seed, **LAYERS[method] | options)
    layer.load({name: value + 0.1 * RNG.standard_normal(value.shape) for name, value in layer.parameters().items()})
    return layer


def save(path, layer):
    return layer_file.save(path, layer, INPUTS.hidden_ND, INPUTS.targets_N)


def members(path):
    with np.load(path) as file:
        return dict(file)


def cells_of(path, *, settings=QUICK, **selection):
    suite = Suite.load("trained_layer")
    return suite.cells(Selection(dataset=str(path), settings=settings, **selection))


@pytest.fixture
def full_softmax_file(tmp_path):
    save(tmp_path / "full.npz", trained("full_softmax"))
    return tmp_path / "full.npz"


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", LAYERS)
def test_a_layer_is_the_same_after_saving_and_loading(framework, method, tmp_path):
    if method not in registry.methods(framework):
        pytest.skip(f"{framework} has no {method}")
    before = trained(method)
    save(tmp_path / "new folder" / "layer.npz", before)
    loaded = layer_file.load(tmp_path / "new folder" / "layer.npz")
    assert (loaded.targets_N == INPUTS.targets_N).all()
    assert np.abs(loaded.hidden_ND - INPUTS.hidden_ND).max() < 1e-7
    after = loaded.layer(framework, dtype="float64")
    for name, value in before.structure().items():
        assert (after.structure()[name] == value).all(), name
    expected, actual = (layer.target_log_probs(INPUTS.hidden_ND, INPUTS.targets_N) for layer in (before, after))
    assert np.abs(expected - actual).max() < 1e-5  # the file stores float32


def test_numpy_alone_can_write_a_layer_file(tmp_path):
    parameters = {f"parameter.{name}": value for name, value in trained("full_softmax").parameters().items()}
    inputs = {"counts": COUNTS, "hidden": INPUTS.hidden_ND.astype(np.float16), "targets": INPUTS.targets_N}
    np.savez_compressed(tmp_path / "mine.npz", method="full_softmax", **inputs | parameters)  # type: ignore[arg-type]
    loaded = layer_file.load(tmp_path / "mine.npz")
    assert loaded.name == "mine"
    assert {"full_softmax", "fused_softmax", "inplace_softmax", "linear_cross_entropy"} <= set(loaded.methods)
    assert not {"sampled_softmax", "huffman", "adaptive_softmax"} & set(loaded.methods)
    for method in loaded.methods:  # some have options of their own
        assert loaded.spec_of(method, "float32").options.keys() == registry.definition(method).options.keys()


def test_classes_made_from_text_are_stored_in_the_file(tmp_path):
    """Clustering the same text on another machine may round differently."""
    for method, option in (("sohsm", "start"), ("class_hsm", "bins")):
        options: dict = {option: "bigram", "pairs": PAIR_COUNTS}
        layer = layers.create("numpy", method, counts=COUNTS, dim=D, **options)
        save(tmp_path / "layer.npz", layer)
        loaded = layer_file.load(tmp_path / "layer.npz").spec.options
        assert loaded["pairs"] is None
        assert (loaded["cluster"].array == layer.structure()["cluster"]).all()
    layer = layers.create("numpy", "class_hsm", counts=COUNTS, dim=D, levels=3, **LAYERS["class_hsm"])
    save(tmp_path / "layer.npz", layer)
    assert layer_file.load(tmp_path / "layer.npz").spec.options["bins"] == "bigram"


def test_parameters_in_float64_are_stored_exactly(tmp_path):
    layer = trained("huffman")
    save(tmp_path / "layer.npz", layer)
    params = layer_file.load(tmp_path / "layer.npz").params
    assert all((params[name] == value).all() for name, value in layer.parameters().items())


INVALID = {
    "counts": (np.zeros(V), "counts are all zero"),
    "hidden": (INPUTS.hidden_ND[:, :5], "parameter bias|parameter weight"),
    "hidden ": (INPUTS.hidden_ND[0], r"hidden has shape \(8,\)"),
    "hidden  ": (INPUTS.hidden_ND[1:], r"hidden has shape \(23, 8\)"),
    "hidden   ": (np.full((N, D), np.nan), "hidden holds NaN"),
    "targets": (INPUTS.targets_N + V, "allowed: word ids from 0 to 59"),
    "targets ": (INPUTS.targets_N.astype(float), "targets has dtype float64"),
    "method": (np.array("full_sofmax"), "did you mean 'full_softmax'"),
    "method ": (np.array(3), "method is int64"),
    "options": (np.array("{"), "allowed: a JSON object"),
    "options ": (np.array('{"levels": 2}'), "unknown option of full_softmax 'levels'"),
    "options  ": (np.array("[]"), "allowed: a JSON object"),
    "seed": (np.array(0.5), "allowed: one whole number"),
    "structure": (np.array("another"), "is not the one it was trained with"),
    "parameter.weight": (np.ones((V, D, 1)), r"parameter weight of full_softmax has shape \(60, 8, 1\)"),
    "parameter.weigth": (np.ones((V, D)), r"unexpected \['weigth'\]"),
    "weight": (np.ones((V, D)), "unknown array 'weight'"),
    "counts ": (np.array([None] * V), "holds object"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_arrays_are_refused_in_one_line(name, full_softmax_file):
    value, message = INVALID[name]
    np.savez(full_softmax_file, **members(full_softmax_file) | {name.strip(): value})
    with pytest.raises(BadInput, match=message) as caught:
        layer_file.load(full_softmax_file)
    assert str(full_softmax_file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_incomplete_damaged_and_other_files_are_refused(full_softmax_file, tmp_path):
    without = members(full_softmax_file)
    del without["targets"]
    np.savez(tmp_path / "without.npz", **without)
    content = full_softmax_file.read_bytes()
    (tmp_path / "short.npz").write_bytes(content[: len(content) // 2])
    (tmp_path / "flipped.npz").write_bytes(content[:400] + bytes([content[400] ^ 1]) + content[401:])
    (tmp_path / "text.npz").write_text("weights")
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("../method.txt", "full_softmax")
    for name, message in {
        "without": "no targets: allowed: method, counts",
        "short": "not a zip file",
        "flipped": "layer file",
        "text": "not a zip file",
        "other": r"method.txt is no \.npy file",
        "absent": "no such file",
    }.items():
        with pytest.raises(BadInput, match=message):
            layer_file.load(tmp_path / f"{name}.npz")


def test_nothing_is_written_if_saving_is_refused(tmp_path):
    layer = trained("huffman")
    with pytest.raises(BadInput, match="one for each target"):
        layer_file.save(tmp_path / "a.npz", layer, INPUTS.hidden_ND[1:], INPUTS.targets_N)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="allowed: free space in a place that can be written"):
        save(tmp_path / "file" / "a.npz", layer)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.lengthy
def test_every_framework_measures_the_same_layer(tmp_path):
    layer = trained("sohsm")
    save(tmp_path / "layer.npz", layer)
    cells = cells_of(tmp_path / "layer.npz", frameworks=FRAMEWORKS)
    assert [cell.framework for cell in cells] == FRAMEWORKS
    nll = -layer.target_log_probs(INPUTS.hidden_ND, INPUTS.targets_N).mean()
    for cell in cells:
        assert (cell.vocab, cell.dim, cell.tokens, cell.method) == (V, D, N, "sohsm")
        assert cell.options == {"interval": 0, "projection": "none", "bias": True}
        result = trained_layer.run(cell, lambda text: None)
        measurements = {measurement.quantity: measurement for measurement in result.measurements}
        assert measurements["perplexity"].value == pytest.approx(np.exp(nll), rel=1e-5)
        assert measurements["trained_layer_seconds"].detail["cluster_sizes"] == [7, 7.5, 8]
        assert measurements["topk_seconds"].detail["rows"] == 4
        assert result.agreement["verdict"] == "agree"
        assert result.data["sha256"] == cell.dataset_sha256


def test_a_softmax_is_measured_with_all_methods_that_compute_it(full_softmax_file):
    cells = cells_of(full_softmax_file, frameworks=["numpy"], settings=QUICK | {"decode_rows": "0"})
    assert {"full_softmax", "fused_softmax", "inplace_softmax"} <= {cell.method for cell in cells}
    perplexities = [trained_layer.run(cell, lambda text: None).measurements[0].value for cell in cells]
    assert perplexities == pytest.approx([perplexities[0]] * len(perplexities))


def test_a_selection_that_contradicts_the_layer_is_refused(full_softmax_file):
    for selection, message in (
        ({"methods": ["huffman"]}, "unknown method of .* 'huffman': allowed: full_softmax"),
        ({"vocab": [V + 1]}, "allowed: its own, 60"),
        ({"options": {"bias": "True"}}, "the layer has its own"),
        ({"settings": {"decode_rows": "25"}}, "at most its hidden vectors, 24"),
    ):
        with pytest.raises(BadInput, match=message):
            cells_of(full_softmax_file, **{"settings": QUICK} | selection)


def test_the_command_measures_a_layer_file(full_softmax_file, tmp_path, capsys):
    framework = FRAMEWORKS[-1]
    command = ["run", "trained_layer", "-f", framework, "-m", "full_softmax", "--out", str(tmp_path / "rows.jsonl")]
    assert cli.main(command) == 2
    assert "needs --dataset" in capsys.readouterr().err
    assert cli.main([*command, "--dataset", "pydoc"]) == 2
    assert "no such file" in capsys.readouterr().err
    settings = [part for name, value in QUICK.items() for part in ("-s", f"{name}={value}")]
    assert cli.main([*command, "--dataset", str(full_softmax_file), *settings]) == 0
    shown = capsys.readouterr().out
    assert "The trained layer" in shown
    assert "| perplexity |" in shown
    (row,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert row["provenance"]["data"]["sha256"] == row["cell"]["dataset_sha256"]
