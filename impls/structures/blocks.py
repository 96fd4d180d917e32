"""How many words of the vocabulary a fused softmax scores at a time."""

from __future__ import annotations


def _named(*sizes: int) -> dict[str, int]:
    return {f"blocks of {at_once:,} logits, made once forward and once backward": at_once for at_once in sizes}


# Logits of a block, by the form's name. 8 MiB of float32 stay in a processor's cache between the products that make and
# use them; a GPU wants more work at a time. Still larger ones would take the memory that is to be saved.
FORMS = _named(2**21, 2**23)
GPU_FORMS = _named(2**24, 2**26)  # 32 MiB in half precision, which stay in a GPU's cache; and fewer, larger products
_ALIGNED = 64


def width(tokens: int, vocab: int, form: str) -> int:
    """Words B of a block, so that its (N, B) logits are about as many as the form says: whole rows of `_ALIGNED` where
    there is room, since products of odd widths are slower, in PyTorch on a CPU by a quarter."""
    words = max(1, (FORMS | GPU_FORMS)[form] // tokens)
    return min(vocab, words // _ALIGNED * _ALIGNED or words)
