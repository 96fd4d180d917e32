"""What counts as the same measurement, and what becomes of several runs of it."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.harness.compare.runs import cell, perplexity, row
from vocabench.harness import registry
from vocabench.harness.commands import publish
from vocabench.harness.compare.matching import Run, agrees, identify, mixed, sample_scores
from vocabench.harness.quantities import Measurement


def pooled(*rows):
    (entry,) = Run.of(rows).entries.values()
    return entry


def errors(*counts_S4):
    """A row of the character error rate of utterances with these substitutions, deletions, insertions and lengths."""
    counts = np.array(counts_S4)
    rate_S = counts[:, :3].sum(axis=1) / counts[:, 3]
    value = float(counts[:, :3].sum() / counts[:, 3].sum())
    return row(cell(task="speech"), Measurement("cer", value, rate_S.tolist(), detail={"counts": counts.tolist()}))


@pytest.mark.parametrize(("values", "mean"), [((100.0, 100.0, 106.0), 102.0), ((0.1, 0.2, 0.3, 0.4), 0.25)])
def test_a_figure_of_several_runs_is_their_mean_in_whatever_order(values, mean):
    assert {pooled(*map(perplexity, order)).value for order in itertools.permutations(values)} == {mean}


def test_a_figure_that_one_run_could_not_give_is_none():
    for order in itertools.permutations((100.0, None, 106.0)):
        assert pooled(*map(perplexity, order)).value is None


def test_the_same_samples_again_are_no_more_samples():
    runs = [np.array(samples) for samples in ([0.1, 0.5, 0.3], [0.2, 0.4, 0.3], [0.6, 0.3, 0.0])]
    rows = [perplexity(float(each.mean()), samples=each.tolist(), quantity="rouge1_f1") for each in runs]
    for order in itertools.permutations(rows):
        entry = pooled(*order)
        assert entry.scores.values_S == pytest.approx([0.3, 0.4, 0.2])
        assert entry.scores.values_S.mean() == pytest.approx(entry.value)
    fewer = perplexity(0.2, samples=[0.2, 0.2], quantity="rouge1_f1")
    assert not len(pooled(*rows, fewer).scores.values_S)


def test_errors_and_lengths_of_utterances_come_to_the_rate():
    first, second = errors([1, 2, 0, 10], [0, 0, 4, 30]), errors([1, 0, 0, 10], [0, 6, 4, 30])
    values_S, sizes_S = sample_scores(first["measurements"][0])
    assert values_S.tolist() == [3, 4]
    assert sizes_S.tolist() == [10, 30]
    both = pooled(first, second)
    assert both.scores.values_S.tolist() == [2, 7]
    assert both.scores.values_S.sum() / both.scores.sizes_S.sum() == pytest.approx(both.value)
    assert not len(pooled(first, errors([1, 2, 0, 10], [0, 0, 4, 31])).scores.values_S)


def test_a_score_that_is_not_finite_pairs_with_none():
    scores = sample_scores({"quantity": "rouge1_f1", "samples": [0.5, None]})
    assert not scores.pair_with(scores)
    assert not sample_scores({"quantity": "cer"}).pair_with(sample_scores({"quantity": "cer"}))


@pytest.mark.parametrize("how", [{"status": "disagree"}, {"agreement": {"verdict": "disagree"}}])
def test_what_disagreed_once_disagrees(how):
    rows = row(cell()), row(cell(), **how), row(cell())
    for order in itertools.permutations(rows):
        (found,) = Run.of(order).rows.values()
        assert not agrees(found)


def test_a_text_is_known_by_its_sha256_wherever_it_lies():
    first, second = "a" * 64, "b" * 64
    here = cell(task="language_modelling", dataset="/home/me/own.txt", dataset_sha256=first)
    assert identify(here) == identify(dataclasses.replace(here, dataset="texts/other.txt"))
    assert identify(here) != identify(dataclasses.replace(here, dataset_sha256=second))
    assert identify(here) != identify(dataclasses.replace(here, dataset="", dataset_sha256=""))
    assert "dataset_sha256" in Run.of([perplexity(1.0, dataset="texts/own.txt", dataset_sha256=second)]).nearly(here)


def test_where_output_goes_makes_no_other_cell():
    def trained(**settings):
        return cell(task="language_modelling", settings=settings)

    named = trained(layer_folder="/tmp/layers")
    assert "layer_folder" in registry.task("language_modelling").SETTINGS
    assert identify(named) == identify(trained()) == identify(trained(layer_folder="elsewhere"))
    assert identify(named) != identify(trained(epochs=2))


def test_a_published_row_is_of_the_same_cell():
    text = {"dataset": "/home/me/own.txt", "dataset_sha256": "a" * 64}
    own = perplexity(1.0, settings={"layer_folder": "/tmp/layers"}, **text)
    published = publish._without_place(own)
    assert published["cell"]["dataset"] == "own.txt"
    assert len(Run.of([own, published]).rows) == 1


def by_code(fingerprint, *measurements, **more):
    found = row(cell(**more), *measurements or [Measurement("perplexity", 1.0)])
    return found | {"provenance": found["provenance"] | {"code": {"fingerprint": fingerprint}}}


def test_rows_of_other_code_or_definitions_are_mixed_where_their_cell_is_the_same():
    assert not mixed([by_code("a"), by_code("a"), by_code("b", vocab=7)])
    assert not mixed([by_code("a"), perplexity(1.0)])
    assert mixed([by_code("a"), by_code("b")]).endswith("code a and b")
    times = [row(cell(), Measurement("layer_seconds", 1.0, [1.0], detail={"timing": number})) for number in (3, 2)]
    assert mixed(times).endswith("layer_seconds by definition 3 and 2")
    assert not mixed(times[:1] * 2)
