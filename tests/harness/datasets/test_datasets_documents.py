"""Documents with labels: users' files, and the docstrings of a few source files."""

import json

import numpy as np
import pytest

from vocabench.harness import cli
from vocabench.harness.datasets.documents import encoded_documents
from vocabench.harness.datasets.documents.docstrings import documents_of_file
from vocabench.harness.datasets.shared import catalogue
from vocabench.impls.errors import BadInput

WORDS = [f"{a}{b}" for a in "abcdefg" for b in "aeiou"]


def write(path, documents):
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in documents))


def some(count, seed=0):
    rng = np.random.default_rng(seed)
    return [(" ".join(rng.choice(WORDS, 8)), int(n % 3)) for n in range(count)]


def texts_of(data, split):
    return [
        " ".join(data.words[n] for n in data.splits[split].texts.joined(np.array([p])))
        for p in range(len(data.splits[split]))
    ]


def test_a_file_is_split_by_its_texts(tmp_path, empty_cache):
    documents = some(200)
    write(tmp_path / "own.jsonl", documents)
    data = encoded_documents.load(str(tmp_path / "own.jsonl"), min_count=1)
    assert data.name == "own"
    assert data.labels == ["0", "1", "2"]
    held_out = set(texts_of(data, "test"))
    assert 20 < len(held_out) < 60
    assert sorted([*texts_of(data, "train"), *held_out]) == sorted(text for text, _ in documents)
    assert data.counts_V.sum() == len(data.splits["train"].texts.ids_T)
    by_text = {text: str(label) for text, label in documents}
    for split, part in data.splits.items():
        assert [data.labels[n] for n in part.labels_N] == [by_text[text] for text in texts_of(data, split)]
    write(tmp_path / "other.jsonl", reversed(documents))
    assert set(texts_of(encoded_documents.load(str(tmp_path / "other.jsonl"), min_count=1), "test")) == held_out


def test_a_folder_has_its_own_split_and_text_is_tokenized(tmp_path, empty_cache):
    write(tmp_path / "train.jsonl", [("The cat, the DOG!", "pets"), ("the cat", "pets")])
    write(tmp_path / "test.jsonl", [("A cat the", "pets")])
    data = encoded_documents.load(str(tmp_path), min_count=2)
    assert data.words[:2] == ["<unk>", "the"]
    assert texts_of(data, "train") == ["the cat <unk> the <unk> <unk>", "the cat"]
    assert texts_of(data, "test") == ["<unk> cat the"]
    assert data.splits["train"].document_T.tolist() == [0] * 6 + [1] * 2


def test_documents_that_are_also_in_training_are_counted(tmp_path, empty_cache):
    write(tmp_path / "train.jsonl", [("the cat", "pets"), ("the dog", "pets")])
    write(tmp_path / "test.jsonl", [("the dog", "pets"), ("the  dog", "pets"), (" the cat ", "cats"), ("cat", "cats")])
    assert encoded_documents.load(str(tmp_path), min_count=1).shared_with_training == {"test": 0.5}
    # Of a single file, equal texts are in the same split.
    write(tmp_path / "own.jsonl", [*some(200), *some(200)])
    assert encoded_documents.load(str(tmp_path / "own.jsonl"), min_count=1).shared_with_training == {"test": 0.0}


