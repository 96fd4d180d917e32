"""Loaders, tasks and the list of datasets distinguish running text, pairs, speech and documents."""

import re

import pytest

from vocabench.harness import cli, registry
from vocabench.harness.datasets.pairs import summary_pairs
from vocabench.harness.datasets.shared.dataset import DocumentDataset, PairDataset, SpeechDataset, TextDataset
from vocabench.harness.datasets.text import corpora
from vocabench.impls.errors import BadInput

pytestmark = pytest.mark.usefixtures("empty_cache")


def test_text_is_not_pairs_and_pairs_are_not_text():
    with pytest.raises(
        BadInput, match=r"'pydoc-small' is running text, not pairs .* allowed: pydoc-summaries, or a path"
    ):
        summary_pairs.load("pydoc-small")
    with pytest.raises(BadInput, match=r"'pydoc-summaries' is pairs .*, not running text: allowed: .*pydoc-small"):
        corpora.load("pydoc-summaries")
    with pytest.raises(BadInput, match="unknown dataset 'pydoc-sumaries': did you mean 'pydoc-summaries'"):
        summary_pairs.load("pydoc-sumaries")


@pytest.mark.parametrize("task", ["language_modelling", "word_vectors"])
def test_tasks_on_text_refuse_pairs_with_a_one_line_error(task, capsys, in_empty_folder):
    suite = {"language_modelling": "pydoc", "word_vectors": "word_vectors"}[task]
    assert cli.main(["run", suite, "-t", task, "-f", "numpy", "--dataset", "pydoc-summaries"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "'pydoc-summaries' is pairs of source and summary, not running text" in line


def test_summarization_refuses_text_with_a_one_line_error(capsys, in_empty_folder):
    assert cli.main(["run", "summarization", "-t", "summarization", "-f", "numpy", "--dataset", "pydoc-small"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "'pydoc-small' is running text, not pairs of source and summary" in line


@pytest.mark.parametrize("name", registry.datasets())
def test_a_dataset_is_a_value_with_the_name_of_its_file(name):
    dataset = registry.dataset(name)
    assert isinstance(dataset, TextDataset | PairDataset | SpeechDataset | DocumentDataset)
    assert dataset.name == name
    assert isinstance(dataset.is_here(), bool)


def test_the_list_shows_the_kind_of_each_dataset(capsys):
    kinds = {name: registry.dataset(name).kind for name in registry.datasets()}
    assert set(kinds.values()) == {"text", "pairs", "speech", "documents"}
    assert cli.main(["data", "list"]) == 0
    line = re.compile(r"^(\S+) +(text|pairs|speech|documents) +(?:not )?here ", re.MULTILINE)
    listed = dict(line.findall(capsys.readouterr().out))
    assert listed == kinds
