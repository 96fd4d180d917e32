"""The overview of a report shows scores of held-out data alone."""

from tests import ROOT
from vocabench.harness.report import page
from vocabench.harness.report.rows import flatten, is_held_out
from vocabench.harness.run.store import read


def test_scores_of_training_data_are_not_in_the_overview():
    rows = read(ROOT / "results" / "quick-summaries.jsonl")
    records = flatten(rows)
    assert {is_held_out(record) for record in records} == {True, False}
    overview = page.sections(rows, records)[0]
    shown = [cell for line in overview.tables[0].lines for cell in line]
    scores = [float(part.split()[1]) for cell in shown for part in cell.split(", ") if part.startswith("rougeL_f1 ")]
    by_heart = [r["value"] for r in records if r["quantity"] == "rougeL_f1" and not is_held_out(r) and r["value"]]
    assert scores
    assert max(scores) < max(by_heart)
