"""Expansion of suites to cells, and the changes that a command line may make."""

import dataclasses

import pytest

from vocabench.harness import registry
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite
from vocabench.impls.errors import BadInput


def cells(suite="cpu", tasks=("timing",), **selection):
    return Suite.load(suite).cells(Selection(tasks=tasks, **selection))


def test_every_suite_loads_and_names_known_tasks():
    for name in registry.suites():
        suite = Suite.load(name)
        assert suite.description
        assert all(sweep["task"] in registry.tasks() for sweep in suite.sweeps)
        assert suite.deadline_seconds > 0


def test_filters_narrow_the_methods_and_set_the_vocabularies():
    selected = cells("cpu", frameworks=["numpy"], precision=["float64"], methods=["sohsm"], vocab=[128_000, 500])
    assert [(c.method, c.vocab, c.settings["rounds"]) for c in selected] == [("sohsm", 500, 4), ("sohsm", 128_000, 2)]


def test_a_size_belongs_to_the_sweep_that_lists_it_and_a_new_size_to_the_first():
    for vocab, rounds in ((44_000, [4]), (250_000, [2]), (77, [4])):
        selected = cells("cpu", frameworks=["numpy"], precision=["float64"], methods=["huffman"], vocab=[vocab])
        assert [c.settings["rounds"] for c in selected] == rounds
    trained = cells("cpu", ["language_modelling"], frameworks=["torch"], dataset="pydoc-small", vocab=[77])
    assert {c.vocab for c in trained} == {77}  # the first sweep of the selected tasks


def test_a_method_belongs_to_the_sweeps_that_take_it_and_a_new_method_to_all():
    def dims(sweeps, method):
        suite = Suite("s", "", 60.0, tuple({"task": "agreement"} | sweep for sweep in sweeps))
        return [cell.dim for cell in suite.cells(Selection(frameworks=["numpy"], methods=[method]))]

    listing = [{"dim": 1, "methods": ["huffman"]}, {"dim": 2, "methods": ["nce"]}]
    assert dims(listing, "huffman") == [1]
    assert dims(listing, "nce") == [2]
    assert dims(listing, "sohsm") == [1, 2]
    with_open_sweep = [*listing, {"dim": 3}]
    assert dims(with_open_sweep, "nce") == [2, 3]
    assert dims(with_open_sweep, "sohsm") == [3]
    closed = [{"dim": 1, "methods": ["huffman"], "only": True}, {"dim": 2, "methods": ["nce"]}]
    assert dims(closed, "huffman") == [1]
    assert dims(closed, "sohsm") == [2]
    assert dims([closed[0] | {"vocab": [9]}, closed[1]], "sohsm") == [2]
    sizes = [{"dim": 1, "methods": ["huffman"], "vocab": [9]}, {"dim": 2, "methods": ["nce"], "vocab": [99]}]
    assert dims(sizes, "nce") == [1, 2]