def test_documents_that_are_tokenized_already_need_a_rule(tmp_path, empty_cache):
    write(tmp_path / "train.jsonl", [("The <unk> , sat", "pets"), ("The N <unk>", "pets")])
    write(tmp_path / "test.jsonl", [("The N N", "pets")])
    with pytest.raises(BadInput, match=r"train\.jsonl, line 1: <unk>, as in text that is tokenized already: allowed: "):
        encoded_documents.load(str(tmp_path), min_count=1)
    data = encoded_documents.load(str(tmp_path), min_count=1, rule="whitespace")
    assert texts_of(data, "train") == ["The <unk> , sat", "The N <unk>"]
    assert (data.rule, data.name) == ("whitespace", f"{tmp_path.name}, text rule whitespace")
    english = encoded_documents.load(str(tmp_path), min_count=1, rule="english")
    assert texts_of(english, "train") == ["the unk , sat", "the n unk"]
    assert english.sha256 != data.sha256
    with pytest.raises(BadInput, match="unknown text rule 'lines': allowed: dataset, english, whitespace"):
        encoded_documents.load(str(tmp_path), rule="lines")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"label": "x"}', r"own.jsonl, line 2: no text: allowed: \{"),
        ('{"text": "x"}', "line 2: no label"),
        ('{"text": "", "label": "x"}', "line 2: its text is empty or not text"),
        ('{"text": "x", "label": true}', "line 2: its label is empty, or neither text nor a whole number"),
        ('{"text": "x", "label": " "}', "line 2: its label is empty"),
        ('["x", "y"]', "line 2: not an object"),
        ("text", "line 2: not JSON"),
        ("", "line 2: it is empty"),
        ('{"text": "unheard of", "label": "x"}', "line 2: no word of its text is in the vocabulary: allowed: at least"),
        ('{"text": "()", "label": "x"}', "line 2: no word of its text is in the vocabulary"),
    ],
)
def test_a_bad_line_is_named(line, message, tmp_path, empty_cache):
    path = tmp_path / "own.jsonl"
    write(path, some(100))
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([first, line, *others]) + "\n")
    with pytest.raises(BadInput, match=message) as raised:
        encoded_documents.load(str(path), vocab=len(WORDS))
    assert "\n" not in str(raised.value)


def test_what_is_no_dataset_of_documents_is_refused(tmp_path, empty_cache):
    with pytest.raises(BadInput, match="'pydoc-small' is running text, not documents with labels: allowed: pydoc-doc"):
        encoded_documents.load("pydoc-small")
    with pytest.raises(BadInput, match=r"no such file: allowed: a \.jsonl file"):
        encoded_documents.load(str(tmp_path / "none.jsonl"))
    with pytest.raises(BadInput, match=r"no train\.jsonl: allowed: train\.jsonl and test\.jsonl"):
        encoded_documents.load(str(tmp_path))
    write(tmp_path / "one.jsonl", [("a few words", "x")])
    with pytest.raises(BadInput, match=r"documents one: none in the (train|test) split: allowed: more documents"):
        encoded_documents.load(str(tmp_path / "one.jsonl"))


LONG = "The numbers are added one after the other, and the sum of all of them is given back to the caller at once."


def test_docstrings_of_twenty_words_are_documents(tmp_path):
    source = tmp_path / "module.py"
    source.write_text(
        f'"""{LONG}\n\n    >>> add(1)\n\nThe sum is exact."""\ndef f():\n    "Add the numbers of a list."\n'
    )
    plain = LONG.lower().replace(",", " ,").replace(".", " .")
    assert documents_of_file(str(source)) == [plain]
    source.write_text("def (")
    assert documents_of_file(str(source)) == []


@pytest.mark.lengthy
def test_the_dataset_follows_its_rules(few_files, capsys, tmp_path):
    data = encoded_documents.load("pydoc-documents")
    texts = {split: texts_of(data, split) for split in ("train", "test")}
    assert len(texts["train"]) > 3 * len(texts["test"]) > 60
    assert all(len(text.split()) >= 20 for of_split in texts.values() for text in of_split)
    assert "python.argparse" in data.labels
    assert all(label.startswith("python.") and not label.endswith("__init__") for label in data.labels)
    shared = set(data.splits["train"].labels_N.tolist()) & set(data.splits["test"].labels_N.tolist())
    assert len(shared) > 10
    assert cli.main(["data", "get", "pydoc-documents"]) == 0
    described = capsys.readouterr().out
    assert f"documents: train {len(texts['train']):,}, test {len(texts['test']):,}" in described
    assert cli.main(["data", "verify", "pydoc-documents"]) == 0
    assert capsys.readouterr().out.split("sha256 ")[1] == described.split("sha256 ")[1]
    next((tmp_path / "cache" / "texts").rglob("documents.jsonl")).write_bytes(b"damaged")
    with pytest.raises(BadInput, match="is not here, or is damaged"):
        catalogue.verify("pydoc-documents", print)
