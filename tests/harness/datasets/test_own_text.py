"""Users' own text: tokenized formats taken as they are, line ends, and <unk> that is trained."""

import json
import math
from collections import Counter

import pytest

from vocabench.harness.datasets.pairs import summary_pairs
from vocabench.harness.datasets.text import corpora, tokenization
from vocabench.harness.run import doubts
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Row
from vocabench.harness.run.settings import task_settings
from vocabench.harness.tasks import language_modelling
from vocabench.impls.errors import BadInput

WIKITEXT = {
    "train": " \n = Valkyria Chronicles III = \n \n Senjō no <unk> 3 : <unk> Chronicles ( 3 ) , is @-@ a . \n",
    "valid": " \n = Homarus = \n \n The <unk> is a Chronicles . \n",
    "test": " \n = Robert <unk> = \n",
}
PTB = {
    "train": " aer banknote N <unk> the \n pierre <unk> N years old will join the board as a nonexecutive director \n",
    "valid": " consumers may want to move the <unk> N \n",
    "test": " no it was n't black monday \n",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VOCABENCH_DATA", raising=False)


def folder_of(tmp_path, texts):
    folder = tmp_path / "mine"
    folder.mkdir()
    for split, content in texts.items():
        (folder / f"{split}.txt").write_bytes(content.encode())
    return str(folder)


def words_of(corpus, split):
    return [corpus.words[number] for number in corpus.splits[split]]


def cell_of(name, corpus, **settings):
    return Cell(
        suite="x",
        task="language_modelling",
        framework="numpy",
        method="unigram",
        vocab=len(corpus.words),
        dim=8,
        tokens=8,
        dataset=name,
        dataset_sha256=corpus.sha256,
        settings=task_settings("language_modelling", settings, {}),
    )


def unigram(name, corpus, **settings):
    return language_modelling.run(cell_of(name, corpus, **settings), lambda line: None)


@pytest.mark.parametrize("texts", [WIKITEXT, PTB], ids=["WikiText", "PTB"])
def test_tokenized_text_is_taken_as_it_is(tmp_path, texts):
    name = folder_of(tmp_path, texts)
    corpus = corpora.load(name, rule="lines")
    tokens = {
        split: [token for line in content.splitlines() for token in [*line.split(), "<eos>"]]
        for split, content in texts.items()
    }
    counts = Counter(tokens["train"])
    assert dict(zip(corpus.words, corpus.counts_V.tolist(), strict=True)) == counts
    for split, of_split in tokens.items():
        assert words_of(corpus, split) == [token if token in counts else "<unk>" for token in of_split]
        assert corpus.unseen[split] == sum(token not in counts for token in of_split)

    known = [token if token in counts else "<unk>" for token in tokens["test"]][1:]
    nll = [-math.log((counts[token] + 1) / (counts.total() + len(counts))) for token in known]
    result = unigram(name, corpus, text_rule="lines")
    measured = {measurement.quantity: measurement.value for measurement in result.measurements}
    assert measured["perplexity"] == pytest.approx(math.exp(sum(nll) / len(nll)), rel=1e-12)
    without = [value for token, value in zip(known, nll, strict=True) if token != "<unk>"]
    assert measured["known_perplexity"] == pytest.approx(math.exp(sum(without) / len(without)), rel=1e-12)
    assert result.data["text_rule"] == "lines"


def test_an_end_of_line_in_the_text_is_not_repeated(tmp_path):
    path = tmp_path / "text"
    path.write_text("a b <eos>\nc\n<eos>\n\nd <eos> e\nf <eos> ")
    words = [word for batch in tokenization.tokens(path, "lines") for word in batch]
    assert " ".join(words) == "a b <eos> c <eos> <eos> <eos> d <eos> e <eos> f <eos>"


@pytest.mark.parametrize("symbol", ["<unk>", "<eos>"])
def test_tokenized_text_needs_a_rule(tmp_path, symbol):
    name = folder_of(tmp_path, {"train": f"a\nb\na {symbol} b\n", "valid": "a\n"})
    with pytest.raises(BadInput, match=f"line 3 of its train split: {symbol}.*allowed: --text-rule lines"):
        corpora.load(name)
    assert "unk" in corpora.load(name, rule="english").words or symbol == "<eos>"
    assert "eos" not in corpora.load(name, rule="whitespace").words


def test_rows_of_different_rules_are_told_apart(tmp_path):
    name = folder_of(tmp_path, {"train": "A a b 3\n", "valid": "a\n"})
    found = {rule: corpora.load(name, rule=rule, min_count=1) for rule in corpora.RULES}
    assert found["dataset"].sha256 == found["english"].sha256
    assert len({corpus.sha256 for corpus in found.values()}) == 3
    assert found["lines"].name == "mine, text rule lines"
    assert set(found["whitespace"].words) == {"A", "a", "b", "3", "<unk>"}
    with pytest.raises(BadInput, match="text rule 'line': did you mean 'lines'"):
        corpora.load(name, rule="line")


@pytest.mark.parametrize("rule", ["english", "lines"])
@pytest.mark.parametrize("end", ["\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"])
def test_every_line_end_of_unicode_ends_a_line(tmp_path, rule, end):
    lines = [f"word{letter} and more" for letter in "abcdefgh"] * 20
    (tmp_path / "lf.txt").write_bytes("\n".join(lines).encode())
    (tmp_path / "other.txt").write_bytes(end.join(lines).encode())
    expected, found = (corpora.load(str(tmp_path / name), rule=rule, min_count=1) for name in ("lf.txt", "other.txt"))
    assert sum(words_of(found, split).count("<eos>") for split in found.splits) == len(lines)
    for split in found.splits:  # cut at a line end, although the files have other sizes
        assert words_of(found, split)[-1] == "<eos>"
    assert found.counts_V.sum() == expected.counts_V.sum() or len(end.encode()) > 1


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"train": "a a b\n", "valid": "a c\n"}, {"a": 2, "<unk>": 1, "<eos>": 1}),
        ({"train": "a a b\n", "valid": "a b\n"}, {"a": 2, "<unk>": 0, "<eos>": 1, "b": 1}),
        ({"train": "a a b <unk>\n", "valid": "a c\n"}, {"a": 2, "<unk>": 1, "<eos>": 1, "b": 1}),
    ],
    ids=["unseen words", "no unseen words", "<unk> in the text"],
)
def test_unknown_words_are_trained_where_they_occur(tmp_path, texts, expected):
    name = folder_of(tmp_path, texts)
    corpus = corpora.load(name, rule="lines")
    assert dict(zip(corpus.words, corpus.counts_V.tolist(), strict=True)) == expected
    assert corpora.load(name, rule="lines", min_count=1).counts_V.sum() == corpus.counts_V.sum()