def test_a_sweep_that_measures_only_what_it_lists_has_a_list(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('description = "d"\n[[sweep]]\ntask = "timing"\nonly = true\n')
    with pytest.raises(
        BadInput, match=r"own\.toml: a sweep with only = true: allowed: with `methods`, a list of names"
    ):
        Suite.load(str(file))


@pytest.fixture
def text(tmp_path):
    """A folder with a text that is quick to load."""
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("a b c d e\n" * 50)
    return str(tmp_path)


def reference_cells(sweeps, text, **selection):
    """Return the number of the sweep and the method of each cell; no framework is imported."""
    sweeps = [{"task": "language_modelling", "dim": number} | sweep for number, sweep in enumerate(sweeps, start=1)]
    suite = Suite("s", "", 60.0, tuple(sweeps))
    cells = suite.cells(Selection(frameworks=["numpy"], dataset=text, **selection))
    return sorted((cell.dim, cell.method) for cell in cells)


def test_methods_without_a_layer_are_selected_like_others(text):
    sweep = {"methods": ["huffman", "nce"]}
    assert reference_cells([sweep], text) == [(1, "huffman"), (1, "nce"), (1, "unigram")]
    assert reference_cells([sweep | {"only": True}], text) == [(1, "huffman"), (1, "nce")]
    only_unigram = {"methods": ["unigram"], "only": True}
    assert reference_cells([sweep | {"only": True}, only_unigram], text, methods=["unigram"]) == [(2, "unigram")]
    assert reference_cells([sweep], text, methods=["unigram"]) == [(1, "unigram")]
    assert reference_cells([sweep], text, methods=["nce", "unigram"]) == [(1, "nce"), (1, "unigram")]
    assert reference_cells([sweep], text, methods=["nce"]) == [(1, "nce")]
    assert reference_cells([{}], text, methods=["unigram"]) == [(1, "unigram")]


def test_a_sweep_may_name_methods_without_a_layer(text):
    layers, both, alone = {"methods": ["nce"]}, {"methods": ["huffman", "unigram"]}, {"methods": ["unigram"]}
    assert reference_cells([layers, both], text) == [(1, "nce"), (2, "huffman"), (2, "unigram")]
    assert reference_cells([layers, alone], text) == [(1, "nce"), (2, "unigram")]
    assert reference_cells([layers, alone], text, methods=["unigram"]) == [(2, "unigram")]
    assert reference_cells([layers, alone], text, methods=["sohsm"]) == [(1, "sohsm")]
    assert reference_cells([layers, {"methods": ["huffman"]}], text) == [
        (1, "nce"), (1, "unigram"), (2, "huffman"), (2, "unigram"),
    ]  # fmt: skip


def test_a_task_without_the_method_leaves_it_out(text):
    agreement = {"task": "agreement"}
    selected = reference_cells([agreement, {}], text, methods=["nce", "unigram"])
    assert selected == [(1, "nce"), (2, "nce"), (2, "unigram")]
    plan = Suite("s", "", 60.0, (agreement,)).plan(Selection(methods=["nce", "unigram", "lead"]))
    assert plan.lacking_methods == ["unigram", "lead"]
    message = "none of its tasks measures lead: allowed: a suite and filters with the task summarization"
    with pytest.raises(BadInput, match=message):
        reference_cells([agreement, {}], text, methods=["lead"])
    with pytest.raises(BadInput, match="unknown option 'tree'"):
        reference_cells([{}], text, methods=["unigram"], options={"tree": "random"})


def test_a_method_without_a_layer_is_measured_once_or_for_each_seed(text, monkeypatch):
    def seeds():
        cells = Suite("s", "", 60.0, ({"task": "language_modelling", "seeds": [1, 2]},)).cells(
            Selection(frameworks=["numpy"], methods=["unigram"], dataset=text)
        )
        return [cell.seed for cell in cells]

    assert seeds() == [0]
    task = registry.task("language_modelling")
    seeded = dataclasses.replace(task, seeded_methods=task.extra_methods)
    monkeypatch.setattr(registry, "task", lambda name: seeded)
    assert seeds() == [1, 2]


def test_vectors_from_a_file_and_fasttext_are_measured_only_if_they_are_selected():
    where = {"tasks": ["word_vectors"], "frameworks": ["numpy"], "dataset": "pydoc-small"}
    by_default = {cell.method for cell in cells("word_vectors", **where)}
    assert "gensim_huffman" in by_default
    assert not {"given", "fasttext_huffman", "fasttext_negative_sampling"} & by_default
    assert [cell.method for cell in cells("word_vectors", methods=["given"], **where)] == ["given"]


def test_sizes_can_be_selected():
    (cell,) = cells("quick", frameworks=["torch"], methods=["huffman"], tasks=["timing"], dim=64, tokens=128)
    assert (cell.dim, cell.tokens) == (64, 128)


def test_each_seed_is_a_cell():
    selected = cells("quick", frameworks=["numpy"], methods=["huffman"], seeds=range(3))
    assert [cell.seed for cell in selected] == [0, 1, 2]
    assert len({cell.key for cell in selected}) == 3


def test_options_go_to_the_methods_that_have_them():
    by_method = {
        c.method: c.options
        for c in cells("cpu", frameworks=["numpy"], precision=["float64"], options={"projection": "none"})
    }
    assert by_method.pop("sohsm") == {"projection": "none"}
    assert {"full_softmax", "fused_softmax", "huffman"} <= by_method.keys()
    assert not any(by_method.values())


def test_an_option_at_its_default_is_not_a_variant():
    (cell,) = cells(
        frameworks=["numpy"], precision=["float64"], methods=["sohsm"], vocab=[50], options={"projection": "relu"}
    )
    assert cell.variant == ""


def test_a_selection_is_checked_once(monkeypatch):
    checks = []
    check = Selection.check
    monkeypatch.setattr(Selection, "check", lambda selection: checks.append(selection) or check(selection))
    assert Suite.load("cpu").plan(Selection(tasks=["timing"], frameworks=["numpy"])).cells()
    assert len(checks) == 1


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"vocab": [0]}, "vocabulary of 0"),
        ({"vocab": [1]}, "vocabulary of 1"),
        ({"vocab": [-5]}, "vocabulary of -5"),
        ({"methods": ["sohms"]}, "did you mean 'sohsm'"),
        ({"methods": ["glov"]}, "unknown method 'glov': did you mean 'glove'"),
        ({"methods": ["glove"]}, "none of its tasks measures glove: allowed: .* task word_vectors"),
        ({"frameworks": ["tensorflo"]}, "did you mean 'tensorflow'"),
        ({"tasks": ["timings"]}, "did you mean 'timing'"),
        ({"precision": ["fp32"]}, "unknown precision 'fp32'"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"seeds": [0, -1]}, "seed -1: allowed"),
        ({"vocab": [10**30]}, "vocabulary of 1000000"),
        ({"tasks": ["speech"]}, "no cell left"),
        ({"options": {"gamma": "zero"}, "methods": ["sohsm"], "frameworks": ["numpy"]}, "gamma='zero'"),
        ({"settings": {"rounds": "1"}}, "setting rounds=1"),
        ({"settings": {"rounds": "１２"}}, "rounds='１２'"),
        ({"tasks": ["language_modelling"], "dataset": ""}, "needs --dataset"),
        ({"settings": {"quantities": "layer_secs"}}, "did you mean 'layer_seconds'"),
    ],
)
def test_invalid_selections_are_refused(selection, message):
    with pytest.raises(BadInput, match=message):
        cells("cpu", **selection)


