"""Blocks of words and tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabench.impls.cpp import CPP
from vocabench.impls.structures import blocks

FORMS = [*blocks.WORD_FORMS, *blocks.GPU_FORMS, blocks.TOKEN_FORM, CPP]


@given(tokens=st.integers(1, 10**5), vocab=st.integers(1, 10**7), form=st.sampled_from(FORMS))
def test_blocks_of_words_are_about_equal_and_no_larger_than_the_form_allows(tokens, vocab, form):
    width = blocks.width(tokens, vocab, form)
    assert 1 <= width <= vocab
    assert width == 1 or width * tokens <= blocks.across_devices(form).size
    count = -(-vocab // width)
    assert width - vocab / count < 65  # what the last block lacks would be computed twice
    assert width % 64 == 0 or width == vocab or blocks.across_devices(form).size < 64 * tokens


@pytest.mark.parametrize("form", [blocks.TOKEN_FORM, CPP])
def test_words_over_devices_are_not_in_blocks_of_tokens(form):
    assert blocks.across_devices(form) == blocks.WORD_FORMS[-1]
    assert blocks.across_devices(blocks.WORD_FORMS[0]) == blocks.WORD_FORMS[0]
