"""Checks of the calls of native layers, which the frameworks share.

The checks read shapes, dtypes and Python values, and never the elements of an array, so that they also work while a
function is traced. A size that is unknown while tracing is None and counts as right.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vocabench.impls.errors import BadInput, UnknownKeyword, unknown
from vocabench.impls.spec import Definition, LayerSpec
from vocabench.impls.structures.path_blocks import MOST_LEVELS

Sizes = Sequence[int | None]

REDUCTIONS = ("mean", "sum", "none")


class Objective(NamedTuple):
    """What a training loss adds to the negative log-likelihood of each token.

    With p the distribution and z the logits of a token, whose logits are capped first if there is a `softcap`:

        loss = -(1 - label_smoothing) log p(target) - label_smoothing / V sum_w log p(w) + z_loss (log sum_w exp z_w)^2

    Attributes:
        label_smoothing: Share of the uniform distribution over words in the target distribution (Szegedy et al. 2016,
            section 7).
        z_loss: Coefficient of the squared log-sum-exp (de Brébisson and Vincent 2016; Chowdhery et al. 2022,
            section 5).
        softcap: Logits are replaced by `softcap * tanh(logits / softcap)` (Gemma Team 2024, section 2). None for no
            cap.
    """

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None


PLAIN = Objective()


class Sampling(NamedTuple):
    """How a word is drawn.

    Attributes:
        temperature: Log-probabilities are divided by it, and normalized again.
        top_k: Keep only this many of the likeliest words; None for all.
        top_p: Of these, keep the smallest number of likeliest words whose probabilities sum to at least this
            (Holtzman et al. 2020); None for all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


ALL_WORDS = Sampling()
NUCLEUS = Sampling(top_p=0.9)  # for timing


def check_hidden(shape: Sizes, dim: int, dtype: object, *, floating: bool) -> None:
    """Refuse hidden vectors that are not (..., D) of a floating dtype."""
    if not len(shape) or (shape[-1] != dim and shape[-1] is not None):
        raise BadInput(f"hidden has shape {shown(shape)}: allowed: (..., {dim})")
    if not floating:
        raise BadInput(f"hidden has dtype {dtype}: allowed: a floating dtype")


def check_targets(shape: Sizes, leading: Sizes, dtype: object, *, integer: bool) -> None:
    """Refuse targets that are not integers, one for each hidden vector.

    `leading` is the shape of `hidden` without its last axis.
    """
    check_leading("targets", shape, leading)
    if not integer:
        raise BadInput(f"targets has dtype {dtype}: allowed: an integer dtype")


def check_token_weight(shape: Sizes, leading: Sizes, dtype: object, *, floating: bool) -> None:
    """Refuse token weights that are not floating-point numbers, one for each hidden vector."""
    check_leading("token_weight", shape, leading)
    if not floating:
        raise BadInput(f"token_weight has dtype {dtype}: allowed: a floating dtype")


def check_uniforms(shape: Sizes, leading: Sizes, draws: int, dtype: object, *, floating: bool) -> None:
    """Refuse uniform numbers that are not (..., U), with U = `LayerSpec.draws` for each hidden vector."""
    if not _same(shape, (*leading, draws)):
        raise BadInput(f"uniforms has shape {shown(shape)}: allowed: {shown((*leading, draws))}")
    if not floating:
        raise BadInput(f"uniforms has dtype {dtype}: allowed: a floating dtype")


def check_leading(name: str, shape: Sizes, leading: Sizes) -> None:
    """Refuse an array whose shape is not that of `hidden` without its last axis."""
    if not _same(shape, leading):
        raise BadInput(f"{name} has shape {shown(shape)}: allowed: {shown(leading)}, the shape of hidden without D")


def check_input(
    name: str, shape: Sizes, dtype: object, spec: LayerSpec, leading: Sizes, *, floating: bool, integer: bool
) -> None:
    """Refuse a random input of a loss that is not (S,) word ids, nor what `Extra` says instead.

    With word ids for each token, (..., S) has the leading axes of `hidden`, or one axis of N tokens instead of them.
    """
    extra, what = spec.definition.extra[name], f"{name} has shape {shown(shape)} and dtype {dtype}"
    if extra.for_each_word:
        if not floating or not _same(shape, (spec.vocab,)):
            raise BadInput(f"{what}: allowed: ({spec.vocab},) of a floating dtype")
        return
    right: tuple[Sizes, ...] = ((),)
    if extra.for_each_token(spec.options):
        known = [size for size in leading if size is not None]
        right = (leading, (math.prod(known) if len(known) == len(leading) else None,))
    if not integer or not any(_same(shape[:-1], sizes) for sizes in right) or not shape or shape[-1] == 0:
        allowed = "".join(f"{'?' if size is None else size}, " for size in right[0])
        raise BadInput(f"{what}: allowed: ({allowed}S{'' if allowed else ','}) word ids, S from 1")


def check_reduction(reduction: object) -> None:
    if reduction not in REDUCTIONS:
        raise unknown("reduction", reduction, REDUCTIONS)


def check_ignore_index(ignore_index: object) -> None:
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int | np.integer):
        raise BadInput(f"ignore_index={ignore_index!r}: allowed: a whole number")


