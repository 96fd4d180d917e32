"""Cells: JSON, keys and labels."""

import dataclasses
import json

import pytest

from vocabench.harness.run.cells import Cell, labels
from vocabench.impls.errors import BadInput

CELL = Cell(
    "quick", "timing", "torch", "sohsm", 44_000, 64, 128, options={"projection": "none"}, settings={"rounds": 9}
)


def test_a_cell_survives_json_with_its_key():
    again = Cell.from_json(json.loads(json.dumps(CELL.to_json())))
    assert again == CELL
    assert again.key == CELL.key


def test_the_key_depends_on_every_field():
    changed = {"seed": 1, "dataset": "pydoc", "options": {}, "settings": {"rounds": 8}, "suite": "cpu"}
    keys = {dataclasses.replace(CELL, **{name: value}).key for name, value in changed.items()}
    assert len(keys | {CELL.key}) == len(changed) + 1


def test_the_label_names_layer_data_and_conditions():
    assert CELL.label == "timing torch sohsm[projection=none] V=44,000 float32 cpu"
    assert dataclasses.replace(CELL, dataset="pydoc").label == (
        "timing torch sohsm[projection=none] pydoc V=44,000 float32 cpu"
    )


def test_labels_have_what_cells_of_one_label_differ_in_and_nothing_else():
    settings = [{"rounds": 9, "decode_rows": rows, "quantities": ["topk_seconds"]} for rows in (64, 1)]
    many, one = (dataclasses.replace(CELL, settings=each) for each in settings)
    wide = dataclasses.replace(one, dim=128)
    alone, other_seed = dataclasses.replace(CELL, vocab=10_000), dataclasses.replace(many, seed=1)
    assert labels([many, one, alone, other_seed]) == [
        f"{CELL.label} decode_rows=64", f"{CELL.label} decode_rows=1", alone.label, CELL.label,
    ]  # fmt: skip
    assert labels([many, one, wide]) == [
        f"{CELL.label} dim=64 decode_rows=64",
        f"{CELL.label} dim=64 decode_rows=1",
        f"{CELL.label} dim=128 decode_rows=1",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speed": 1}, "not a cell: unknown field 'speed'"),
        ({"task": 3}, "not a cell: task=3: allowed: text"),
        ({"vocab": 1.5}, "not a cell: vocab=1.5: allowed: a whole number from 0"),
        ({"options": []}, r"not a cell: options=\(a list of 0\): allowed: an object"),
    ],
)
def test_invalid_fields_are_refused(changes, message):
    with pytest.raises(BadInput, match=message):
        Cell.from_json(CELL.to_json() | changes)


def test_missing_fields_are_refused():
    with pytest.raises(BadInput, match="not a cell: missing suite, task, framework"):
        Cell.from_json({})
