"""Conditions of trainings: models are compared with each other only if they were trained in the same way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vocabench.harness.report.rows import Record
from vocabench.harness.run.rows import Row

# Settings that do not decide how good a model is, and the learning rate, which is chosen for each method.
_UNRELATED = frozenset(
    {
        "budget",
        "decode_rows",
        "final_learning_rate",
        "layer_folder",
        "learning_rate",
        "processes",
        "quantities",
        "rounds",
        "save",
        "scored",
        "time_training",
    }
)


def conditions(rows: Sequence[Row], records: Sequence[Record]) -> dict[str, str]:
    """Return what distinguishes the conditions of each trial from others on the same data, such as "epochs 2, dim 256".

    Only settings that all rows of the data have are compared: rows of older versions lack later settings. Rows of NumPy
    are of other libraries or of no training, which follow none of these settings; they go with the most similar ones.

    Args:
        records: Records of these rows, in the same order.

    Returns:
        Texts by `Record["trial"]`; empty where there is nothing to distinguish.
    """
    trials: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
    outside: set[str] = set()
    remaining = iter(records)
    for row in rows:
        own = [next(remaining) for _ in row.measurements or [None]]
        cell = row.cell
        fields = {**cell.settings, "dim": cell.dim, "tokens": cell.tokens, "precision": cell.precision}
        first = own[0]
        data = cell.task, cell.dataset, str(cell.vocab), first["objective"], first["split"], first["units"]
        trials.setdefault(data, {})[first["trial"]] = fields
        if cell.framework == "numpy":
            outside.add(first["trial"])
    found = {}
    for by_trial in trials.values():
        compared = {trial: fields for trial, fields in by_trial.items() if trial not in outside} or by_trial
        shared = set.intersection(*map(set, compared.values())) - _UNRELATED
        values = {name: {json.dumps(fields[name]) for fields in compared.values()} for name in sorted(shared)}
        differ = [name for name, different in values.items() if len(different) > 1]
        for trial, fields in compared.items():
            found[trial] = ", ".join(f"{name} {fields[name]}" for name in differ)
        for trial in by_trial.keys() - compared.keys():
            found[trial] = found[_most_similar(by_trial[trial], compared, shared)]
    return found


def _most_similar(fields: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> str:
    """Return the trial whose settings of these names agree most."""
    names = list(names)
    return max(others, key=lambda trial: sum(fields.get(name) == others[trial][name] for name in names))
