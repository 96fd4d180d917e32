"""`vocabench eval` of summarizers and recognizers: their scores again, in every framework and from files."""

import json
from pathlib import Path

import pytest

from tests.harness.tasks import test_speech, test_summarization
from tests.rows import by_quantity
from vocabench.harness import cli, network_folder, registry
from vocabench.impls.errors import BadInput

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
SUMMARIES = {"epochs": 2, "score_pairs": 10, "length": 4, "save": "net-{method}-{framework}"}
TRANSCRIPTS = {"epochs": 15, "utterances": 20, "beam": 2, "longest": 4, "save": "net-{method}-{framework}"}

pairs_folder, tones_folder = test_summarization.folder, test_speech.folder
tiny_recognizers = test_speech.tiny_recognizers


@pytest.fixture
def in_this_process(monkeypatch):
    """Evaluate in the process of the test, because a framework takes seconds to import."""
    monkeypatch.setattr(
        "vocabench.harness.measure.new_process.in_new_process",
        lambda framework, function, *arguments: function(*arguments),
    )


def evaluated(capsys, *arguments):
    assert cli.main(["eval", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def scored(capsys, metric, path, reference):
    """Score the outputs of a file against the references in the same file."""
    assert cli.main(["score", metric, path, path, "--reference-field", reference, "--json"]) == 0
    return {name: score["value"] for name, score in json.loads(capsys.readouterr().out)["scores"].items()}


def summarizer(framework, method, folder, **settings):
    options = {"interval": "3"} if method == "sohsm" else {}
    cell = test_summarization.cell_of(framework, method, folder, options, **SUMMARIES | settings)
    return by_quantity(test_summarization.row_of(cell))


def recognizer(framework, method, folder, **settings):
    return by_quantity(test_speech.row_of(test_speech.cell_of(framework, method, folder, **TRANSCRIPTS | settings)))


@pytest.mark.usefixtures("in_empty_folder", "in_this_process")
def test_a_summarizer_prints_the_scores_of_its_row_again(pairs_folder, capsys):
    row = summarizer("numpy", "full_softmax", pairs_folder)
    assert row["rouge1_f1"].detail["network"]["name"] == "net-full_softmax-numpy"
    content = evaluated(capsys, "net-full_softmax-numpy", "-f", "numpy", "--out", "summaries.jsonl")
    for quantity in ("rouge1_f1", "rouge2_f1", "rougeL_f1", "perplexity"):
        assert content[quantity]["numpy"] == pytest.approx(row[quantity].value, rel=1e-9)
        assert content["network"][quantity] == row[quantity].value
    assert (content["summaries"], content["text"]["split"]) == (10, "test")
    again = scored(capsys, "rouge", "summaries.jsonl", "references")
    for measure in ("rouge1", "rouge2", "rougeL"):
        assert again[f"{measure}_f1"] == pytest.approx(row[f"{measure}_f1"].value, rel=1e-9)
    lines = [json.loads(line) for line in Path("summaries.jsonl").read_text().splitlines()]
    assert [line["summary"] for line in lines] == row["rouge1_f1"].detail["summaries"]


@pytest.mark.usefixtures("in_empty_folder", "in_this_process")
def test_a_summarizer_is_scored_on_other_splits_data_and_settings(pairs_folder, capsys):
    summarizer("numpy", "full_softmax", pairs_folder)
    net = ("net-full_softmax-numpy", "-f", "numpy")
    assert evaluated(capsys, *net, "--split", "valid")["text"]["split"] == "valid"
    by_recall = evaluated(capsys, *net, "-s", "scoring=recall75", "-s", "fixed_length=true", "-s", "score_pairs=5")
    assert by_recall["summaries"] == 5
    assert {"rouge1_recall75", "rougeL_recall75"} < by_recall.keys()
    # All pairs of another dataset, which has no training split; a word that the network does not know is <unk>.
    Path("other").mkdir()
    lines = (Path(pairs_folder) / "test.jsonl").read_text().splitlines()
    Path("other/test.jsonl").write_text("".join(f"{line}\n" for line in lines).replace("ba", "unseen"))
    other = evaluated(capsys, *net, "--dataset", "other")
    assert (other["text"]["dataset"], other["summaries"]) == ("other", 20)
    # The same data as another dataset gives the same scores.
    same = evaluated(capsys, *net, "--dataset", pairs_folder)
    own = evaluated(capsys, *net, "-s", "score_pairs=0")
    assert same["rouge1_f1"]["numpy"] == pytest.approx(own["rouge1_f1"]["numpy"])
    assert same["perplexity"]["numpy"] == pytest.approx(own["perplexity"]["numpy"], rel=1e-9)


@pytest.mark.lengthy
@pytest.mark.usefixtures("in_empty_folder")
@pytest.mark.parametrize("source", FRAMEWORKS)
def test_a_summarizer_of_one_framework_scores_the_same_in_all(source, pairs_folder, capsys):
    """With clusters that a language model has learned."""
    row = summarizer(source, "sohsm", pairs_folder)
    content = evaluated(capsys, f"net-sohsm-{source}")
    for quantity in ("rouge1_f1", "rougeL_f1", "perplexity"):
        assert content[quantity] == pytest.approx(dict.fromkeys(FRAMEWORKS, row[quantity].value), rel=1e-6)


@pytest.mark.usefixtures("in_empty_folder", "in_this_process")
def test_a_recognizer_prints_the_scores_of_its_row_again(tones_folder, capsys):
    framework = FRAMEWORKS[0]
    row = recognizer(framework, "huffman", tones_folder)
    folder = f"net-huffman-{framework}"
    assert row["cer"].detail["network"]["name"] == folder
    content = evaluated(capsys, folder, "-f", framework, "--out", "heard.jsonl")
    assert content["cer"][framework] == pytest.approx(row["cer"].value, rel=1e-9)
    assert content["perplexity"][framework] == pytest.approx(row["perplexity"].value, rel=1e-9)
    assert (content["utterances"], content["network"]["cer"]) == (12, row["cer"].value)
    assert row["cer"].value < 1
    assert scored(capsys, "cer", "heard.jsonl", "reference")["cer"] == pytest.approx(row["cer"].value, rel=1e-9)
    lines = [json.loads(line) for line in Path("heard.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == row["cer"].detail["transcripts"]
    assert [line["id"] for line in lines] == row["cer"].detail["ids"]
    # The same utterances as another dataset, in the units of the network.
    other = evaluated(capsys, folder, "-f", framework, "--dataset", tones_folder, "--split", "test")
    assert other["cer"] == content["cer"]
    assert cli.main(["eval", folder, "-f", framework]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2] == "now on test of tones: 12 utterances"
    assert printed[-1].split() == [framework, "cer", f"{row['cer'].value:.6g},", "perplexity", printed[-1].split()[-1]]


@pytest.mark.usefixtures("in_empty_folder", "in_this_process")
def test_phones_are_written_and_scored_as_phones(tones_folder, capsys):
    framework = FRAMEWORKS[0]
    row = recognizer(framework, "full_softmax", tones_folder, units="phones")
    folder = f"net-full_softmax-{framework}"
    content = evaluated(capsys, folder, "-f", framework, "--out", "heard.jsonl", "-s", "longest=2")
    assert content["per"][framework] > 0
    assert scored(capsys, "per", "heard.jsonl", "reference")["per"] == pytest.approx(content["per"][framework])
    heard = [json.loads(line)["phones"].split() for line in Path("heard.jsonl").read_text().splitlines()]
    assert max(map(len, heard)) <= 2 < max(len(each.split()) for each in row["per"].detail["transcripts"])


@pytest.mark.lengthy
@pytest.mark.usefixtures("in_empty_folder")
@pytest.mark.parametrize("source", FRAMEWORKS)
def test_a_recognizer_of_one_framework_scores_the_same_in_all(source, tones_folder, capsys):
    row = recognizer(source, "huffman", tones_folder)
    content = evaluated(capsys, f"net-huffman-{source}", "-s", "path_beam=6", "-s", "path_levels=3")  # all six units
    assert content["cer"] == pytest.approx(dict.fromkeys(FRAMEWORKS, row["cer"].value), rel=1e-6)
    assert content["perplexity"] == pytest.approx(dict.fromkeys(FRAMEWORKS, row["perplexity"].value), rel=1e-6)


@pytest.mark.usefixtures("in_empty_folder", "in_this_process")
def test_mistakes_are_one_line(pairs_folder, capsys):
    summarizer("numpy", "full_softmax", pairs_folder)
    net = "net-full_softmax-numpy"
    with pytest.raises(BadInput, match=f"save={net}: it exists"):
        summarizer("numpy", "full_softmax", pairs_folder)
    for arguments, message in (
        (["--split", "tset"], "split 'tset' of dataset 'small': allowed: train, valid, test"),
        (["-s", "beem=2"], "unknown setting of an evaluation of summarization 'beem': did you mean 'beam'"),
        (["-s", "epochs=2"], "setting of an evaluation of summarization 'epochs': "),
        (["-s", "beam=0"], "setting beam=0: allowed: a whole number from 1"),
        (["--dataset", "nothing"], "nothing"),
        (["--device", "cuda:99"], "device 'cuda:99': numpy has none here: allowed: cpu"),
    ):
        assert cli.main(["eval", net, "-f", "numpy", *arguments]) == 2
        printed = capsys.readouterr()
        assert (printed.out, len(printed.err.splitlines())) == ("", 1)
        assert message in printed.err
    sources = Path(net, "sources.txt").read_text()
    Path(net, "sources.txt").write_text(sources + "\nmore")
    with pytest.raises(BadInput, match=r"sources\.txt is damaged or of another network"):
        network_folder.load(net)
    Path(net, "sources.txt").unlink()
    with pytest.raises(BadInput, match=r"no sources\.txt in it"):
        network_folder.load(net)
