"""The summarization task from pairs to row, on a small language whose summaries a model can learn."""

import copy
import dataclasses
import itertools
import json
import re

import numpy as np
import pytest

from tests import rows
from tests.rows import by_quantity
from vocabench.harness import cli, registry
from vocabench.harness.datasets.pairs import encoded_pairs
from vocabench.harness.report import excerpts
from vocabench.harness.report import rows as records
from vocabench.harness.report import table as tables
from vocabench.harness.run.settings import Selection
from vocabench.harness.run.suites import Suite
from vocabench.harness.tasks import summarization
from vocabench.harness.tasks.language_modelling import Training as LanguageModelTraining
from vocabench.harness.tasks.shared import batching, rouge
from vocabench.harness.tasks.shared.data import data_of
from vocabench.harness.tasks.shared.training_loop import Training
from vocabench.impls.errors import BadInput
from vocabench.impls.models.summarizer import Summarizer, SummarizerConfig

FRAMEWORKS = registry.installed_frameworks()
WORDS = [first + second for first in "bcdfghklmn" for second in "aeiou"]
SMALL = {
    "batch": 20, "embedding": 32, "paddings": 1, "min_count": 1, "beam": 3, "length": 8, "learning_rate": 0.01,
    "cluster_batch": 4, "cluster_epochs": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A summary is the source's words in a or i, or its first word."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("pairs") / "small"
    path.mkdir()
    for split, count in (("train", 100), ("valid", 20), ("test", 20)):
        lines = []
        for _ in range(count):
            source = [WORDS[number] for number in rng.integers(0, len(WORDS), rng.integers(5, 9))]
            summary = [word for word in source if word[1] in "ai"] or source[:1]
            lines.append(json.dumps({"text": " ".join(source), "summary": " ".join(summary)}))
        (path / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return str(path)


def cell_of(framework, method, folder, options=None, **settings):
    cells = Suite.load("summarization").cells(
        Selection(
            frameworks=[framework],
            methods=[method],
            tasks=["summarization"],
            dataset=folder,
            precision=["float64"],
            options=options or {},
            settings={name: str(value) for name, value in (SMALL | settings).items()},
        )
    )
    return dataclasses.replace(next(cell for cell in cells if cell.method == method), dim=32)


def quiet(text):
    pass


def row_of(cell):
    return rows.row_of(summarization, cell)


@pytest.fixture(scope="module")
def learned(folder):
    """A model that has learned the training pairs by heart, scored on them."""
    return row_of(cell_of("numpy", "full_softmax", folder, epochs=60, split="train"))


def unigram_f1(summary, reference):
    own, theirs = summary.split(), reference.split()
    hits = sum(min(own.count(word), theirs.count(word)) for word in set(own))
    return 2 * hits / (len(own) + len(theirs))


def test_pairs_are_learned_by_heart_and_lead_is_not(learned, folder):
    measured = by_quantity(learned)
    lead = by_quantity(row_of(cell_of("numpy", "lead", folder, split="train")))
    assert measured["rouge1_f1"].value > 0.9
    assert measured["rouge1_f1"].value > lead["rouge1_f1"].value + 0.2
    assert 1.0 < measured["perplexity"].value < 1.1
    assert [point["step"] for point in measured["perplexity"].detail["curve"]][:2] == [5, 10]
    # One shape: all steps but the first two are timed, and the one batch of 20 is decoded for each 20 pairs.
    assert len(measured["step_seconds"].samples) == 60 * 5 - 2
    assert len(measured["decode_seconds"].samples) == 5
    assert measured["decode_seconds"].detail["shapes"] == [[20, 8]]


def training_of(cell, data):
    return Training(summarization.untrained(cell, data, {}), np.arange(len(data.pairs.splits["train"])))


@pytest.mark.many_cells
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_best_checkpoint_is_scored_where_it_is_asked_for(framework, folder):
    cell = cell_of(framework, "full_softmax", folder, epochs=3, evaluations=2, learning_rate=0.3, checkpoint="best")
    data, _ = data_of(cell, summarization.load, quiet)
    training = training_of(cell, data)
    training.run(quiet)
    perplexities = [point["perplexity"] for point in training.curve.points]
    assert perplexities[-1] > min(perplexities)
    assert training.sequences.perplexity("valid") == pytest.approx(min(perplexities), rel=1e-9)
    assert training.measurements()[0].detail["validation_perplexity"] == min(perplexities)


def test_the_memory_of_a_step_is_measured_once_for_each_shape(folder):
    cell = cell_of("numpy", "full_softmax", folder, epochs=1, paddings=2)
    data, _ = data_of(cell, summarization.load, quiet)
    training = training_of(cell, data)
    assert isinstance(training.model, Summarizer)
    own, shapes = training.model.step, []

    def step(sources_BS, targets_BT):
        shapes.append((sources_BS.shape[1], targets_BT.shape[1]))
        np.ones(25_000_000 if shapes[-1] == max(shapes) else 12_500_000).sum()  # 200 MB, 100 MB
        return own(sources_BS, targets_BT)

    training.model.step = step
    for _ in range(3):
        training.run(quiet)
    (peak,) = [measurement for measurement in training.measurements() if measurement.quantity == "step_peak_bytes"]
    assert set(training.peak_bytes) == set(shapes)
    assert len(set(shapes)) > 1
    assert 180e6 < peak.value < 300e6
    assert peak.detail["shape"] == max(shapes)


@pytest.mark.lengthy
@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="needs torch")
def test_torch_learns_them_by_heart_as_well(folder):
    measured = by_quantity(row_of(cell_of("torch", "huffman", folder, epochs=60, split="train", score_pairs=50)))
    assert measured["rouge1_f1"].value > 0.9
    assert len(measured["rouge1_f1"].samples) == 50


def test_scores_are_those_of_the_summaries_decoded_for_the_split(folder):
    measured = by_quantity(row_of(cell_of("numpy", "full_softmax", folder, epochs=20, split="test")))
    pairs = encoded_pairs.load(folder, min_count=1).pairs.splits["test"]
    summaries = measured["rouge1_f1"].detail["summaries"]
    assert len(summaries) == len(pairs) == 20
    assert any(summaries)
    expected = [unigram_f1(ours, references[0]) for ours, (_, references) in zip(summaries, pairs, strict=True)]
    assert measured["rouge1_f1"].samples == pytest.approx(expected)
    assert measured["rouge1_f1"].value == pytest.approx(np.mean(expected))
    assert {measurement.detail.get("split", "test") for measurement in measured.values()} == {"test"}
    assert (measured["rouge1_f1"].low or 1.0) <= measured["rouge1_f1"].value <= (measured["rouge1_f1"].high or 0.0)
    assert "limit:none" in measured["rouge1_f1"].detail["signature"]
    assert "examples" not in measured["rouge1_f1"].detail  # these pairs are not ours to quote


@pytest.mark.parametrize("method", ["full_softmax", "lead"])
def test_a_row_can_be_scored_again(method, learned, folder):
    row = learned if method == "full_softmax" else row_of(cell_of("numpy", "lead", folder))
    again = summarization.rescored(row, lambda text: None)
    for before, after in zip(row.measurements, again, strict=False):
        for name in ("quantity", "value", "low", "high", "samples"):
            assert getattr(before, name) == getattr(after, name)
    assert len(again) == 3
    row = rows.with_cell(row, dataset_sha256="0" * 64)
    with pytest.raises(BadInput, match="the same data throughout"):
        summarization.rescored(row, lambda text: None)


def test_lead_takes_as_many_words_as_a_mean_training_summary(folder):
    row = row_of(cell_of("numpy", "lead", folder))
    assert "summaries" not in row.measurements[0].detail  # the sources are not ours to hand on
    pairs = encoded_pairs.load(folder, min_count=1).pairs.splits
    words = round(np.mean([len(references[0].split()) for _, references in pairs["train"]]))
    expected = [unigram_f1(" ".join(source.split()[:words]), references[0]) for source, references in pairs["test"]]
    assert row.measurements[0].samples == pytest.approx(expected)


def test_summaries_of_a_fixed_length_are_scored_by_recall(folder):
    settings = {"epochs": 1, "fixed_length": True, "length": 6, "scoring": "recall75", "score_pairs": 8}
    measured = by_quantity(row_of(cell_of("numpy", "full_softmax", folder, **settings)))
    assert {"rouge1_recall75", "rouge2_recall75", "rougeL_recall75"} < measured.keys()
    assert [len(summary.split()) for summary in measured["rouge1_recall75"].detail["summaries"]] == [6] * 8
    assert "limit:75-bytes-of-both" in measured["rouge1_recall75"].detail["signature"]


def test_an_unknown_word_is_no_word():
    settings = {name: setting.default for name, setting in rouge.SETTINGS.items()}
    with_unknown = rouge.scores(["a <unk> b"], [["unk a b"]], settings)[0].value
    assert with_unknown == rouge.scores(["a b"], [["unk a b"]], settings)[0].value == pytest.approx(0.8)


@pytest.mark.lengthy
def test_frameworks_end_at_the_same_perplexity(folder):
    """The whole path, the language model of the summaries included. In float64: steps grow float32's rounding."""
    settings = {"epochs": 2, "score_pairs": 4, "length": 3}
    cells = [cell_of(framework, "sohsm", folder, {"interval": "3"}, **settings) for framework in FRAMEWORKS]
    measured = [by_quantity(row_of(cell)) for cell in cells]
    perplexities = [by_name["perplexity"].value for by_name in measured]
    assert perplexities == pytest.approx([perplexities[0]] * len(measured), rel=1e-6)
    assert len({json.dumps(by_name["rouge1_f1"].detail["summaries"]) for by_name in measured}) == 1


def test_clusters_are_learned_from_the_training_summaries_and_then_held(folder, monkeypatch):
    models, train = [], LanguageModelTraining.run
    monkeypatch.setattr(LanguageModelTraining, "run", lambda self, say: models.append(self) or train(self, say))
    specs, create = [], summarization.layers.create_network

    def recorded(framework, spec, config, *device):
        if isinstance(config, SummarizerConfig):  # the language model is created by the same function
            specs.append(spec)
        return create(framework, spec, config, *device)

    monkeypatch.setattr(summarization.layers, "create_network", recorded)
    settings = {"epochs": 1, "score_pairs": 4, "length": 3}
    cell = cell_of("numpy", "sohsm", folder, {"interval": "3"}, **settings)
    told = by_quantity(row_of(cell))["perplexity"].detail["bootstrap"]
    (model,), (spec,) = models, specs
    assert spec.options["interval"] == 0
    np.testing.assert_array_equal(spec.structure["cluster"], model.cluster_V)
    assert (model.reorganizations[0]["changed_words"], len(model.reorganizations)) > (0, 1)
    assert told["options"] == {"cluster": "learned", "interval": 0}
    assert len(told["curve"]) == 2
    data = encoded_pairs.load(folder, min_count=1)
    assert (model.corpus.splits["train"] == data.end).sum() == 100
    # Random clusters need no language model; one that is too short is said to be.
    row_of(cell_of("numpy", "sohsm", folder, {"interval": "0"}, **settings))
    assert len(models) == 1
    # Those that start from bigrams are learned on from there.
    row_of(cell_of("numpy", "sohsm", folder, {"interval": "3", "start": "bigram"}, **settings))
    np.testing.assert_array_equal(specs[-1].structure["cluster"], models[-1].cluster_V)
    assert len(models) == 2
    with pytest.raises(BadInput, match=r"interval=900: .* ends before that"):
        row_of(cell_of("numpy", "sohsm", folder, {"interval": "900"}, **settings))


def test_trees_made_from_word_vectors_take_them_from_the_same_model(folder):
    cell = cell_of("numpy", "binary_tree", folder, {"tree": "adaptive"}, epochs=1, score_pairs=4, length=3)
    assert by_quantity(row_of(cell))["perplexity"].detail["bootstrap"]["options"] == {"tree": "random"}


def test_the_table_compares_with_full_softmax_by_the_paired_bootstrap(learned, folder):
    other = rows.with_cell(copy.deepcopy(learned), method="huffman")
    lead = row_of(cell_of("numpy", "lead", folder, split="train"))
    samples = by_quantity(other)["rougeL_f1"].samples
    samples[:] = [score * (0.5 if number % 2 else 0.9) for number, score in enumerate(samples)]
    learned.measurements[0].detail["examples"] = [{"text": "the source", "summaries": ["the title"], "ours": "x"}]
    flat_records = records.flatten([learned, other, lead])
    (record,) = [r for r in flat_records if r["method"] == "huffman" and r["quantity"] == "rougeL_f1"]
    scores = [by_quantity(row)["rougeL_f1"].samples for row in (other, learned)]
    low, difference, high = (record[key] for key in ("difference_low", "difference", "difference_high"))
    assert low is not None and difference is not None and high is not None  # noqa: PT018 - for the types
    assert difference == pytest.approx(np.mean(scores[0]) - np.mean(scores[1]))
    assert low < difference < high < 0
    assert record["p_value"] == pytest.approx(1 / 1001)
    text = tables.render(flat_records, "markdown")
    assert f"### Summarization on {folder}, train split, " in text
    (line,) = [line for line in text.splitlines() if line.startswith("| huffman")]
    assert f"{100 * difference:+.2f} (p 0.001)" in line
    shown = excerpts.examples([learned, other, lead], 3)
    assert "- source: the source\n- reference: the title\n- numpy full_softmax: x\n" in shown


def write(path, *pairs):
    path.write_text("".join(json.dumps({"text": text, "summaries": list(rest)}) + "\n" for text, *rest in pairs))


def test_pairs_become_ids(tmp_path):
    write(tmp_path / "train.jsonl", ("b a b c", "x y", "z"), ("a b <eos>", "x <eos> y y"), ("b", "y"))
    write(tmp_path / "valid.jsonl", ("c d", "y z", "y"))
    data = encoded_pairs.load(str(tmp_path), max_source=3, max_summary=3)
    # Counted in what the cuts leave: "c" and the third "y" are beyond them; an <eos> of the text is none of ours.
    assert dict(zip(data.sources.words, data.sources.counts_V.tolist(), strict=True)) == {"b": 4, "a": 2, "<unk>": 1}
    assert dict(zip(data.summaries.words, data.counts_V.tolist(), strict=True)) == {
        "<eos>": 3, "y": 3, "x": 2, "<unk>": 1,
    }  # fmt: skip
    ids = {word: number for number, word in enumerate(data.summaries.words)}
    padded_BL = data.summaries.splits["train"].padded(np.array([1, 0]), 5, -1)
    words = [data.summaries.words[number] if number >= 0 else "" for number in padded_BL.ravel()]
    assert words == ["x", "<unk>", "y", "<eos>", "", "x", "y", "<eos>", "", ""]
    assert data.summaries.splits["valid"].joined(np.array([0])).tolist() == [ids["y"], ids["<unk>"], ids["<eos>"]]
    assert data.pairs.splits["valid"][0] == ("c d", ["y z", "y"])
    # Sizes are of summaries and of sources apart; the size found by counting gives the same words.
    again = encoded_pairs.load(str(tmp_path), vocab=4, source_vocab=2, max_source=3, max_summary=3)
    assert again.summaries.words == data.summaries.words
    assert sorted(again.sources.words) == ["<unk>", "b"]
    with pytest.raises(BadInput, match="allowed: from 2 to 4, the words it has"):
        encoded_pairs.load(str(tmp_path), vocab=5, max_summary=3)


def test_sources_can_have_the_words_of_the_summaries(tmp_path):
    write(tmp_path / "train.jsonl", ("y a b c", "x y", "z"), ("a x <eos>", "x b y"), ("x", "y"))
    write(tmp_path / "valid.jsonl", ("c x", "y z", "y"))
    data = encoded_pairs.load(str(tmp_path), vocabulary="summaries", max_source=3)
    assert data.sources.words == data.summaries.words
    assert sorted(data.sources.words) == ["<eos>", "<unk>", "x", "y"]  # "b" occurs once in a summary
    texts = {
        split: [data.sources.words[number] for number in side.ids_T] for split, side in data.sources.splits.items()
    }
    assert texts == {"train": ["y", "<unk>", "<unk>", "<unk>", "x", "<unk>", "x"], "valid": ["<unk>", "x"]}
    counts = dict(zip(data.sources.words, data.sources.counts_V.tolist(), strict=True))
    assert counts == {"<eos>": 0, "<unk>": 4, "x": 2, "y": 1}
    assert data.sources.splits["train"].lengths_P.tolist() == [3, 3, 1]
    with pytest.raises(BadInput, match="source_vocab=5 with vocabulary='summaries'"):
        encoded_pairs.load(str(tmp_path), vocabulary="summaries", source_vocab=5)
    with pytest.raises(BadInput, match="unknown vocabulary 'titles'"):
        encoded_pairs.load(str(tmp_path), vocabulary="titles")


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_widths_pad_with_the_fewest_places(count):
    lengths_P = np.random.default_rng(count).geometric(0.2, 60)
    widths_W = batching.widths(lengths_P, count)
    assert widths_W[-1] == lengths_P.max()
    assert len(widths_W) <= count

    def places(widths):
        return sum(min(width for width in widths if width >= length) for length in lengths_P)

    shorter = sorted(set(lengths_P.tolist()) - {int(lengths_P.max())})
    chosen = itertools.combinations(shorter, min(count - 1, len(shorter)))
    assert places(widths_W.tolist()) == min(places([*smaller, int(lengths_P.max())]) for smaller in chosen)
    assert batching.width_of(lengths_P, widths_W).sum() == places(widths_W.tolist())


def test_batches_hold_like_lengths_and_each_pair_at_most_once():
    rng = np.random.default_rng(0)
    lengths_P, widths_P = rng.integers(1, 30, 1003), rng.choice([10, 20], 1003)
    batches = batching.shuffled_batches(widths_P, lengths_P, 10, np.random.default_rng(1))
    assert [len(chosen_B) for chosen_B in batches] == [10] * 100
    assert len(set(np.concatenate(batches).tolist())) == 1000
    spans = [np.ptp(lengths_P[chosen_B]) for chosen_B in batches]
    assert np.median(spans) <= 2
    firsts = [int(lengths_P[chosen_B].min()) for chosen_B in batches]
    assert firsts != sorted(firsts)
    held_out = batching.sorted_batches(widths_P, lengths_P, 10)
    assert sorted(np.concatenate(held_out).tolist()) == list(range(1003))


def test_pairs_are_spread_over_the_split():
    assert batching.spread(10, 4).tolist() == [0, 2, 5, 7]
    assert batching.spread(3, 0).tolist() == batching.spread(3, 8).tolist() == [0, 1, 2]


def test_a_split_that_is_missing_is_said_to_be(tmp_path, folder):
    write(tmp_path / "test.jsonl", ("a b", "a"))
    with pytest.raises(BadInput, match="no training split: allowed: "):
        cell_of("numpy", "lead", str(tmp_path))
    write(tmp_path / "train.jsonl", ("a b", "a"))
    with pytest.raises(BadInput, match="no split 'valid': allowed: one, next to train, test"):
        cell_of("numpy", "lead", str(tmp_path))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train.source.txt": b"a\nb\n", "train.title.txt": b"a\n"}, "train.title.txt, line 2: the file has ended"),
        ({"train.source.txt": b"a\n\n", "train.title.txt": b"a\nb\n"}, "train.source.txt, line 2: it is empty"),
        (
            {"train.source.txt": b"a\nb\n", "train.title.txt": b"a\n\xff\n"},
            "train.title.txt, line 2: byte 2 of",
        ),
        ({"input.txt": b"a\n"}, "task1_ref0.txt: missing reference"),
        ({"train.jsonl": b'{"text": "a"}\n'}, "train.jsonl, line 1: no summary and no summaries"),
    ],
)
def test_mistakes_in_files_are_one_line_of_the_command(tmp_path, files, message, capsys, in_empty_folder):
    path = tmp_path / "mine"
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    command = ["run", "summarization", "-t", "summarization", "-f", "numpy", "--dataset", str(path)]
    assert cli.main(command) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(re.escape(f"{path}/{message}"), line)
