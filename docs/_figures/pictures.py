"""The pictures of the documentation, drawn from rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs._figures.published import Published
from docs._figures.trade_off import trade_off
from vocabench.harness.report import figures, plot
from vocabench.harness.report.figures import Figure
from vocabench.harness.report.over_seeds import with_estimates
from vocabench.harness.report.rows import flatten
from vocabench.harness.run import store
from vocabench.harness.run.cells import Cell


@dataclass(frozen=True)
class Picture:
    """A picture of published rows.

    Attributes:
        rows: Results file below results/, without its suffix.
        section: Section of the report whose figures are drawn.
        keeps: Whether a cell is drawn.
        titled: Whether a figure with this title is drawn.
    """

    rows: str
    section: str
    keeps: Callable[[Cell], bool] = lambda cell: True
    titled: Callable[[str], bool] = lambda title: True


_SIZES = (10_000, 44_000, 100_000, 128_000, 250_000)

PICTURES: Mapping[str, Picture] = {
    "speed.svg": Picture("cpu-epyc", "speed", lambda cell: cell.task == "timing" and cell.vocab in _SIZES),
    "word-vectors.svg": Picture("word-vectors-seeds", "quality", titled=lambda title: title.startswith("Analogies")),
    "pmi.svg": Picture("pmi-by-width", "quality", titled=lambda title: title.startswith("Products")),
}
TRADE_OFF = "trade-off.svg"


def drawn(picture: Picture, results: Path) -> list[Figure]:
    """Return the figures of a picture."""
    rows = [row for row in store.latest(store.read(results / f"{picture.rows}.jsonl")) if picture.keeps(row.cell)]
    found = figures.all_of(rows, with_estimates(flatten(rows)))
    return [figure for figure in found if figure.section == picture.section and picture.titled(figure.title)]


def write(docs: Path, results: Path) -> None:
    """Write all pictures into the folder of the documentation."""
    for name, picture in PICTURES.items():
        plot.draw(drawn(picture, results), docs / name)
    plot.draw([trade_off(Published(results))], docs / TRADE_OFF)
