"""pydoc-summaries: the rules for pairs, and the dataset built from a few files."""

import pytest

from vocabench.harness import cli
from vocabench.harness.datasets.pairs import summary_pairs
from vocabench.harness.datasets.pairs.docstrings import summaries_of_file, summary_of
from vocabench.harness.datasets.shared import catalogue
from vocabench.impls.errors import BadInput

BODY = "The numbers are added one after the other, and the sum of all of them is given back."
PLAIN = "the numbers are added one after the other , and the sum of all of them is given back ."


def test_the_first_line_is_the_summary_of_the_rest():
    assert summary_of(f"Add ``numbers`` of a list.\n\n{BODY}") == (PLAIN, "add numbers of a list .")


def test_the_source_consists_of_the_paragraphs_of_the_body():
    blocks = [
        "Add the numbers.",
        BODY,
        ">>> add([1, 2])\n3",
        "Parameters\n----------\nx : list\n    The list of the numbers that are added.",
    ]
    assert summary_of("\n\n".join(blocks)) == (f"{PLAIN} the list of the numbers that are added .", "add the numbers .")


@pytest.mark.parametrize(
    "docstring",
    [
        "",
        "Add the numbers of a list.",
        f"Add the numbers of a list,\nwhich may be long.\n\n{BODY}",
        f"Add the numbers.\n{BODY}",
        f"add\n\n{BODY}",
        f"Add 1 2 3.\n\n{BODY}",
        f"add(a, b=1, *c) -> {{d: e[f]}}\n\n{BODY}",
        f">>> add the numbers of a list\n\n{BODY}",
        f".. deprecated:: use another of them\n\n{BODY}",
        f"{'Add the numbers of a list ' * 6}\n\n{BODY}",
        "Add the numbers of a list.\n\nThey are added to one another.",
        f"Add the numbers of a list.\n\n    >>> {BODY}",
        f"Add {'all of the numbers ' * 5}.\n\n{BODY}",
    ],
    ids=[
        "nothing", "one line", "two lines", "no empty line", "a name", "numbers", "a signature", "a doctest",
        "a directive", "long", "a short body", "no body", "a body shorter than its summary",
    ],
)  # fmt: skip
def test_a_docstring_that_breaks_a_rule_gives_no_pair(docstring):
    assert summary_of(docstring) is None


def test_modules_are_parsed_and_never_executed(tmp_path):
    source = tmp_path / "module.py"
    source.write_text(f'"""Add the numbers.\n\n{BODY}\n"""\nraise SystemExit\ndef f():\n    "none"\n')
    assert summaries_of_file(str(source)) == [(PLAIN, "add the numbers .")]
    source.write_text("def (")
    assert summaries_of_file(str(source)) == []


@pytest.mark.lengthy
def test_the_dataset_follows_its_rules(few_files):
    pairs = summary_pairs.load("pydoc-summaries")
    everything = [pair for split in ("train", "valid", "test") for pair in pairs.splits[split]]
    assert len(everything) > 200
    assert len({source for source, _ in everything}) == len(everything)
    assert len({summary for _, (summary,) in everything}) == len(everything)
    assert all(len(source.split()) > len(summary.split()) >= 3 for source, (summary,) in everything)
    assert {"python", "numpy"} <= set(pairs.versions)


@pytest.mark.lengthy
def test_the_dataset_is_reproducible(few_files, tmp_path, monkeypatch):
    first = summary_pairs.load("pydoc-summaries").sha256
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "other"))
    assert summary_pairs.load("pydoc-summaries").sha256 == first


@pytest.mark.lengthy
def test_the_command_gets_and_verifies_the_dataset(few_files, capsys, tmp_path):
    assert cli.main(["data", "get", "pydoc-summaries"]) == 0
    description = capsys.readouterr().out
    assert "pydoc-summaries: pairs: train " in description
    assert cli.main(["data", "verify", "pydoc-summaries"]) == 0
    assert capsys.readouterr().out.split("sha256 ")[1] == description.split("sha256 ")[1]
    next((tmp_path / "cache" / "texts").rglob("train.jsonl")).write_bytes(b"damaged")
    assert cli.main(["data", "verify", "pydoc-summaries"]) == 2
    assert "is not here, or is damaged" in capsys.readouterr().err


def test_the_dataset_is_not_here_before_it_is_built(few_files):
    with pytest.raises(BadInput, match="vocabench data get pydoc-summaries"):
        catalogue.verify("pydoc-summaries", print)
