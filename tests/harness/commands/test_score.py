"""`vocabench score`: files to scores, intervals and tests between systems, and mistakes in files."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from vocabench.harness import cli

DATA = Path(os.environ.get("VOCABENCH_DATA", ""), "rouge")


@pytest.fixture
def write(in_empty_folder):
    def written(name, *lines):
        (in_empty_folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return name

    return written


@pytest.fixture
def score(capsys):
    """Return the function that scores as the command does, and returns its JSON object."""

    def run(*arguments):
        assert cli.main(["score", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def values(result):
    return {name: each["value"] for name, each in result["scores"].items()}


def test_word_errors_of_plain_text(write, score):
    result = score("wer", write("out.txt", "the cat sat", "", "Yes!"), write("ref.txt", "the cat", "no", "yes"))
    assert result["counts"] == {
        "utterances": 3,
        "utterances_with_errors": 2,
        "words": 4,
        "correct": 3,
        "substitutions": 0,
        "deletions": 1,
        "insertions": 1,
        "errors": 2,
    }
    assert values(result) == {"wer": 0.5}
    assert "case:lower|punctuation:drop" in result["signature"]
    assert score("wer", "out.txt", "ref.txt", "--case", "keep", "--punctuation", "keep")["counts"]["substitutions"] == 1


def test_transcripts_match_by_id_and_have_alternatives(write, score):
    references = write("ref.trn", ";; a comment", "a { b / @ } C (x_1)", "{ age old / age-old } uh (x_2)")
    outputs = write("out.trn", "age-old %HESITATION (x_2)", "a c (x_1)")
    result = score("wer", outputs, references)
    assert result["counts"]["words"] == 4
    assert (result["counts"]["correct"], result["counts"]["errors"]) == (3, 1)
    assert "alignment:sclite|costs:4-3-3" in result["signature"]
    dropped = score("wer", outputs, references, "--drop", "%hesitation,uh")
    assert (dropped["counts"]["words"], dropped["counts"]["errors"]) == (3, 0)
    assert dropped["signature"].endswith("|dropped:%hesitation,uh")


def test_characters_and_phones(write, score):
    outputs, references = write("out.txt", "ab c"), write("ref.txt", "ab d")
    assert values(score("cer", outputs, references)) == {"cer": 0.25}
    assert values(score("cer", outputs, references, "--spaces", "drop")) == {"cer": pytest.approx(1 / 3)}
    trn = write("out.trn", "ab c (u)"), write("ref.trn", "ab { d / ce } (u)")
    assert score("cer", *trn)["counts"]["characters"] in (3, 4)
    assert values(score("cer", *trn))["cer"] == pytest.approx(0.25)
    phones = (
        write("p.jsonl", '{"id": 1, "text": "x", "phones": "k \u02c8a t"}'),
        write("q.jsonl", '{"id": 1, "phones": "k a d"}'),
    )
    assert values(score("per", *phones)) == {"per": pytest.approx(1 / 3)}
    assert score("per", *phones, "--stress", "keep")["counts"]["substitutions"] == 2


def test_two_systems_are_compared_on_the_same_samples(write, score, capsys):
    rng = np.random.default_rng(1)
    words = [[f"w{number}" for number in rng.integers(0, 50, 8)] for _ in range(60)]

    def system(name, errors):
        lines = [" ".join("x" if rng.random() < errors else word for word in sentence) for sentence in words]
        return write(name, *lines)

    references = write("ref.txt", *map(" ".join, words))
    good, bad = system("good.txt", 0.05), system("bad.txt", 0.4)
    result = score("wer", good, references, "--against", bad)
    against = result["against"]
    difference = against["differences"]["wer"]
    assert difference["value"] == pytest.approx(values(result)["wer"] - against["scores"]["wer"]["value"])
    assert difference["high"] < 0
    assert difference["p_value"] == pytest.approx(1 / 1001)
    assert score("wer", good, references, "--against", good)["against"]["differences"]["wer"]["p_value"] == 1
    assert cli.main(["score", "wer", good, references, "--against", bad, "--out", "wer.txt"]) == 0
    printed = capsys.readouterr().out
    assert "; difference -" in printed
    assert Path("wer.txt").read_text() == printed
    rouge = score("rouge", good, references, "--against", bad)["against"]["differences"]
    assert rouge["rouge2_f1"]["low"] > 0


def test_references_with_alternatives_may_have_another_length_for_each_system(write, score):
    references = write("ref.trn", "a { b c / d } (u)", "e (v)")
    first, second = write("a.trn", "a b c (u)", "e (v)"), write("b.trn", "a d (u)", "f (v)")
    result = score("wer", first, references, "--against", second)
    assert (result["counts"]["words"], result["against"]["counts"]["words"]) == (4, 3)
    assert result["against"]["differences"]["wer"]["value"] == pytest.approx(0 - 1 / 3)


@pytest.mark.skipif(not DATA.is_dir(), reason="VOCABENCH_DATA has no folder rouge")
@pytest.mark.parametrize(
    ("number", "stemming", "expected"),
    [
        (0, False, {"rouge1": (0.68750, 0.40741, 0.51163), "rouge2": (0.53333, 0.30769, 0.39024)}),
        (0, True, {"rouge1": (0.68750, 0.40741, 0.51163), "rougeL": (0.68750, 0.40741, 0.51163)}),
        (1, False, {"rouge1": (0.65385, 0.40476, 0.50000), "rouge2": (0.48000, 0.29268, 0.36364)}),
        (1, True, {"rouge1": (0.69231, 0.42857, 0.52941), "rouge2": (0.48000, 0.29268, 0.36364)}),
    ],
)
def test_the_figures_of_rouge_1_5_5(number, stemming, expected, write, score):
    files = [
        write(name, (DATA / name).read_text(encoding="utf-8").splitlines()[number])
        for name in ("prediction.txt", "target.txt")
    ]
    found = values(score("rouge", *files, *(["--stemming"] if stemming else [])))
    for measure, figures in expected.items():
        names = [f"{measure}_{quantity}" for quantity in ("precision", "recall", "f1")]
        assert [round(found[name], 5) for name in names] == list(figures)


def test_summaries_with_several_references(write, score):
    outputs = write("out.jsonl", '{"id": "b", "summary": "a b"}', '{"id": "a", "summary": "c d"}')
    references = write(
        "ref.jsonl",
        '{"id": "a", "text": "the source", "summaries": ["c d", "x y"]}',
        '{"id": "b", "text": "the source", "summaries": ["a b", "a z"]}',
    )
    best = score("rouge", outputs, references, "--combine", "best")
    assert best["counts"] == {"samples": 2, "references": 4}
    assert values(best)["rouge1_f1"] == 1
    texts = write("out.txt", "c d"), write("first.txt", "c d"), write("second.txt", "x y")
    assert values(score("rouge", *texts))["rouge1_recall"] == 0.5


@pytest.mark.parametrize(("base", "unit"), [("e", 1.0), ("2", math.log(2)), ("10", math.log(10))])
def test_perplexity_of_log_probabilities(base, unit, write, score):
    sentences = [[-1.5, -0.25], [-3.0, 0.0, -2.25]]
    lines = [" ".join(str(value / unit) for value in sentence) for sentence in sentences]
    result = score("perplexity", write("p.txt", *lines), "--log", base)
    assert result["counts"] == {"sentences": 2, "tokens": 5}
    assert values(result) == {
        "perplexity": pytest.approx(math.exp(7 / 5)),
        "bits_per_token": pytest.approx(7 / 5 / math.log(2)),
    }
    interval = result["scores"]["perplexity"]
    assert (interval["low"], interval["high"]) == (pytest.approx(math.exp(0.875)), pytest.approx(math.exp(5.25 / 3)))


def test_perplexity_of_json_lines_against_another_model(write, score):
    first = write("a.jsonl", *(json.dumps({"log_probs": [-1.0, -2.0 - number / 9]}) for number in range(9)))
    second = write("b.jsonl", *(json.dumps({"log_probs": [-1.5, -2.5 - number / 9]}) for number in range(9)))
    against = score("perplexity", first, "--against", second)["against"]
    assert against["differences"]["bits_per_token"]["value"] == pytest.approx(-0.5 / math.log(2))
    assert against["differences"]["bits_per_token"]["p_value"] == pytest.approx(1 / 1001)


@pytest.mark.parametrize(
    ("arguments", "files", "message"),
    [
        ("wer a.txt b.txt", {"a.txt": ["x"], "b.txt": ["x", "y"]}, "a.txt has 1 samples and b.txt 2: allowed: as many"),
        ("wer a.txt b.txt", {"a.txt": [], "b.txt": ["x"]}, "a.txt: the file is empty: allowed: one sample per line"),
        ("wer a.txt b.txt", {"a.txt": ["x"], "b.txt": [""]}, "1 references without a symbol"),
        ("wer a.trn b.trn", {"a.trn": ["x (u)"], "b.trn": ["x (u)", "y (v)"]}, "b.trn, line 2: id 'v' not in a.trn"),
        ("wer a.trn b.trn", {"a.trn": ["x (u)", "x (w)"], "b.trn": ["x (u)"]}, "a.trn, line 2: id 'w' not in b.trn"),
        ("wer a.trn b.trn", {"a.trn": ["x (u)", "z (u)"], "b.trn": ["x (u)"]}, "line 2: id 'u' again, after line 1"),
        ("wer a.trn b.trn", {"a.trn": ["x"], "b.trn": ["x (u)"]}, "a.trn, line 1: 'x': allowed: words and then (utt"),
        ("wer a.trn b.txt", {"a.trn": ["x (u)"], "b.txt": ["x"]}, "a.trn has ids and b.txt has none: allowed: both"),
        ("wer a.trn b.trn", {"a.trn": ["x (u)"], "b.trn": ["{ x (u)"]}, "b.trn, line 1: '{ x': a brace without its"),
        (
            "wer a.trn b.trn --alignment levenshtein",
            {"a.trn": ["x (u)"], "b.trn": ["{ x / y } (u)"]},
            "b.trn, line 1: alternatives in braces: allowed with --alignment sclite only",
        ),
        ("wer a.txt b.txt --alignment scilte", {"a.txt": ["x"], "b.txt": ["x"]}, "did you mean 'sclite'?"),
        ("cer a.txt b.txt --format cmt", {"a.txt": ["x"], "b.txt": ["x"]}, "unknown format 'cmt'"),
        ("cer a.jsonl b.txt", {"a.jsonl": ["{}"], "b.txt": ["x"]}, "a.jsonl, line 1: no field text: allowed: one"),
        (
            "cer a.jsonl b.txt",
            {"a.jsonl": ['{"text": 3}'], "b.txt": ["x"]},
            "a.jsonl, line 1: text is 3: allowed: text",
        ),
        ("cer a.jsonl b.txt", {"a.jsonl": ["[1]"], "b.txt": ["x"]}, "a.jsonl, line 1: '[1]': allowed: one JSON object"),
        (
            "cer a.jsonl b.txt",
            {"a.jsonl": ['{"id": 1, "text": ""}', '{"text": ""}'], "b.txt": ["x"]},
            "a.jsonl, line 2: no id, but others have one",
        ),
        (
            "rouge a.trn b.trn",
            {"a.trn": ["x (u)"], "b.trn": ["x (u)"]},
            "b.trn: format trn for summaries: allowed: text",
        ),
        (
            "perplexity a.txt",
            {"a.txt": ["-1 0.5"]},
            "a.txt, line 1: log-probability 0.5: allowed: finite numbers up to 0",
        ),
        ("perplexity a.txt", {"a.txt": ["-1", ""]}, "a.txt, line 2: the line is empty: allowed: a log-probability"),
        ("perplexity a.txt", {"a.txt": ["-1 nan"]}, "a.txt, line 1: 'nan' is not a number in ASCII digits"),
        ("perplexity a.txt --log 3", {"a.txt": ["-1"]}, "unknown base of logarithms '3'"),
        (
            "perplexity a.txt --against b.txt",
            {"a.txt": ["-1"], "b.txt": ["-1 -2"]},
            "models with 1 sentences of 1 tokens and 1 sentences of 2 tokens: allowed: the same sentences",
        ),
        (
            "perplexity a.jsonl",
            {"a.jsonl": ['{"log_probs": ["x"]}']},
            "a.jsonl, line 1: log_probs is not a list of numbers",
        ),
        ("wer none.txt b.txt", {"b.txt": ["x"]}, "none.txt: No such file or directory"),
        ("wer a.txt b.txt --resamples 0", {"a.txt": ["x"], "b.txt": ["x"]}, "--resamples 0: allowed: from 1"),
        ("bleu a.txt b.txt", {}, "unknown metric 'bleu'"),
        ("wer a.txt b.txt --stemming", {"a.txt": ["x"], "b.txt": ["x"]}, "unknown option '--stemming'"),
    ],
)
def test_files_and_arguments_that_cannot_be_scored(arguments, files, message, write, capsys):
    for name, lines in files.items():
        write(name, *lines)
    assert cli.main(["score", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert message in printed.err
