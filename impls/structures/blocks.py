"""How much of the (N, V) logits a fused softmax makes at a time: those of some words, or of some tokens.

Blocks of words fit any use of the losses, but a block's gradient needs the log-sum-exp over all blocks, so that each
logit is made once forward and once backward. A block of tokens has all logits of these, so that its gradient is made
at once, from the same logits: three products in place of four. What the loss of each token will count for has to be
known then, as in a mean, and the gradient by the words is kept from the forward to the backward pass.
"""

from __future__ import annotations

from vocabench.impls.cpp import CPP


def _named(*sizes: int) -> dict[str, int]:
    return {f"blocks of {at_once:,} logits, made once forward and once backward": at_once for at_once in sizes}


# Logits of a block, by the form's name. 8 MiB of float32 stay in a processor's cache between the products that make and
# use them; a GPU wants more work at a time. Still larger ones would take the memory that is to be saved.
FORMS = _named(2**21, 2**23)
GPU_FORMS = _named(2**24, 2**26)  # 32 MiB in half precision, which stay in a GPU's cache; and fewer, larger products
FLOAT32_GPU_FORMS = _named(2**24, 2**25)  # where logits are in float32 beside their gradients in half precision
# Blocks of tokens, on a CPU: 64 MiB of float32. Each block adds to the gradient by all words, whose memory is read and
# written for it, so that they should be few; half as large again they would be a tenth faster at 128,000 words.
TOKEN_FORMS = {f"blocks of {2**24:,} logits by tokens, gradients made in the forward pass": 2**24}
# With a kernel of our own, which takes the less time the more tokens read the words together, of that half more.
BY_TOKENS = TOKEN_FORMS | {CPP: 3 * 2**23}
_ALIGNED = 64


def width(tokens: int, vocab: int, form: str) -> int:
    """Words B of a block, so that its (N, B) logits are about as many as the form says: whole rows of `_ALIGNED` where
    there is room, since products of odd widths are slower, in PyTorch on a CPU by a quarter. A form's name may go on
    with what goes through the blocks. What is not training goes by blocks of words in a form by tokens too, the
    largest of a CPU's: 32 MiB are less than its training takes, and hold the logits of what is decoded at a time."""
    sizes = (FORMS | GPU_FORMS | FLOAT32_GPU_FORMS).items()
    at_once = next((size for name, size in sizes if form.startswith(name)), max(FORMS.values()))
    words = max(1, at_once // tokens)
    return min(vocab, words // _ALIGNED * _ALIGNED or words)


def of_tokens(tokens: int, vocab: int, form: str) -> int:
    """Tokens B of a block, of nearly the same number in each, so that its (B, V) logits are about as many as the form
    says."""
    return -(-tokens // -(-tokens // most_tokens(vocab, form)))


def most_tokens(vocab: int, form: str) -> int:
    """Tokens of a block at most."""
    return max(1, BY_TOKENS[form] // vocab)
