"""Numbers in ASCII digits, and no other spelling that Python reads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabench.harness import numerals


@given(st.integers())
@settings(deadline=None)
def test_whole_numbers_are_read(value):
    assert numerals.whole(str(value)) == value


@given(st.integers(0))
@settings(deadline=None)
def test_counts_are_read(value):
    assert numerals.count(str(value)) == value


@given(st.integers(max_value=-1))
@settings(deadline=None)
def test_a_count_has_no_sign(value):
    with pytest.raises(ValueError, match="is no number"):
        numerals.count(str(value))


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(deadline=None)
def test_numbers_are_read(value):
    assert numerals.number(repr(value)) == value


@pytest.mark.parametrize("text", ["", "1_0", " 6", "6\n", "１２", "٣", "0x10", "1,5", "nan", "inf", "1e", ".", "--1"])
def test_other_spellings_are_refused(text):
    for read in (numerals.count, numerals.whole, numerals.number):
        with pytest.raises(ValueError, match="is no number"):
            read(text)
