"""Which measurements count as the same, and how repeated runs are pooled."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from tests.harness.compare.runs import cell, perplexity, row
from vocabench.harness import registry
from vocabench.harness.commands.publishable import without_paths
from vocabench.harness.compare.matching import Run, identify, mixed, sample_scores
from vocabench.harness.run.rows import Measurement


def pooled(*rows):
    (entry,) = Run.of(rows).entries.values()
    return entry


def errors(*counts_S4):
    """Return a row of a character error rate.

    Args:
        counts_S4: Substitutions, deletions, insertions and length of the reference of each utterance.
    """
    counts = np.array(counts_S4)
    rate_S = counts[:, :3].sum(axis=1) / counts[:, 3]
    value = float(counts[:, :3].sum() / counts[:, 3].sum())
    return row(cell(task="speech"), Measurement("cer", value, rate_S.tolist(), detail={"counts": counts.tolist()}))


@pytest.mark.parametrize(("values", "mean"), [((100.0, 100.0, 106.0), 102.0), ((0.1, 0.2, 0.3, 0.4), 0.25)])
def test_a_pooled_figure_is_the_mean_of_the_runs_in_any_order(values, mean):
    assert {pooled(*map(perplexity, order)).value for order in itertools.permutations(values)} == {mean}


def test_a_pooled_figure_is_none_if_one_run_has_none():
    for order in itertools.permutations((100.0, math.nan, 106.0)):
        assert pooled(*map(perplexity, order)).value is None


def test_an_error_rate_is_the_sum_of_errors_over_the_sum_of_lengths():
    first = errors([1, 2, 0, 10], [0, 0, 4, 30])
    values_S, sizes_S = sample_scores(first.measurements[0])
    assert values_S.tolist() == [3, 4]
    assert sizes_S.tolist() == [10, 30]


def test_scores_that_are_not_finite_cannot_be_paired():
    scores = sample_scores(Measurement("rouge1_f1", math.nan, [0.5, math.nan]))
    assert not scores.pair_with(scores)
    empty = sample_scores(Measurement("cer", math.nan))
    assert not empty.pair_with(empty)


@pytest.mark.parametrize("fields", [{"status": "disagree"}, {"agreement": {"verdict": "disagree"}}])
def test_a_cell_that_disagrees_in_one_run_disagrees(fields):
    rows = row(cell()), row(cell(), **fields), row(cell())
    for order in itertools.permutations(rows):
        (pooled_row,) = Run.of(order).rows.values()
        assert not pooled_row.agrees


def test_a_text_is_identified_by_its_sha256_and_not_its_path():
    first, second = "a" * 64, "b" * 64
    here = cell(task="language_modelling", dataset="/home/me/own.txt", dataset_sha256=first)
    assert identify(here) == identify(dataclasses.replace(here, dataset="texts/other.txt"))
    assert identify(here) != identify(dataclasses.replace(here, dataset_sha256=second))
    assert identify(here) != identify(dataclasses.replace(here, dataset="", dataset_sha256=""))
    assert "dataset_sha256" in Run.of([perplexity(1.0, dataset="texts/own.txt", dataset_sha256=second)]).nearly(here)


def test_the_destination_of_output_does_not_change_the_identity():
    def trained(**settings):
        return cell(task="language_modelling", settings=settings)

    named = trained(layer_folder="/tmp/layers")
    assert "layer_folder" in registry.task("language_modelling").settings
    assert identify(named) == identify(trained()) == identify(trained(layer_folder="elsewhere"))
    assert identify(named) != identify(trained(epochs=2))


def test_a_published_row_has_the_same_identity():
    text = {"dataset": "/home/me/own.txt", "dataset_sha256": "a" * 64}
    local = perplexity(1.0, settings={"layer_folder": "/tmp/layers"}, **text)
    published = without_paths(local)
    assert published.cell.dataset == "own.txt"
    assert len(Run.of([local, published]).rows) == 1


def by_code(fingerprint, **more):
    return row(cell(**more), Measurement("perplexity", 1.0), code={"fingerprint": fingerprint})


def test_rows_of_one_cell_with_different_code_or_definitions_are_mixed():
    assert not mixed([by_code("a"), by_code("a"), by_code("b", vocab=7)])
    assert not mixed([by_code("a"), perplexity(1.0)])
    assert mixed([by_code("a"), by_code("b")]).endswith("code a and b")
    times = [row(cell(), Measurement("layer_seconds", 1.0, [1.0], detail={"timing": number})) for number in (3, 2)]
    assert mixed(times).endswith("layer_seconds by definition 3 and 2")
    assert not mixed(times[:1] * 2)