def test_the_row_has_the_share_of_unseen_targets(tmp_path):
    name = folder_of(tmp_path, {"train": "a a b b c\n", "valid": "a c d e\n"})
    corpus = corpora.load(name, rule="lines")
    (perplexity, *_) = unigram(name, corpus, text_rule="lines").measurements
    assert perplexity.detail["unseen_targets"] == 2 / 5
    assert perplexity.detail["unknown_targets"] == 3 / 4  # c, d and e of c, d, e and <eos>


def test_lines_that_were_trained_on_are_counted(tmp_path):
    name = folder_of(tmp_path, {"train": "a b\n\nc d\ne\n", "valid": " c d\r\n\nx\n", "test": "y\n"})
    assert corpora.load(name).shared_with_training == {"valid": 0.5, "test": 0.0}
    assert corpora.load(name, rule="whitespace").shared_with_training == {}
    (perplexity, *_) = unigram(name, corpora.load(name, rule="lines"), text_rule="lines").measurements
    assert perplexity.detail["shared_with_training"] == 0.0


def test_pairs_that_were_trained_on_are_counted(tmp_path):
    pairs = {
        "train": [("a 1", "x"), ("b", "y")],
        "valid": [("a 1", "x"), ("a 1", "y"), ("a 2", "x"), ("b 1", "y")],
        "test": [("b", "y")],
    }
    for split, of_split in pairs.items():
        lines = [json.dumps({"text": text, "summary": summary}) for text, summary in of_split]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    for digits in (False, True):
        found = summary_pairs.load(str(tmp_path), digits=digits)
        assert found.shared_with_training == {"valid": 0.25, "test": 1.0}


def test_the_terminal_tells_of_data_that_was_trained_on(tmp_path):
    name = folder_of(tmp_path, {"train": "a b\nc d\n", "valid": "c d\nx\n"})
    corpus = corpora.load(name)
    row = Row("key", cell_of(name, corpus), "ok", measurements=unigram(name, corpus).measurements)
    assert list(doubts.warnings([row])) == [
        f"50.0% of the valid split of {name} is in the training split too: scores flatter the models"
    ]
