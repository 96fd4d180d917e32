"""Blocks of the (N, V) logits of a fused softmax: some words for all tokens, or all words for some tokens.

Blocks of words suit every use of the losses, but the gradient of a block needs the log-sum-exp over all blocks, so each
logit is computed twice: once in the forward and once in the backward pass. A block of tokens holds all logits of its
tokens, so its gradient is computed at once from the same logits: three products instead of four. In exchange, the
weight of each token in the total must be known in advance, as in a mean, and the gradient with respect to the words is
kept from the forward to the backward pass.
"""

from __future__ import annotations

from dataclasses import replace

from vocabench.impls.cpp import CPP
from vocabench.impls.forms import CPU, GPU, Form


def _of_words(logits: int, *devices: str) -> Form:
    label = f"blocks of {logits:,} logits, made once forward and once backward"
    return Form(f"words_{logits >> 20}m", label, devices=devices, size=logits)


# 8 MiB of float32 stay in a processor's cache between the products that write and read them. A GPU wants more work at a
# time. Even larger blocks would use the memory that the layer is meant to save.
WORD_FORMS = _of_words(2**21, CPU, GPU), _of_words(2**23, CPU, GPU)
GPU_FORMS = _of_words(2**24, GPU), _of_words(2**26, GPU)  # 32 MiB in half precision fit into a GPU's cache
FLOAT32_GPU_FORMS = _of_words(2**24, GPU), _of_words(2**25, GPU)  # float32 logits beside gradients in half precision
# 64 MiB of float32. Each block adds to the gradient with respect to all words, so blocks should be few; blocks half as
# large again would be a tenth faster at 128,000 words.
TOKEN_FORM = Form(
    "tokens_16m",
    f"blocks of {2**24:,} logits by tokens, gradients made in the forward pass",
    devices=(CPU,),
    dtypes=("float32", "tf32", "float64"),
    size=2**24,
)
# Our C++ kernel is the faster the more tokens read the words together, so its blocks are half as large again.
_LOGITS_BY_TOKENS = {TOKEN_FORM: TOKEN_FORM.size, CPP: 3 * 2**23}
_ALIGNED = 64


def by_kernels(form: Form, kernels: Form) -> Form:
    """Return the form of blocks whose logits are processed by `kernels`, Triton's or Pallas'."""
    return replace(form, id=f"{form.id}_{kernels.id}", label=f"{form.label}, {kernels.label}", devices=kernels.devices)


def are_of_tokens(form: Form) -> bool:
    """Return whether the form trains by blocks of tokens."""
    return form in _LOGITS_BY_TOKENS


def across_devices(form: Form) -> Form:
    """Return the form of a layer whose words are split over devices: gradients of a block need the sum of all words."""
    return WORD_FORMS[-1] if are_of_tokens(form) else form


def width(tokens: int, vocab: int, form: Form) -> int:
    """Return the words B of a block, so that its (N, B) logits are about as many as the form allows.

    B is a multiple of 64 where possible, since products of odd widths are slower, by a quarter in PyTorch on a CPU. All
    blocks have about as many words, because JAX computes a second time what the last one lacks. A form by tokens trains
    by blocks of tokens only; everything else goes by the largest blocks of words of a CPU. Their 32 MiB are less than
    the training takes.
    """
    most = max(1, across_devices(form).size // tokens)
    most = min(vocab, most // _ALIGNED * _ALIGNED or most)
    balanced = -(-vocab // -(-vocab // most))
    return min(most, -(-balanced // _ALIGNED) * _ALIGNED)


def of_tokens(tokens: int, vocab: int, form: Form) -> int:
    """Return the tokens B of a block, balanced over the blocks, so that its (B, V) logits fit into the form's size."""
    return -(-tokens // -(-tokens // most_tokens(vocab, form)))


def most_tokens(vocab: int, form: Form) -> int:
    """Return the most tokens of a block."""
    return max(1, _LOGITS_BY_TOKENS[form] // vocab)
