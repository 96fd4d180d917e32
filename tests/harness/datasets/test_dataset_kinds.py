"""Running text, pairs and speech are told apart: by the loaders, by the tasks and in the list."""

import re

import pytest

from vocabench.harness import cli, registry
from vocabench.harness.datasets.pairs import collection
from vocabench.harness.datasets.text import corpora
from vocabench.impls.errors import BadInput

pytestmark = pytest.mark.usefixtures("empty_cache")


def test_text_is_no_pairs_and_pairs_are_no_text():
    with pytest.raises(
        BadInput, match=r"'pydoc-small' is running text, not pairs .* allowed: pydoc-summaries, or a path"
    ):
        collection.load("pydoc-small")
    with pytest.raises(BadInput, match=r"'pydoc-summaries' is pairs .*, not running text: allowed: .*pydoc-small"):
        corpora.load("pydoc-summaries")
    with pytest.raises(BadInput, match="unknown dataset 'pydoc-sumaries': did you mean 'pydoc-summaries'"):
        collection.load("pydoc-sumaries")


@pytest.mark.parametrize("task", ["language_modelling", "word_vectors"])
def test_tasks_over_text_refuse_pairs_in_one_line(task, capsys, in_empty_folder):
    suite = {"language_modelling": "pydoc", "word_vectors": "word_vectors"}[task]
    assert cli.main(["run", suite, "-t", task, "-f", "numpy", "--dataset", "pydoc-summaries"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "'pydoc-summaries' is pairs of source and summary, not running text" in line


def test_summarization_refuses_text_in_one_line(capsys, in_empty_folder):
    assert cli.main(["run", "summarization", "-t", "summarization", "-f", "numpy", "--dataset", "pydoc-small"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "'pydoc-small' is running text, not pairs of source and summary" in line


@pytest.mark.parametrize("name", registry.datasets())
def test_every_dataset_has_what_its_kind_asks_for(name):
    module = registry.dataset(name)
    assert callable(getattr(module, {"text": "text", "pairs": "pairs", "speech": "recorded"}[module.KIND]))
    assert module.KIND == "text" or isinstance(module.MAY_QUOTE, bool)


def test_every_dataset_has_a_kind_and_the_list_shows_it(capsys):
    kinds = {name: registry.dataset(name).KIND for name in registry.datasets()}
    assert set(kinds.values()) == {"text", "pairs", "speech"}
    assert cli.main(["data", "list"]) == 0
    listed = dict(re.findall(r"^(\S+) +(text|pairs|speech) +(?:not )?here ", capsys.readouterr().out, re.MULTILINE))
    assert listed == kinds
