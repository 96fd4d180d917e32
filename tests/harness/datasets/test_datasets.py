"""Corpora: words, counts and ids against hand counts; the cache; mistakes of users."""

import json
import os
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vocabench.harness import registry
from vocabench.harness.datasets.shared import catalogue
from vocabench.harness.datasets.text import corpora, tokenization, word_ids
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VOCABENCH_DATA", raising=False)
    return tmp_path / "cache"


def folder_of(tmp_path, train, valid: str | None = "the cat\n", test: str | None = None):
    folder = tmp_path / "mine"
    folder.mkdir()
    for split, content in {"train": train, "valid": valid, "test": test}.items():
        if content is not None:
            (folder / f"{split}.txt").write_text(content, encoding="utf-8")
    return str(folder)


def words_of(corpus, split):
    return [corpus.words[number] for number in corpus.splits[split]]


def test_words_counts_and_ids(tmp_path):
    name = folder_of(tmp_path, "The cat, the dog.\n\n  \nThe 12 dogs don\u2019t\n", "a cat\n", "the end")
    corpus = corpora.load(name, min_count=1)
    assert " ".join(words_of(corpus, "train")) == "the cat , the dog . <eos> the <num> dogs don't <eos>"
    assert words_of(corpus, "valid") == ["<unk>", "cat", "<eos>"]
    assert words_of(corpus, "test") == ["the", "<unk>", "<eos>"]
    assert corpus.words == ["the", "<eos>", ",", ".", "<num>", "cat", "dog", "dogs", "don't", "<unk>"]
    assert corpus.counts_V.tolist() == [3, 2, 1, 1, 1, 1, 1, 1, 1, 0]
    assert corpus.counts_V.dtype == np.int64
    assert all(ids_T.dtype == np.int32 and isinstance(ids_T, np.memmap) for ids_T in corpus.splits.values())


@pytest.mark.parametrize("vocab", [2, 3, 5, 10])
def test_a_vocabulary_has_the_requested_size_and_counts_match_its_ids(tmp_path, vocab):
    corpus = corpora.load(folder_of(tmp_path, "e d d c c c b b b b a a a a a\nf g h\n"), vocab=vocab)
    assert len(corpus.words) == len(corpus.counts_V) == vocab
    assert {"<unk>", "<eos>"} <= set(corpus.words)
    assert np.array_equal(np.bincount(corpus.splits["train"], minlength=vocab), corpus.counts_V)
    assert np.all(np.diff(corpus.counts_V) <= 0)
    assert set(corpus.words) - {"<unk>", "<eos>"} == set("abcdefgh"[: vocab - 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab": 0}, "vocabulary of 0"),
        ({"vocab": 1}, "vocabulary of 1"),
        ({"vocab": -3}, "vocabulary of -3"),
        ({"vocab": 6}, "allowed: from 2 to 5,"),
        ({"min_count": 0}, "min_count=0"),
        ({"min_count": -1}, "min_count=-1"),
        ({"vocab": 3, "min_count": 2}, "allowed: one of them"),
    ],
)
def test_an_impossible_vocabulary_is_refused(tmp_path, cache, arguments, message):
    with pytest.raises(BadInput, match=message):
        corpora.load(folder_of(tmp_path, "a b c\n"), **arguments)
    assert not list(cache.rglob("*.int32"))


def test_rare_words_become_unknown(tmp_path):
    corpus = corpora.load(folder_of(tmp_path, "a a a b b c d\n"), min_count=2)
    assert dict(zip(corpus.words, corpus.counts_V.tolist(), strict=True)) == {"a": 3, "<unk>": 2, "b": 2, "<eos>": 1}


def test_unknown_words_in_the_text_count_as_unknown(tmp_path):
    path = tmp_path / "train"
    path.write_text("a <unk> b <unk> a c\n")
    splits = {split: tokenization.tokens(path, "lines") for split in ("train", "valid")}
    word_ids.encode("x", splits, 4, 1, tmp_path, print)
    assert (tmp_path / "words.txt").read_text().split() == ["<unk>", "a", "<eos>", "b"]
    assert np.load(tmp_path / "counts.npy").tolist() == [3, 2, 1, 1]
    assert word_ids.read_ids(tmp_path, "valid").tolist() == [1, 0, 3, 0, 1, 0, 2]


def test_tokenized_lines_keep_their_words_and_empty_lines(tmp_path):
    path = tmp_path / "wiki"
    path.write_text(" \n = A <unk> = \n\n x @-@ y\nlast", encoding="utf-8")
    words = [word for batch in tokenization.tokens(path, "lines") for word in batch]
    assert " ".join(words) == "<eos> = A <unk> = <eos> <eos> x @-@ y <eos> last <eos>"


