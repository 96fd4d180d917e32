"""Published rows as records, and the selection of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vocabench.harness.report.over_seeds import combined, with_estimates
from vocabench.harness.report.rows import Record, flatten
from vocabench.harness.run import store
from vocabench.harness.run.rows import Row

Selection = Mapping[str, Any]


class NotFound(ValueError):
    """A figure cannot be shown: its selection or its format is wrong."""


class Missing(NotFound):
    """No record fits a selection."""


class Published:
    """The rows of a folder of results files, each read when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: dict[str, list[Record]] = {}
        self._rows: dict[str, list[Row]] = {}

    def rows(self, file: str) -> list[Row]:
        """Return the rows of a results file, named without its suffix: the last one of each cell."""
        if file not in self._rows:
            self._rows[file] = store.latest(store.read(self._folder / f"{file}.jsonl"))
        return self._rows[file]

    def records(self, file: str) -> list[Record]:
        """Return the records of a results file, named without its suffix, with means over seeds."""
        if file not in self._records:
            rows = self.rows(file)
            measured = [(row, measurement) for row in rows for measurement in row.measurements or [None]]
            records: Any = [
                {
                    **record,
                    "curve": measurement and measurement.detail.get("curve"),
                    **{f"settings.{name}": value for name, value in row.cell.settings.items()},
                }
                for record, (row, measurement) in zip(flatten(rows), measured, strict=True)
            ]
            self._records[file] = combined(with_estimates(records))
        return self._records[file]

    def all_that_fit(self, selection: Selection) -> list[Record]:
        """Return the records that fit a selection, whose `rows` names the file and whose other keys are fields.

        A list allows several values, and None any. Fields that are not named may have any value, except that `options`
        of a method are its defaults unless they are named. A setting is a field too, such as "settings.epochs".
        """
        wanted = {"options": "", **{name: value for name, value in selection.items() if name != "rows"}}
        return [record for record in self.records(selection["rows"]) if _fits(record, wanted)]

    def one(self, selection: Selection) -> Record:
        """Return the record that fits a selection.

        Raises:
            NotFound: There is none (`Missing`), or more than one.
        """
        found = self.all_that_fit(selection)
        if len(found) != 1:
            wanted = ", ".join(f"{name}={value}" for name, value in selection.items())
            error = NotFound if found else Missing
            raise error(f"{len(found)} figures with {wanted}: allowed: one")
        return found[0]


def _fits(record: Record, wanted: Selection) -> bool:
    fields: Mapping[str, Any] = record
    for name, value in wanted.items():
        if name not in fields and not name.startswith("settings."):
            raise NotFound(f"unknown field {name!r} of a record: allowed: rows, {', '.join(fields)}")
        if value is None:
            continue  # any
        if fields.get(name) not in (value if isinstance(value, list) else [value]):
            return False
    return True
