"""Pairs of source and summary: all layouts give the same pairs, and mistakes are one-line errors with a location."""

import json
import re

import pytest

from vocabench.harness.datasets.pairs import summary_pairs
from vocabench.impls.errors import BadInput

SOURCES = {split: [f"{split} source {number} \u00e9" for number in range(4)] for split in ("train", "valid", "test")}
TITLES = {split: [f"title {number} of {split}" for number in range(4)] for split in SOURCES}
EXPECTED = {
    split: [(source, [title]) for source, title in zip(SOURCES[split], TITLES[split], strict=True)] for split in SOURCES
}


pytestmark = pytest.mark.usefixtures("empty_cache")


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def folder_of(tmp_path, names, splits=tuple(SOURCES)):
    folder = tmp_path / "mine"
    for split in splits:
        for name, lines in zip(names[split], (SOURCES[split], TITLES[split]), strict=True):
            write(folder / name, lines)
    return str(folder)


OWN = {split: (f"{split}.source.txt", f"{split}.title.txt") for split in SOURCES}
RUSH = {
    "train": ("train.article.txt", "train.title.txt"),
    "valid": ("valid.article.filter.txt", "valid.title.filter.txt"),
    "test": ("input.txt", "task1_ref0.txt"),
}
ARCHIVE = {
    "train": ("train/train.article.txt", "train/train.title.txt"),
    "valid": ("train/valid.article.filter.txt", "train/valid.title.filter.txt"),
    "test": ("Giga/input.txt", "Giga/task1_ref0.txt"),
}
FILTERED = RUSH | {"train": ("train.article.filter.txt", "train.title.filter.txt")}


@pytest.mark.parametrize("names", [OWN, RUSH, FILTERED, ARCHIVE], ids=["own", "rush", "filtered", "archive"])
def test_all_folder_layouts_give_the_same_pairs(tmp_path, names):
    pairs = summary_pairs.load(folder_of(tmp_path, names))
    assert {split: list(split_pairs) for split, split_pairs in pairs.splits.items()} == EXPECTED
    assert (pairs.name, pairs.licence, pairs.versions) == ("mine", "the user's own", {})


def test_the_checksum_depends_on_the_pairs_and_not_on_the_layout(tmp_path):
    first = summary_pairs.load(folder_of(tmp_path / "a", OWN))
    second = summary_pairs.load(folder_of(tmp_path / "b", RUSH))
    assert first.sha256 == second.sha256
    write(tmp_path / "b" / "mine" / "task1_ref0.txt", ["other"] * 4)
    assert summary_pairs.load(str(tmp_path / "b" / "mine")).sha256 != first.sha256


def test_duc_has_several_references_and_only_a_test_split(tmp_path):
    folder = tmp_path / "duc"
    write(folder / "input.txt", ["a b", "c d"])
    for number in range(4):
        write(folder / f"task1_ref{number}.txt", [f"a {number}", f"c {number}"])
    pairs = summary_pairs.load(str(folder))
    assert set(pairs.splits) == {"test"}
    assert list(pairs.splits["test"]) == [("a b", [f"a {n}" for n in range(4)]), ("c d", [f"c {n}" for n in range(4)])]


def test_json_lines_are_read_and_held_out(tmp_path):
    path = tmp_path / "mine.jsonl"
    records = [{"text": f"s {n}", "summary": f"t {n}"} for n in range(98)]
    records += [{"text": " a\nb ", "summaries": ["x\u2028y", "z\n"]}, {"text": "last", "summary": "\u00e9", "id": 7}]
    write(path, map(json.dumps, records))
    splits = summary_pairs.load(str(path)).splits
    assert [len(splits[split]) for split in ("train", "valid", "test")] == [96, 2, 2]
    assert splits["train"][0] == ("s 0", ["t 0"])
    assert splits["valid"][:] == [("s 96", ["t 96"]), ("s 97", ["t 97"])]
    assert splits["test"][:] == [("a\nb", ["x\u2028y", "z"]), ("last", ["\u00e9"])]
    assert splits["train"][-1] == splits["train"][95] == ("s 95", ["t 95"])
    assert splits["train"][90:2000:4] == [("s 90", ["t 90"]), ("s 94", ["t 94"])]
    for index in (96, -97):
        with pytest.raises(IndexError):
            splits["train"][index]


def test_a_folder_of_json_lines_has_its_splits(tmp_path):
    for split, pairs in EXPECTED.items():
        write(tmp_path / f"{split}.jsonl", (json.dumps({"id": 1, "text": s, "summaries": t}) for s, t in pairs))
    pairs = summary_pairs.load(str(tmp_path))
    assert {split: list(split_pairs) for split, split_pairs in pairs.splits.items()} == EXPECTED


def test_two_files_are_paired_line_by_line(tmp_path):
    write(tmp_path / "a", [f"source {n}" for n in range(3)])
    # Unicode line separators stay within a line; the byte order mark and carriage returns are removed.
    (tmp_path / "b").write_bytes("\ufefft\u2028 0\r\nt\x0b1\r\nt 2".encode())
    splits = summary_pairs.load(f"{tmp_path / 'a'},{tmp_path / 'b'}").splits
    assert [split_pairs[:] for split_pairs in splits.values()] == [
        [("source 0", ["t\u2028 0"])],
        [("source 1", ["t\x0b1"])],
        [("source 2", ["t 2"])],
    ]


