"""The table of tolerances, each with its reason. No other module decides how close is close enough.

An error is max |ours - definition| / max |definition|. It is relative to the largest entry of the array, so that
rounding errors of large entries do not count against small ones. The tolerance of a quantity is

    tolerance = unit(dtype) x sqrt(reduction) x factor(quantity)

because rounding errors of a sum of `reduction` terms grow like a random walk, with its square root.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True)
class Unit:
    """Relative rounding error of one operation."""

    value: float
    reason: str


UNITS: dict[str, Unit] = {
    "float64": Unit(2.0**-53, "half a unit in the last place of 53 bits"),
    "float32": Unit(2.0**-24, "half a unit in the last place of 24 bits"),
    "tf32": Unit(
        2.0**-11,
        "half a unit in the last place of 11 bits, to which factors are rounded; everything else is float32",
    ),
    "bfloat16": Unit(
        2.0**-9, "half a unit in the last place of 8 bits; products are rounded to it, sums are kept in float32"
    ),
}


@dataclass(frozen=True)
class Factor:
    """Multiple of the rounding error that a quantity may have, or another bound."""

    value: float
    reason: str


FACTORS: dict[str, Factor] = {
    "loss": Factor(8, "a mean of log-probabilities, each a dot product with a few more roundings"),
    "target_log_probs": Factor(16, "a dot product, an exponential and a logarithm; the worst of many tokens"),
    "log_probs": Factor(16, "as target_log_probs, the worst of N x V entries"),
    "normalization": Factor(16, "|log of the sum of the probabilities|: V roundings, largest terms first"),
    "grad_hidden": Factor(32, "softmax probabilities times weights: two chained products"),
    "grad_parameter": Factor(32, "softmax probabilities times hidden vectors, summed over tokens in another order"),
    "entropy": Factor(16, "a mean of log_probs, with probabilities that are rounded too"),
    "grad_hidden of an objective": Factor(64, "as grad_hidden, and the derivative of capped logits is a difference"),
    "grad_parameter of an objective": Factor(
        64, "as grad_parameter, and the derivative of capped logits is a difference"
    ),
    "topk_values": Factor(16, "entries of log_probs"),
    "beam_values": Factor(16, "entries of log_probs"),
    "kink": Factor(
        2,
        "the argument of a rectifier or a maximum, relative to the largest one: a dot product. If it is so close to "
        "a kink, the tolerance of a gradient that disagrees grows by the size of the jump there",
    ),
    "training_loss": Factor(
        4096,
        "20 optimizer steps: Adagrad's first steps normalize gradients, so that rounding of one near zero moves a "
        "parameter by up to the learning rate, and each step feeds the next",
    ),
    "training_loss of maxima": Factor(
        16384,
        "as training_loss, and rounding can change which entry is the maximum and receives the gradient: moving the "
        "initial parameters once by 2^-24 of themselves moves the definition's own curve by up to 6e-4 for "
        "cnn_softmax and 1e-6 for full softmax and sohsm, and float32 rounds them at every step",
    ),
    "optimizer_state": Factor(2, "parameters and slots after a number of steps, each rounded once per step"),
    "loss_fall": Factor(
        64,
        "five steps of Adam in bfloat16 with learning rate 0.01; rounding decides the direction of a step whose "
        "gradient is near zero: the fall is off by 0.012 for most layers, by 0.1 for nce, whose biases of -2 to -6 "
        "move by 0.016 or not at all, and if logits are rounded to bfloat16; by 1 for a layer that learns nothing",
    ),
}

# Share of rows whose discrete choices, made with rounded numbers, may differ from the definition's.
FLIPS: dict[str, Factor] = {
    "float64": Factor(1e-6, "a number would have to lie within rounding of a boundary"),
    "float32": Factor(0.02, "probabilities and sums are off by about 1e-6, at each of up to 20 choices per word"),
    "tf32": Factor(0.125, "a quarter of bfloat16's, like the rounding, at each of up to 20 choices per word"),
    "bfloat16": Factor(0.5, "probabilities are off by about one hundredth, at each of up to 20 choices per word"),
}


def samples_compare(dtype: str, vocab: int) -> bool:
    """Return whether the same uniform numbers must give the same words.

    A cumulative sum of V probabilities is off by about one rounding times sqrt(V), and the distance to the next word is
    1 / V. Beyond a few thousand words, a neighbouring word is as correct in float32 as the word itself.
    """
    summed = "float64" if dtype == "float64" else "float32"
    return UNITS[summed].value * vocab**1.5 < FLIPS[summed].value


def tolerance(quantity: str, dtype: str, reduction: int) -> float:
    """Return the largest relative error allowed for `quantity`, computed in `dtype` by sums of `reduction` terms."""
    return UNITS[dtype].value * sqrt(reduction) * FACTORS[quantity].value
