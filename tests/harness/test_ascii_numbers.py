"""Numbers in ASCII digits, without the other spellings that Python accepts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabench.harness.ascii_numbers import parse_count, parse_integer, parse_number


@given(st.integers())
@settings(deadline=None)
def test_integers_are_parsed(value):
    assert parse_integer(str(value)) == value


@given(st.integers(0))
@settings(deadline=None)
def test_counts_are_parsed(value):
    assert parse_count(str(value)) == value


@given(st.integers(max_value=-1))
@settings(deadline=None)
def test_a_count_has_no_sign(value):
    with pytest.raises(ValueError, match="is not a number"):
        parse_count(str(value))


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(deadline=None)
def test_numbers_are_parsed(value):
    assert parse_number(repr(value)) == value


@pytest.mark.parametrize("text", ["", "1_0", " 6", "6\n", "１２", "٣", "0x10", "1,5", "nan", "inf", "1e", ".", "--1"])
def test_other_spellings_are_refused(text):
    for parse in (parse_count, parse_integer, parse_number):
        with pytest.raises(ValueError, match="is not a number"):
            parse(text)