@pytest.mark.parametrize("rule", list(tokenization.RULES))
def test_the_size_of_pieces_does_not_change_the_words(tmp_path, monkeypatch, rule):
    rng = np.random.default_rng(0)
    text = "".join(rng.choice(list("ab\u00e9 \n,."), size=3000, p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.05, 0.05]).tolist())
    path = tmp_path / "text"
    path.write_text(text, encoding="utf-8")
    whole = [word for batch in tokenization.tokens(path, rule) for word in batch]
    for size in (64, 101, 777):
        monkeypatch.setattr(tokenization, "_CHUNK_CHARACTERS", size)
        assert [word for batch in tokenization.tokens(path, rule) for word in batch] == whole
    expected = {
        "whitespace": text.split(),
        "lines": text.replace("\n", " <eos> ").split() + ([] if text.endswith("\n") else ["<eos>"]),
        "english": [
            word
            for line in text.split("\n")
            if tokenization.words_of(line)
            for word in [*tokenization.words_of(line), "<eos>"]
        ],
    }[rule]
    assert whole == expected


def test_ids_are_renumbered_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr(word_ids, "_BLOCK", 7)
    rng = np.random.default_rng(1)
    words = [f"w{chr(97 + number)}" for number in rng.zipf(1.5, size=400) % 20]
    corpus = corpora.load(folder_of(tmp_path, "\n".join(words)), vocab=8)
    counts = Counter(words)
    assert all(corpus.counts_V[corpus.words.index(word)] == counts[word] for word in corpus.words if word[0] == "w")
    kept = set(corpus.words)
    expected = [token for word in words for token in (word if word in kept else "<unk>", "<eos>")]
    assert words_of(corpus, "train") == expected


def test_the_cache_is_used_and_repaired(tmp_path, cache, monkeypatch):
    name = folder_of(tmp_path, "a b c a\n")
    first = corpora.load(name)
    monkeypatch.setattr(word_ids, "encode", lambda *_: pytest.fail("encoded again"))
    assert np.array_equal(corpora.load(name).splits["train"], first.splits["train"])
    monkeypatch.undo()
    monkeypatch.setenv("VOCABENCH_CACHE", str(cache))
    expected = first.splits["train"].tolist()
    for damage in (lambda path: path.write_bytes(bytes(4)), lambda path: path.unlink(), _flip_last_bit):
        damage(next(cache.rglob("train.int32")))
        assert corpora.load(name).splits["train"].tolist() == expected
    next(cache.rglob("manifest.json")).write_text("{")
    assert corpora.load(name).splits["train"].tolist() == expected
    assert not [path for path in cache.rglob(".*") if path.is_dir()]


def _flip_last_bit(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_another_text_or_rule_is_another_cache_entry(tmp_path):
    name = folder_of(tmp_path, "a b c a\n")
    first = corpora.load(name)
    (tmp_path / "mine" / "valid.txt").write_text("c\n")
    second = corpora.load(name)
    assert first.sha256 != second.sha256
    assert words_of(second, "valid") == ["c", "<eos>"]
    assert len(corpora.load(name, vocab=3).words) == 3


def test_concurrent_calls_fill_one_folder(tmp_path):
    def fill(folder):
        (folder / "file").write_text("whole")

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: cache_folder.filled(tmp_path / "entry", fill), range(32)))
    assert {(folder / "file").read_text() for folder in folders} == {"whole"}
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_a_failed_build_leaves_nothing_in_the_cache(tmp_path):
    def fill(folder):
        (folder / "file").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(BadInput, match=r"entry: No space left on device"):
        cache_folder.filled(tmp_path / "entry", fill)
    assert not list(tmp_path.iterdir())


def test_files_of_a_killed_process_are_removed_a_day_later(tmp_path):
    for name, age in ((".entry-old", 90_000), (".entry-new", 60), (".other-old", 90_000)):
        (tmp_path / name / "new").mkdir(parents=True)
        modified = time.time() - age
        os.utime(tmp_path / name, (modified, modified))
    cache_folder.filled(tmp_path / "entry", lambda folder: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".entry-new", ".other-old", "entry"]


def test_an_unwritable_cache_is_refused(tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file where the folder should be")
    monkeypatch.setenv("VOCABENCH_CACHE", str(tmp_path / "taken"))
    with pytest.raises(BadInput, match=r"cache folder .*taken.*VOCABENCH_CACHE"):
        corpora.load(folder_of(tmp_path, "a b c\n"))


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("VOCABENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder.path() == tmp_path / "vocabench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder.path() == tmp_path / "home" / ".cache" / "vocabench"


@pytest.mark.parametrize("splits", [{"train": "", "valid": "a\n"}, {"train": "a b\n", "valid": "\n *** \n"}])
def test_an_empty_split_is_refused(tmp_path, splits):
    with pytest.raises(BadInput, match=r"no words in its (train|valid) split"):
        corpora.load(folder_of(tmp_path, splits["train"], splits["valid"]))


def test_a_missing_split_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"no valid\.txt"):
        corpora.load(folder_of(tmp_path, "a b\n", None))


def test_an_error_in_a_held_out_part_names_the_whole_file_and_its_byte(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes(b"good line\n" * 1000 + b"bad \xff\n")  # in the held-out part
    with pytest.raises(BadInput, match=rf"text file {path}: byte 10,004 is 0xff, which is not UTF-8"):
        corpora.load(str(path))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"caf\xe9 au lait\n", "byte 3 is 0xe9"),
        (b"good line\n" * 200_000 + b"bad \xff\n", "byte 2,000,004 is 0xff"),
        (b"x" + "\u00e9".encode() * (1 << 19) + b"\xfe", "byte 1,048,577 is 0xfe"),
        (b"cut \xc3", "byte 4 begins a character that does not end"),
    ],
)
def test_text_that_is_not_utf8_is_refused(tmp_path, content, where):
    name = folder_of(tmp_path, "")
    (tmp_path / "mine" / "train.txt").write_bytes(content)
    with pytest.raises(BadInput, match=rf"train\.txt: {where}"):
        corpora.load(name)