def test_digits_become_number_signs(tmp_path):
    folder = folder_of(tmp_path, OWN)
    plain, digits = summary_pairs.load(folder), summary_pairs.load(folder, digits=True)
    assert digits.splits["train"][2] == ("train source # \u00e9", ["title # of train"])
    assert plain.splits["train"][2] == ("train source 2 \u00e9", ["title 2 of train"])
    assert plain.sha256 != digits.sha256


def test_the_cache_is_used_and_repaired(tmp_path, empty_cache, monkeypatch):
    folder = folder_of(tmp_path, OWN)
    first = summary_pairs.load(folder)
    monkeypatch.setattr(summary_pairs, "_write", lambda *_: pytest.fail("written again"))
    assert summary_pairs.load(folder).sha256 == first.sha256
    monkeypatch.undo()
    monkeypatch.setenv("VOCABENCH_CACHE", str(empty_cache))
    next(empty_cache.rglob("train.npy")).write_bytes(b"damaged")
    assert list(summary_pairs.load(folder).splits["train"]) == EXPECTED["train"]


GOOD = b"a\nb\nc\n"


@pytest.mark.parametrize(
    ("source", "title", "message"),
    [
        (b"a\nb\n", GOOD, "source.txt, line 3: the file has ended, train.title.txt has not"),
        (GOOD, b"x\n", "title.txt, line 2: the file has ended, train.source.txt has not"),
        (GOOD, b"x\n \t\nz\n", "title.txt, line 2: it is empty"),
        (b"a\n\nc\n", GOOD, "source.txt, line 2: it is empty"),
        (GOOD, b"x\ny\n\xc3\xa9t\xe9\n", "title.txt, line 3: byte 7 of the file is 0xe9, which is not UTF-8"),
        (b"\xef\xbb\xbfa\xff\n", GOOD, "source.txt, line 1: byte 4 of the file is 0xff"),
        (b"", b"", "train.source.txt: it is empty"),
    ],
)
def test_malformed_text_files_are_refused(tmp_path, empty_cache, source, title, message):
    for name, content in (("train.source.txt", source), ("train.title.txt", title)):
        (tmp_path / name).write_bytes(content)
    fails(str(tmp_path), message)
    assert not list(empty_cache.rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not an object"),
        ('"text"', "not an object"),
        ('{"summary": "t"}', "no text"),
        ('{"text": 1, "summary": "t"}', "no text"),
        ('{"text": " ", "summary": "t"}', "no text"),
        ('{"text": "\\ud800", "summary": "t"}', "no text"),
        ('{"text": "s"}', "no summary and no summaries"),
        ('{"text": "s", "summary": "t", "summaries": ["t"]}', "summary and summaries"),
        ('{"text": "s", "summary": ""}', "a summary is missing"),
        ('{"text": "s", "summary": null}', "a summary is missing"),
        ('{"text": "s", "summaries": []}', "a summary is missing"),
        ('{"text": "s", "summaries": "text"}', "a summary is missing"),
        ('{"text": "s", "summaries": ["t", null]}', "a summary is missing"),
        ("", "it is empty"),
    ],
)
def test_malformed_json_lines_are_refused(tmp_path, line, message):
    path = tmp_path / "mine.jsonl"
    write(path, ['{"text": "s", "summary": "t"}', line, '{"text": "s", "summary": "t"}'])
    fails(str(path), f"mine.jsonl, line 2: {message}")


def test_json_lines_that_are_not_utf8_are_refused(tmp_path):
    (tmp_path / "mine.jsonl").write_bytes(b'{"text": "s", "summary": "t"}\n{"text": "\xe9"}\n')
    fails(str(tmp_path / "mine.jsonl"), "mine.jsonl, line 2: byte 40 of the file is 0xe9")


def test_missing_files_are_refused(tmp_path):
    fails(str(tmp_path / "none.jsonl"), "none.jsonl: no such file")
    fails(f"{tmp_path}/a,{tmp_path}/b", "a: no such file")
    fails(f"{tmp_path}/a,b,c", "3 files: allowed: SOURCE,TITLE")
    fails(f"{tmp_path}/none", "none: no folder")
    fails(str(tmp_path), "no pairs: allowed: train.jsonl, train.source.txt")
    write(tmp_path / "input.txt", ["a"])
    fails(str(tmp_path), "task1_ref0.txt: missing reference")
    write(tmp_path / "task1_ref0.txt", ["a"])
    write(tmp_path / "task1_ref2.txt", ["a"])
    fails(str(tmp_path), "task1_ref1.txt: missing reference")
    write(tmp_path / "valid.source.txt", ["a"])
    fails(str(tmp_path), "valid.title.txt: no such file")


def test_references_of_different_length_are_refused(tmp_path):
    write(tmp_path / "input.txt", ["a", "b"])
    write(tmp_path / "task1_ref0.txt", ["a", "b"])
    write(tmp_path / "task1_ref1.txt", ["a"])
    fails(str(tmp_path), "task1_ref1.txt, line 2: the file has ended, input.txt has not")


def test_too_few_pairs_to_hold_out_are_refused(tmp_path):
    write(tmp_path / "mine.jsonl", ['{"text": "s", "summary": "t"}'] * 2)
    fails(str(tmp_path / "mine.jsonl"), "2 of them: allowed: from 3")


def fails(name, message):
    with pytest.raises(BadInput, match=re.escape(message)) as caught:
        summary_pairs.load(name)
    assert "\n" not in str(caught.value)
    assert "allowed: " in str(caught.value)
