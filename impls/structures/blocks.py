"""How many words of the vocabulary a fused softmax scores at a time."""

from __future__ import annotations

# Logits of a block, by the form's name. 8 MiB of float32 stay in a processor's cache between the products that make and
# use them; a GPU wants more work at a time. Still larger ones would take the memory that is to be saved.
FORMS = {f"blocks of {at_once:,} logits, made once forward and once backward": at_once for at_once in (2**21, 2**23)}


def width(tokens: int, vocab: int, form: str) -> int:
    """Words B of a block, so that its (N, B) logits are about as many as the form says."""
    return min(vocab, max(1, FORMS[form] // tokens))
