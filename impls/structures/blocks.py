"""How many words of the vocabulary a fused softmax scores at a time."""

from __future__ import annotations

LOGITS_AT_ONCE = 2**21  # 8 MiB of float32, which stays in cache between the products that make and use it


def width(tokens: int, vocab: int) -> int:
    """Words B of a block, so that its (N, B) logits are about `LOGITS_AT_ONCE`."""
    return min(vocab, max(1, LOGITS_AT_ONCE // tokens))


FORMULATION = f"blocks of {LOGITS_AT_ONCE:,} logits, made once forward and once backward"
