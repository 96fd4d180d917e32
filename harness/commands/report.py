"""`vocabench report`: stored rows as one HTML page that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vocabench.harness.atomic_write import write_whole
from vocabench.harness.run import results_files
from vocabench.harness.run.store import latest
from vocabench.impls.errors import BadInput


def report(run_paths: Sequence[str] | None, *, out: str, title: str | None) -> int:
    """Write the page of one run or of several; a cell that stands in more than one is shown as in the last."""
    paths = [Path(path) for path in run_paths] if run_paths else [results_files.latest()]
    rows = latest(row for path in paths for row in results_files.rows(path))
    if not rows:
        raise BadInput(f"{', '.join(map(str, paths))}: no row: allowed: a run that measured something")
    from vocabench.harness.report.page import build

    names = ", ".join(path.name for path in paths)
    own_title = f"Vocabench: {', '.join(path.stem for path in paths)}"
    page = build(rows, title=own_title if title is None else title, files=names)
    write_whole(Path(out), page)
    print(f"{out}: {len(rows):,} rows, {len(page.encode()) / 2**20:.1f} MiB")
    return 0