def test_unused_options_settings_and_datasets_are_refused():
    suite = Suite.load("gpu")
    small = Selection(methods=["sohsm"], vocab=[77], settings={"epochs": "3"})
    with pytest.raises(BadInput, match=r"unknown setting of timing 'epochs'"):
        Suite.load("cpu").plan(small)  # its sweep over a text lists other sizes
    with pytest.raises(BadInput, match=r"unknown setting of timing 'epochs'"):
        suite.plan(Selection(settings={"epochs": "2"}))
    with pytest.raises(BadInput, match="--dataset pydoc: no data is read by timing"):
        suite.plan(Selection(dataset="pydoc"))
    with pytest.raises(BadInput, match=r"unknown option of .* or 9 others 'projections': did you mean 'projection'"):
        suite.plan(Selection(options={"projections": "none"}))
    suite.plan(Selection(methods=["binary_tree"], options={"tree": "random"}))
    with pytest.raises(BadInput, match=r"unknown option of .* 'tree'"):  # no method of the suite has it
        suite.plan(Selection(options={"tree": "random"}))
    nothing = suite.plan(Selection(tasks=["speech"], settings={"epochs": "2"}))
    with pytest.raises(BadInput, match="no cell left"):
        nothing.cells()


@pytest.mark.parametrize(
    ("top", "sweep", "message"),
    [
        ("", "vocabs = [3]", "did you mean 'vocab'"),
        ("deadline = 5", "", "unknown key of mine.toml 'deadline': did you mean 'deadline_seconds'"),
        ("deadline_seconds = 0", "", "deadline_seconds=0: allowed: a number above 0"),
        ("description = 3", "", "description=3: allowed: text"),
        ("description = [", "", "suite mine.toml: .*allowed: TOML in UTF-8"),
        (f"deadline_seconds = {'9' * 5000}", "", "allowed: TOML in UTF-8"),
        ("", "methods = []", r"sweep\[0\].methods=.*allowed: a list of one or more"),
        ("", "methods = ['sohms']", "unknown method in mine.toml 'sohms': did you mean 'sohsm'"),
        ("", "methods = ['huffman', 'unigram']", "unknown method in mine.toml 'unigram': allowed: adaptive"),
        ("", "frameworks = ['touch']", "did you mean 'torch'"),
        ("", "options = { projections = 'none' }", "did you mean 'projection'"),
        ("", "vocab = [1]", r"sweep\[0\].vocab\[0\]=1: allowed: a whole number from 2"),
        ("", "seeds = [-1]", r"sweep\[0\].seeds\[0\]=-1"),
        ("", "dim = true", r"sweep\[0\].dim=True"),
    ],
)
def test_invalid_suites_are_refused(tmp_path, monkeypatch, top, sweep, message):
    path = tmp_path / "mine.toml"
    description = "" if "description" in top else 'description = "x"'
    path.write_text(f'{description}\n{top}\n[[sweep]]\ntask = "timing"\n{sweep}\n')
    monkeypatch.setattr(registry, "suite_path", lambda name: path)
    with pytest.raises(BadInput, match=message):
        Suite.load("mine")


def test_a_suite_cannot_contain_arrays(tmp_path, monkeypatch):
    path = tmp_path / "mine.toml"
    sweep = 'task = "timing"\nvocab = [9]\nmethods = ["class_hsm"]\noptions = { vectors = [[1.0]] }'
    path.write_text(f'description = "x"\n[[sweep]]\n{sweep}\n')
    monkeypatch.setattr(registry, "suite_path", lambda name: path)
    with pytest.raises(BadInput, match=r"option vectors=array of shape \(1, 1\): allowed in a suite: the path"):
        cells("mine", frameworks=["numpy"])