def test_a_file_without_spaces_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenization, "_CHUNK_CHARACTERS", 100)
    with pytest.raises(BadInput, match="no space or line end in 200 characters"):
        corpora.load(folder_of(tmp_path, "\0" * 1000))


def test_a_single_file_is_cut_at_lines(tmp_path):
    lines = [f"line {'x' * (number % 7)} {number}" for number in range(400)]
    (tmp_path / "one.txt").write_text("\n".join(lines))
    corpus = corpora.load(str(tmp_path / "one.txt"))
    sizes = {split: words_of(corpus, split).count("<eos>") for split in corpus.splits}
    assert sum(sizes.values()) == 400
    assert sizes["train"] == pytest.approx(380, abs=2)
    assert sizes["valid"] == pytest.approx(10, abs=2)
    assert all(words_of(corpus, split)[0] == "line" for split in corpus.splits)


@pytest.mark.parametrize("lines", [1, 20, 39, 40])
def test_a_single_file_that_is_too_short_is_refused_with_the_required_length(tmp_path, lines):
    (tmp_path / "one.txt").write_text("a line\n" * lines)
    with pytest.raises(BadInput, match=r"one\.txt: too short to hold out a (valid|test) split: allowed: 41 lines"):
        corpora.load(str(tmp_path / "one.txt"))


@pytest.mark.parametrize("lines", [41, 42, 60, 80, 100])
def test_a_single_file_of_the_required_length_has_all_splits(tmp_path, lines):
    (tmp_path / "one.txt").write_text("a line\n" * lines)
    assert all(len(ids_T) for ids_T in corpora.load(str(tmp_path / "one.txt")).splits.values())


@pytest.mark.parametrize("rule", list(tokenization.RULES))
def test_a_byte_order_mark_is_not_part_of_a_word(tmp_path, rule):
    path = tmp_path / "marked.txt"
    path.write_text("a b", encoding="utf-8-sig")
    assert [word for batch in tokenization.tokens(path, rule) for word in batch][:2] == ["a", "b"]


def test_a_single_long_line_is_cut_at_words(tmp_path):
    (tmp_path / "one.txt").write_text("alpha beta gamma " * 500)
    corpus = corpora.load(str(tmp_path / "one.txt"))
    assert set(corpus.words) == {"alpha", "beta", "gamma", "<eos>", "<unk>"}
    assert corpus.counts_V[corpus.words.index("<unk>")] == 0
    assert sum(len(ids_T) for ids_T in corpus.splits.values()) == 1503


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pydok", "unknown dataset 'pydok': did you mean 'pydoc'"),
        ("no/such/folder", "text no/such/folder: no such file or folder"),
        ("nothing.txt", "text nothing.txt: no such file"),
    ],
)
def test_a_missing_dataset_is_refused(name, message):
    with pytest.raises(BadInput, match=message):
        corpora.load(name)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(BadInput, match=r"empty\.txt: it is empty"):
        corpora.load(str(tmp_path / "empty.txt"))


def test_the_catalogue_lists_all_datasets_and_builds_none(cache):
    entries = {entry.name: entry for entry in catalogue.describe()}
    assert list(entries) == registry.datasets()
    assert {"pydoc", "pydoc-small", "ptb", "text8", "text8-prefix", "eltec-eng", "wikitext-2", "wikitext-103"} <= set(
        entries
    )
    assert not any(entry.is_here for entry in entries.values())
    assert all(entry.description and entry.licence and entry.source for entry in entries.values())
    assert not cache.exists()


def test_datasets_import_no_framework():
    code = (
        "import sys, json; from vocabench.harness.datasets.shared import catalogue; catalogue.describe(); "
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "tensorflow", "jax", "keras", "pandas", "scipy"} & set(json.loads(done.stdout))


@pytest.mark.parametrize("word", ["हिन्दी", "தமிழ்", "مُحَمَّد", "שָׁלוֹם", "i\u0307stanbul", "e\u0301te\u0301"])
def test_combining_marks_are_part_of_the_letter_before_them(word):
    composed = unicodedata.normalize("NFC", word)
    assert tokenization.words_of(f"{word}, l'{word} 3") == [composed, ",", f"l'{composed}", tokenization.NUMBER]


def test_a_mark_without_a_letter_is_no_word():
    assert tokenization.words_of("\u0301 a") == ["a"]
