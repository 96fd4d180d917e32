"""ROUGE as a task's settings choose it, and the scoring of Rush et al. 2015."""

import os
from pathlib import Path

import pytest

from vocabench.harness.tasks.shared import rouge
from vocabench.impls.errors import BadInput

DEFAULTS = {name: setting.default for name, setting in rouge.SETTINGS.items()}


def scores(summaries, references, **settings):
    return {found.quantity: found for found in rouge.scores(summaries, references, DEFAULTS | settings)}


def test_rush2015_is_stemmed_f1_and_stemmed_recall():
    summaries, references = ["police arrested protesters"], [["police arrest a protester in the capital"]]
    found = scores(summaries, references, scoring="rush2015")
    assert list(found) == [f"rouge{n}_{kind}" for kind in ("f1", "recall75") for n in "12L"]
    assert all("stemming:porter" in measurement.detail["signature"] for measurement in found.values())
    assert found["rouge1_f1"].value == pytest.approx(2 * 3 / (3 + 7))
    assert found["rouge1_recall75"].value == pytest.approx(3 / 7)
    assert scores(summaries, references)["rouge1_f1"].value == pytest.approx(2 * 1 / (3 + 7))
    assert scores(summaries, references, stemming=True)["rouge1_f1"].value == found["rouge1_f1"].value


def test_stemmed_scores_are_those_of_the_script():
    folder = os.environ.get("VOCABENCH_DATA")
    if not folder:
        pytest.skip("VOCABENCH_DATA is not set")
    summaries, references = (
        (Path(folder) / "rouge" / name).read_text().splitlines() for name in ("prediction.txt", "target.txt")
    )
    pairs = [[reference] for reference in references]
    assert scores(summaries, pairs)["rouge1_f1"].samples == pytest.approx([0.51163, 0.5], abs=6e-6)
    assert scores(summaries, pairs, scoring="rush2015")["rouge1_f1"].samples == pytest.approx(
        [0.51163, 0.52941], abs=6e-6
    )


def test_numbers_come_from_the_source():
    source = "in 1984 , 12 of 35 people paid 3.5 million"
    assert rouge.with_numbers("## people paid #.# million in ####", source) == "12 people paid 3.5 million in 1984"
    assert rouge.with_numbers("### people # #th", source) == "### people # #th"


def test_other_scripts_need_a_setting():
    with pytest.raises(BadInput, match="setting rouge_tokens=unicode"):
        scores(["кошка"], [["кошка"]])
    assert scores(["кошка"], [["кошка"]], rouge_tokens="unicode")["rouge1_f1"].value == 1.0
