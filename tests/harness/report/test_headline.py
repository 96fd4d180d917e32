"""The line with the central figure of a cell."""

import dataclasses

import pytest

from tests import ROOT
from vocabench.harness.report.headline import headline
from vocabench.harness.run import results_files
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Row


@pytest.mark.parametrize(
    ("file", "task", "line"),
    [
        ("quick-epyc", "timing", r"huffman torch 44,000: layer \d+\.\dx, \d\.\d\d ms"),
        ("quick-epyc", "language_modelling", r"huffman torch pydoc-small [\d,]+: perplexity \d+(\.\d+)?"),
        ("quick-summaries", "summarization", r"huffman torch pydoc-summaries [\d,]+: ROUGE-L \d+\.\d\d %"),
        ("quick-speech", "speech", r"huffman torch spoken-names [\d,]+: CER \d+\.\d\d %"),
        ("quick-epyc", "agreement", r"huffman torch: agrees, largest error 0\.\d+ of the tolerance"),
    ],
)
def test_each_task_has_its_central_figure(file, task, line):
    import re

    rows = results_files.rows(ROOT / "results" / f"{file}.jsonl")
    lines = [
        headline(row)
        for row in rows
        if (row.cell.task, row.cell.method, row.cell.framework) == (task, "huffman", "torch")
    ]
    lines = [re.sub(r"\[.*?\]", "", text) for text in lines]
    assert any(re.fullmatch(line, text) for text in lines), lines


def test_a_layer_that_disagrees_and_a_row_without_figures_say_so():
    cell = Cell(
        "s", "timing", "jax", "sohsm", vocab=1000, dim=8, tokens=9, precision="bfloat16", seed=3, options={"a": 1}
    )
    label = "sohsm[a=1] jax 1,000 bfloat16 seed 3"
    wrong = Row(cell.key, cell, "disagree", agreement={"verdict": "disagree"})
    assert headline(wrong) == f"{label}: DISAGREES"
    assert (
        headline(dataclasses.replace(wrong, status="oom", agreement={}, message="no memory"))
        == f"{label}: oom: no memory"
    )
