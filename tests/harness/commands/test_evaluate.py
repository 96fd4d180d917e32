"""`vocabench eval`: the perplexity of a saved network, again and in other frameworks."""

import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.harness.tasks.test_language_modelling import by_quantity, result_of
from vocabench.harness import cli, registry
from vocabench.harness.measure.new_process import in_new_process
from vocabench.impls.errors import BadInput

FRAMEWORKS = [name for name in registry.installed_frameworks() if name != "numpy"]
QUICK = {"updates": "60", "decode_rows": "0", "figure1_tokens": "0"}


@pytest.fixture
def text(in_empty_folder):
    """Write lines of a small language, in which each word decides the next one in most cases."""
    rng = np.random.default_rng(0)
    names = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    follows, here, words = rng.permutation(40), 0, []
    for number in range(4200):
        here = follows[here] if rng.random() < 0.9 else rng.integers(40)
        words.append(names[here] + ("\n" if number % 9 == 8 else ""))
    (in_empty_folder / "text").mkdir()
    for name, piece in (("train", words[:3000]), ("valid", words[3000:3600]), ("test", words[3600:])):
        (in_empty_folder / "text" / f"{name}.txt").write_text(" ".join(piece).replace("\n ", "\n") + "\n")
    return "text"


def trained(framework, method, text, **settings):
    options = {"interval": "20"} if method == "sohsm" else {}
    result = result_of(framework, method, text, options=options, **QUICK | settings)
    return by_quantity(result)["perplexity"]


@pytest.mark.lengthy
@pytest.mark.parametrize(("source", "method"), [*zip(FRAMEWORKS, ["sohsm", "huffman", "sohsm"], strict=False)])
def test_the_perplexity_of_the_row_is_printed_again_in_every_framework(source, method, text, capsys):
    row = trained(source, method, text, save="net-{method}-{framework}-{seed}")
    folder = f"net-{method}-{source}-0"
    assert row.detail["network"]["name"] == folder
    assert cli.main(["eval", folder, "--json", "--out", "words-{framework}.jsonl"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert set(content["perplexity"]) == set(FRAMEWORKS)
    assert list(content["perplexity"].values()) == pytest.approx([row.value] * len(FRAMEWORKS), rel=1e-4)
    assert content["perplexity"][source] == pytest.approx(row.value, rel=1e-6)
    assert (content["network"]["perplexity"], content["text"]["split"]) == (row.value, "test")
    for framework in FRAMEWORKS:
        assert cli.main(["score", "perplexity", f"words-{framework}.jsonl", "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again["scores"]["perplexity"]["value"] == pytest.approx(content["perplexity"][framework], rel=1e-12)
        assert again["counts"]["tokens"] == content["tokens"]
    lines = [json.loads(line) for line in Path(f"words-{source}.jsonl").read_text().splitlines()]
    assert all(len(line["words"]) == len(line["log_probs"]) for line in lines)
    assert sum(line["words"][-1] == "<eos>" for line in lines) > 30


@pytest.mark.lengthy
def test_other_text_in_the_words_of_the_network(text, capsys):
    framework = FRAMEWORKS[0]
    row = trained(framework, "full_softmax", text, save="net")
    Path("other").mkdir()
    for split in ("train", "valid"):
        words = (Path(text) / "test.txt").read_text()
        (Path("other") / f"{split}.txt").write_text(words.replace("aa", "unseen"))
    assert cli.main(["eval", "net", "-f", framework, "--dataset", "other", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["text"]["dataset"], content["text"]["split"]) == ("other", "valid")
    assert content["text"]["unknown_share"] > 0
    assert content["perplexity"][framework] > row.value
    assert cli.main(["eval", "net", "-f", framework, "--dataset", text, "--split", "test"]) == 0
    printed = capsys.readouterr().out
    assert f"perplexity {row.value:.6g} on test of text" in printed
    assert printed.splitlines()[-1].split() == [framework, "perplexity", f"{row.value:.6g}"]


def test_the_best_checkpoint_is_the_one_that_is_saved(text, capsys):
    settings = {"evaluations": "3", "checkpoint": "best", "updates": "0", "learning_rate": "0.5", "epochs": "2"}
    row = trained("numpy", "full_softmax", text, save="net", **settings)
    assert cli.main(["eval", "net", "-f", "numpy", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    # The file keeps float64, in which the row was computed.
    assert content["perplexity"]["numpy"] == pytest.approx(row.value, rel=1e-9)
    assert math.isclose(content["network"]["perplexity"], row.value)


def test_a_folder_that_exists_is_refused_before_training(text):
    Path("net").mkdir()
    Path("net/notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="save=net: it exists, or its folder does not: allowed: a new name"):
        trained(FRAMEWORKS[0], "full_softmax", text, save="net")
    with pytest.raises(BadInput, match="save=none/net: it exists, or its folder does not"):
        trained(FRAMEWORKS[0], "full_softmax", text, save="none/net")


def test_a_process_that_is_killed_is_one_line(text, capsys, monkeypatch):
    trained("numpy", "full_softmax", text, save="net")
    monkeypatch.setattr(
        "vocabench.harness.measure.new_process.in_new_process",
        lambda framework, function, *given: in_new_process(framework, _end_by_signal),
    )
    assert cli.main(["eval", "net", "-f", "numpy"]) == 1
    assert capsys.readouterr().err == "vocabench: numpy: its process was killed, perhaps for lack of memory\n"


def _end_by_signal():
    os.kill(os.getpid(), signal.SIGKILL)


def test_arguments_that_do_not_fit(text, capsys):
    trained("numpy", "full_softmax", text, save="net")
    Path("old.jsonl").write_text("mine")
    for arguments, message in (
        (["none"], "folder none: no network.json in it: allowed: a folder that -s save=FOLDER has written"),
        (["net", "-f", "pytorch"], "unknown framework 'pytorch'"),
        (["net", "--split", "tset"], "split 'tset' of dataset 'text': allowed: train, valid, test"),
        (["net", "--out", "old.jsonl"], "--out old.jsonl: it exists, or its folder does not: allowed: a new file"),
        (["net", "--out", "new.txt", "-f", "numpy"], "--out new.txt: allowed: a name that ends in .jsonl"),
        (["net", "--out", "a.jsonl", "-f", "numpy", "-f", FRAMEWORKS[0]], "allowed: a name with {framework}, or one"),
        (["net", "--device", "cuda:99"], "device 'cuda:99': numpy has none here: allowed: cpu"),
        (["net", "--dataset", "nothing.txt"], "text nothing.txt: no such file or folder"),
    ):
        chosen = [] if "-f" in arguments or arguments[0] == "none" else ["-f", "numpy"]
        assert cli.main(["eval", *arguments, *chosen]) == 2
        printed = capsys.readouterr()
        assert (printed.out, len(printed.err.splitlines())) == ("", 1)
        assert message in printed.err
    assert Path("old.jsonl").read_text() == "mine"
    (Path(text) / "train.txt").write_text((Path(text) / "train.txt").read_text() + "more words\n")
    assert cli.main(["eval", "net", "-f", "numpy"]) == 2
    assert "dataset 'text' is not the one that the network was trained on" in capsys.readouterr().err
