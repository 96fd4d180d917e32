"""Whether a cell is worth measuring on this machine. If not, it is skipped and says why."""

from __future__ import annotations

from collections.abc import Callable

from vocabench.harness.measure import roofline
from vocabench.harness.measure.needed_memory import check_fits
from vocabench.harness.measure.needed_time import check_precision, check_quick
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import Setting
from vocabench.harness.tasks.shared.spec import zipf_batch
from vocabench.impls.options import Choice, Number
from vocabench.impls.spec import LayerSpec

SETTINGS: dict[str, Setting] = {
    "longest_step": Number(
        0.0,
        0.0,
        1e9,
        "skip the cell if a step of full softmax needs more seconds at this machine's rates; 0: no limit",
    ),
    "slow_precision": Choice(
        "measure",
        ("measure", "skip"),
        "what to do in a precision that this machine multiplies no faster than float32",
    ),
}


def check_feasible(
    cell: Cell, spec: LayerSpec, plain: LayerSpec, progress: Callable[[str], None], processes: int = 1
) -> None:
    """Refuse a cell that does not fit into memory, or is too slow by the settings of the cell.

    Args:
        spec: The layer.
        plain: The full softmax that it is timed next to.
        processes: Number of processes that hold both.

    Raises:
        Unsupported: The cell is refused.
    """
    check_fits(spec, plain, cell.tokens, cell.device, processes=processes)

    def rates(precision: str) -> roofline.Ceilings:
        progress(f"whether {precision} is fast enough")
        return roofline.first_ceilings(cell.framework, cell.device, precision)

    if cell.settings["slow_precision"] == "skip" and cell.precision not in ("float32", "float64"):
        check_precision(cell.precision, rates(cell.precision), rates("float32"))
    if longest := cell.settings["longest_step"]:
        check_quick(plain, zipf_batch(cell).targets_N, rates(cell.precision), longest)
