"""Rows as typed records: they are checked when read, and written as they were read."""

import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import ROOT
from tests.rows import read_json
from vocabench.harness.quantities import HIGHER, LOWER
from vocabench.harness.run import schema
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import SCHEMA, Measurement, OtherSchema, Provenance, Ratio, Row
from vocabench.impls.errors import BadInput

RESULTS = sorted((ROOT / "results").glob("*.jsonl"))


def row():
    """Return a valid row as JSON."""
    cell = Cell("quick", "timing", "torch", "sohsm", 1000, 64, 128, settings={"split": "test"})
    ratio = Ratio(1.5, 1.2, 1.8, [1.2, 1.8], [3.0, 4.5])
    measurement = Measurement("layer_seconds", 2.5, [2.5, 2.6], 2.0, 3.0, ratio, {"timing": 3})
    provenance = Provenance(code={"dirty": False}, machine={"cores": 2}, started="2026-01-01", seconds=1.5)
    return Row(cell.key, cell, "ok", "", [measurement], {"verdict": "agree"}, provenance).to_json()


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_published_rows_are_written_as_they_were_read(path):
    for line, fields in zip(path.read_text(encoding="utf-8").splitlines(), read_json(path), strict=True):
        assert json.dumps(Row.from_json(fields).to_json()) == line


def test_a_row_survives_json():
    fields = json.loads(json.dumps(row()))
    assert Row.from_json(fields).to_json() == fields
    assert Row.from_json(fields) == Row.from_json(row())


def test_unknown_fields_are_kept():
    fields = row()
    (measurement,) = fields["measurements"]
    for record in (fields, measurement, measurement["ratio"], measurement["detail"], fields["provenance"]):
        record["of_a_newer_version"] = {"nested": [1, None]}
    assert Row.from_json(fields).to_json() == fields


def test_fields_that_are_missing_have_defaults():
    fields = row()
    for name in ("message", "agreement"):
        del fields[name]
    fields["measurements"], fields["provenance"] = [{"quantity": "elsewhere"}], {}
    read = Row.from_json(fields)
    assert (read.message, read.verdict, read.disagreements, read.provenance) == ("", "", (), Provenance())
    (measurement,) = read.measurements
    assert math.isnan(measurement.value)
    assert (measurement.unit, measurement.better, measurement.ratio) == ("1", LOWER, None)


def test_numbers_that_are_not_finite_are_null_in_json():
    ratio = Ratio(None, None, None, [math.nan], [1.0])
    measurement = Measurement("perplexity", math.inf, [1.0, math.nan], ratio=ratio, detail={"curve": (math.nan,)})
    fields = Row.from_json(row())
    made = Row(fields.key, fields.cell, "ok", measurements=[measurement]).to_json()
    (written,) = made["measurements"]
    assert (written["value"], written["samples"]) == (None, [1.0, None])
    assert written["ratio"]["samples"] == [None]
    assert written["detail"] == {"curve": [None]}
    json.dumps(made, allow_nan=False)


def test_a_measurement_has_the_unit_and_direction_of_its_quantity():
    recall = Measurement("beam_recall", 0.9)
    assert (recall.unit, recall.better) == ("1", HIGHER)
    with pytest.raises(KeyError):
        Measurement("layer_secs", 1.0)


@pytest.mark.parametrize("version", [None, 0, 2, True, 1.0, "1"])
def test_other_schema_versions_are_refused(version):
    with pytest.raises(OtherSchema, match=rf"schema version {version!r}: allowed: {SCHEMA}"):
        Row.from_json(row() | {"schema": version})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["status"], "fine", "not a row: status='fine': allowed: ok, disagree, timeout"),
        (["key"], 3, "not a row: key=3: allowed: text"),
        (["key"], "\ud800", r"not a row: key='\\ud800': allowed: text"),
        (["cell"], [], r"not a row: cell=\(a list of 0\): allowed: an object"),
        (["cell", "vocab"], -1, "not a cell: vocab=-1: allowed: a whole number from 0"),
        (["cell", "seed"], True, "not a cell: seed=True: allowed: a whole number from 0"),
        (["cell", "speed"], 1, "not a cell: unknown field 'speed': allowed: the fields of a row's cell"),
        (["cell", "settings", "split"], 1, r"not a row: cell.settings.split=1: allowed: text"),
        (["measurements"], {}, r"not a row: measurements=\(an object of 0\): allowed: a list"),
        (["measurements", 0, "value"], "ten", r"not a row: measurements\[0\].value='ten': allowed: a finite number"),
        (["measurements", 0, "value"], math.nan, r"not a row: measurements\[0\].value=nan: allowed: a finite number"),
        (["measurements", 0, "samples", 1], 1e200, r"measurements\[0\].samples\[1\]=1e\+200: allowed: a finite number"),
        (["measurements", 0, "ratio", "low"], 0, r"measurements\[0\].ratio.low=0: allowed: a number above 0"),
        (["measurements", 0, "detail", "timing"], 0, r"measurements\[0\].detail.timing=0: allowed: a whole number"),
        (["agreement", "verdict"], "yes", "not a row: agreement.verdict='yes': allowed: agree, disagree"),
        (["provenance", "machine"], None, "not a row: provenance.machine=None: allowed: an object"),
    ],
)
def test_invalid_fields_are_named(path, value, message):
    fields = record = copy.deepcopy(row())
    for name in path[:-1]:
        record = record[name]
    record[path[-1]] = value
    with pytest.raises(BadInput, match=message) as error:
        Row.from_json(fields)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["key", "cell", "status", "measurements", "provenance"])
def test_missing_fields_are_named(name):
    fields = row()
    del fields[name]
    with pytest.raises(BadInput, match=f"not a row: {name} missing"):
        Row.from_json(fields)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([-1e151, 2**63, "\ud800"]),
    lambda items: st.lists(items) | st.dictionaries(st.text(), items),
)


@pytest.mark.lengthy
@given(st.lists(_JSON))
@settings(deadline=None, max_examples=300)
def test_what_the_fast_check_accepts_is_plain(value):
    if schema._is_surely_plain(value):
        assert schema.plain(value, 23) == ""
    assert schema.plain(value) == schema.plain(value, 23)


@pytest.mark.lengthy
@given(_JSON)
@settings(deadline=None, max_examples=300)
def test_what_the_decoder_accepts_is_plain_and_the_same_value(value):
    text = json.dumps(value)  # NaN and lone surrogates included
    try:
        decoded = schema.plain_decoder().decode(text.encode())
    except ValueError:
        return
    assert schema.plain(decoded) == ""
    assert json.dumps(decoded) == json.dumps(json.loads(text))


@pytest.mark.parametrize(
    "text", [str(2**63), str(-(2**63)), str(10**30), "1e150", "-1e150", "NaN", '"\\ud800"', "1e400"]
)
def test_the_decoder_refuses_what_is_not_plain(text):
    with pytest.raises(ValueError):  # noqa: PT011  # the reason is given by `plain`
        schema.plain_decoder().decode(text.encode())
    assert schema.plain_decoder().decode(b"[9223372036854775807, -0.0, 1e149]") == [2**63 - 1, 0.0, 1e149]


def test_published_rows_are_not_too_deep_for_the_decoder():
    """Rows of more levels are read as well, by the slower parser."""
    decoder = schema.plain_decoder()
    for path in RESULTS:
        for line in path.read_bytes().splitlines():
            decoder.decode(line)
