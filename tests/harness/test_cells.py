"""Suites expand to cells, and what a command line may change in them."""

import json

import pytest

from harness import registry
from harness.cells import Cell, Selection, Suite, check_by_hand
from impls.errors import BadInput


def cells(suite="cpu", **selection):
    return Suite.load(suite).cells(Selection(**selection))


def test_a_cell_survives_json_with_its_key():
    for cell in cells("cpu", frameworks=["numpy"], precision=["float64"]):
        again = Cell.from_json(json.loads(json.dumps(cell.to_json())))
        assert again == cell
        assert again.key == cell.key


def test_every_suite_loads_and_names_known_tasks():
    for name in registry.suites():
        suite = Suite.load(name)
        assert suite.description
        assert all(sweep["task"] in registry.tasks() for sweep in suite.sweeps)
        assert suite.deadline_seconds > 0


def test_filters_narrow_and_vocabularies_are_taken_as_given():
    found = cells("cpu", frameworks=["numpy"], precision=["float64"], methods=["sohsm"], vocab=[128_000, 500])
    assert [(c.method, c.vocab, c.settings["rounds"]) for c in found] == [("sohsm", 500, 11), ("sohsm", 128_000, 6)]


def test_a_size_is_measured_by_the_sweep_that_lists_it_and_a_new_one_by_the_first():
    for vocab, rounds in ((44_000, [11]), (256_000, [6]), (77, [11])):
        found = cells("cpu", frameworks=["numpy"], precision=["float64"], methods=["huffman"], vocab=[vocab])
        assert [c.settings["rounds"] for c in found] == rounds


def test_options_go_to_the_methods_that_have_them():
    by_method = {
        c.method: c.options
        for c in cells("cpu", frameworks=["numpy"], precision=["float64"], options={"projection": "none"})
    }
    assert by_method.pop("sohsm") == {"projection": "none"}
    assert {"full_softmax", "fused_softmax", "huffman"} <= by_method.keys()
    assert not any(by_method.values())


def test_an_option_at_its_default_is_no_variant():
    (cell,) = cells(
        frameworks=["numpy"], precision=["float64"], methods=["sohsm"], vocab=[50], options={"projection": "relu"}
    )
    assert cell.variant == ""


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"vocab": [0]}, "vocabulary of 0"),
        ({"vocab": [1]}, "vocabulary of 1"),
        ({"vocab": [-5]}, "vocabulary of -5"),
        ({"methods": ["sohms"]}, "did you mean 'sohsm'"),
        ({"frameworks": ["tensorflo"]}, "did you mean 'tensorflow'"),
        ({"tasks": ["timings"]}, "did you mean 'timing'"),
        ({"precision": ["fp32"]}, "unknown precision 'fp32'"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"tasks": ["language_modelling"]}, "no cell left"),
        ({"options": {"gamma": "zero"}, "methods": ["sohsm"], "frameworks": ["numpy"]}, "gamma='zero'"),
        ({"settings": {"rounds": "2"}}, "rounds=2"),
        ({"settings": {"quantities": "layer_secs"}}, "did you mean 'layer_seconds'"),
    ],
)
def test_bad_selections_are_refused(selection, message):
    with pytest.raises(BadInput, match=message):
        cells("cpu", **selection)


def test_what_nothing_would_read_is_refused():
    suite = Suite.load("cpu")
    with pytest.raises(BadInput, match="unknown setting 'epochs'"):
        check_by_hand(suite, Selection(settings={"epochs": "2"}))
    with pytest.raises(BadInput, match="unknown option 'projections': did you mean 'projection'"):
        check_by_hand(suite, Selection(options={"projections": "none"}))


def test_suites_with_unknown_keys_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "mine.toml"
    path.write_text('description = "x"\n[[sweep]]\ntask = "timing"\nvocabs = [3]\n')
    monkeypatch.setattr(registry, "suite_path", lambda name: path)
    with pytest.raises(BadInput, match="did you mean 'vocab'"):
        Suite.load("mine")