def check_keywords(call: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse keywords that a call does not take.

    Args:
        call: The call in the message, such as "the loss of huffman".
        given: The names that the caller passed besides the named arguments.
        allowed: All names that the call takes.

    Raises:
        UnknownKeyword: A name is unknown.
    """
    allowed = list(allowed)
    for name in given:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownKeyword(f"{call} takes no {name!r}: {hint}allowed: {', '.join(allowed)}")


LOSS_KEYWORDS = ("ignore_index", "reduction", "label_smoothing", "token_weight", "z_loss", "softcap")


def check_extra(definition: Definition, given: Iterable[str]) -> None:
    """Refuse keywords of a loss that are neither its options nor random inputs of the method.

    Raises:
        UnknownKeyword: A name is unknown.
    """
    check_keywords(f"the loss of {definition.name}", given, (*LOSS_KEYWORDS, *definition.extra))


def objective_of(definition: Definition, label_smoothing: object, z_loss: object, softcap: object) -> Objective:
    """Return the checked objective of a loss.

    Raises:
        BadInput: A value is out of range, or the method does not define it.
    """
    made = Objective(
        _number("label_smoothing", label_smoothing, "a number from 0, below 1", lambda value: 0 <= value < 1),
        _number("z_loss", z_loss, "a number from 0", lambda value: value >= 0),
        check_softcap(definition, softcap),
    )
    if made == PLAIN:
        return PLAIN
    if made.label_smoothing and definition.train_only_loss:
        raise BadInput(
            f"label_smoothing={label_smoothing!r}: allowed: 0 for {definition.name}, whose loss is over sampled words"
        )
    if made.z_loss and not has_z_loss(definition):
        raise BadInput(f"z_loss={z_loss!r}: allowed: 0 for {definition.name}, {_no_softmax(definition)}")
    return made


def objective_losses(
    definition: Definition,
    objective: Objective,
    losses_N: Any,
    *,
    mean_log_probs: Callable[[], Any],
    target_logits: Callable[[], Any],
    mean_logits: Callable[[], Any],
) -> Any:
    """Return the (N,) losses of an objective without a softcap, in the arrays of any framework.

    With one softmax over the vocabulary, neither label smoothing nor the log-sum-exp needs an (N, V) array: the former
    adds the difference of the target's logit and the mean logit, and the latter is the loss plus the target's logit.

    Args:
        definition: The method.
        objective: What the losses add.
        losses_N: The plain losses.
        mean_log_probs: Returns the (N,) means over all words of the log-probabilities.
        target_logits: Returns the (N,) logits of the targets, of a method with one softmax.
        mean_logits: Returns the (N,) means over all words of the logits, of a method with one softmax.
    """
    smoothing, z_loss = objective.label_smoothing, objective.z_loss
    if objective == PLAIN:
        return losses_N
    if not has_z_loss(definition):
        return (1 - smoothing) * losses_N - smoothing * mean_log_probs()
    target_N = target_logits()
    smoothed_N = losses_N + smoothing * (target_N - mean_logits()) if smoothing else losses_N
    return smoothed_N + z_loss * (losses_N + target_N) ** 2 if z_loss else smoothed_N


def check_softcap(definition: Definition, softcap: object) -> float | None:
    """Return a checked softcap, or None for none."""
    if softcap is None:
        return None
    if not has_z_loss(definition):
        raise BadInput(f"softcap={softcap!r}: allowed: None for {definition.name}, {_no_softmax(definition)}")
    return _number("softcap", softcap, "a number above 0, or None", lambda value: value > 0)


def has_z_loss(definition: Definition) -> bool:
    """Return whether `z_loss` and `softcap` exist: the training loss is of one softmax over the vocabulary."""
    return definition.one_softmax and not definition.train_only_loss


def _no_softmax(definition: Definition) -> str:
    sampled = "whose loss is over sampled words"
    return sampled if definition.train_only_loss else "which has no softmax over the whole vocabulary"


def check_sampling(temperature: object, top_k: object, top_p: object, vocab: int) -> Sampling:
    """Return how to draw words, checked."""
    made = Sampling(
        _number("temperature", temperature, "a number above 0", lambda value: value > 0),
        None if top_k is None else check_count("top_k", top_k, vocab),
        None
        if top_p is None
        else _number("top_p", top_p, "a number above 0, up to 1, or None", lambda value: 0 < value <= 1),
    )
    return ALL_WORDS if made == ALL_WORDS else made


def check_count(name: str, value: object, vocab: int, *, lowest: int = 1) -> int:
    """Return a number of words from `lowest` to V: `k`, `top_k` or `width`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not lowest <= value <= vocab:
        raise BadInput(f"{name}={value!r}: allowed: a whole number from {lowest} to {vocab}, the vocabulary")
    return int(value)


def check_levels(value: object) -> int:
    """Return the number of levels of a tree that are searched at a time."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= MOST_LEVELS:
        raise BadInput(f"levels={value!r}: allowed: a whole number from 1 to {MOST_LEVELS}")
    return int(value)


def shown(shape: Sizes) -> str:
    """Return a shape as text, with "?" for an unknown size."""
    sizes = ["?" if size is None else str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def _same(shape: Sizes, allowed: Sizes) -> bool:
    return len(shape) == len(allowed) and all(
        size == other or size is None or other is None for size, other in zip(shape, allowed, strict=True)
    )


def _number(name: str, value: object, allowed: str, right: Callable[[float], bool]) -> float:
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not right(float(value)):  # type: ignore[arg-type]
        raise BadInput(f"{name}={value!r}: allowed: {allowed}")
    return float(value)  # type: ignore[arg-type]
