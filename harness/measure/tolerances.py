"""The one table of tolerances, each with its reason. Nothing else in the project decides how near is near enough.

An error is max |ours - oracle| / max(|oracle|): relative to the largest entry of the array, so that rounding of the
large entries does not fail the small ones. A quantity is held to

    tolerance = unit(dtype) x sqrt(reduction) x factor(quantity)

because rounding errors of a sum of `reduction` terms grow like a random walk, its square root.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True)
class Unit:
    value: float
    reason: str


# The rounding of one operation.
UNITS: dict[str, Unit] = {
    "float64": Unit(2.0**-53, "half a unit in the last place of 53 bits"),
    "float32": Unit(2.0**-24, "half a unit in the last place of 24 bits"),
    "tf32": Unit(
        2.0**-11,
        "half a unit in the last place of 11 bits; factors are rounded to it, all else is float32's",
    ),
    "bfloat16": Unit(
        2.0**-9, "half a unit in the last place of 8 bits; products are rounded to it, sums are kept in float32"
    ),
}


@dataclass(frozen=True)
class Factor:
    value: float
    reason: str


FACTORS: dict[str, Factor] = {
    "loss": Factor(8, "a mean of log-probabilities, each with a few roundings besides its dot product"),
    "target_log_probs": Factor(16, "a dot product, an exponential and a logarithm; the worst of many tokens"),
    "log_probs": Factor(16, "as target_log_probs, the worst of N x V entries"),
    "normalisation": Factor(16, "|log of the sum of the probabilities|: V roundings, largest terms first"),
    "grad_hidden": Factor(32, "softmax probabilities times weights: two chained products"),
    "grad_parameter": Factor(32, "softmax probabilities times hidden vectors, summed over tokens in another order"),
    "topk_values": Factor(16, "entries of log_probs"),
    "beam_values": Factor(16, "entries of log_probs"),
    "training_loss": Factor(
        4096,
        "20 optimizer steps: Adagrad's first steps divide a gradient by its own size, so that rounding of a gradient "
        "near zero moves a parameter by up to the learning rate, and each step feeds the next",
    ),
    "training_loss of maxima": Factor(
        16384,
        "as training_loss, and rounding can make another number the highest, whose gradient is another: when its first "
        "parameters are moved once by 2^-24 of themselves, the oracle's own curve moves by up to 6e-4 for cnn_softmax, "
        "by 1e-6 for full softmax and sohsm; float32 rounds them at every step",
    ),
    "optimizer_state": Factor(
        2, "parameters and slots after so many steps: each is rounded once a step, whatever is between"
    ),
    "loss_fall": Factor(
        64,
        "bfloat16's five steps of Adam, each of one learning rate, 0.01, in a direction that rounding decides where a "
        "gradient is near zero: the fall is off by 0.012 for most layers; by 0.1 for nce, whose biases, -2 to -6, move "
        "by 0.016 or not at all, and where logits are rounded to bfloat16; by 1 for a layer that learns nothing",
    ),
}

# Of discrete choices made with rounded numbers, the share of rows that may come out otherwise than the oracle's.
FLIPS: dict[str, Factor] = {
    "float64": Factor(1e-6, "a number would have to lie within rounding of a boundary"),
    "float32": Factor(0.02, "probabilities and sums are off by some 1e-6, at each of up to 20 choices a word"),
    "tf32": Factor(0.125, "a quarter of bfloat16's, as the rounding is, at each of up to 20 choices a word"),
    "bfloat16": Factor(0.5, "probabilities are off by about a hundredth, at each of up to 20 choices a word"),
}


def samples_compare(dtype: str, vocab: int) -> bool:
    """Whether the same uniform numbers must give the same words.

    A cumulative sum of V probabilities is off by about a rounding times sqrt V, and 1 / V is the distance to the next
    word: beyond a few thousand words in float32 a neighbour comes out as rightly as the word itself.
    """
    summed = "float64" if dtype == "float64" else "float32"
    return UNITS[summed].value * vocab**1.5 < FLIPS[summed].value


def tolerance(quantity: str, dtype: str, reduction: int) -> float:
    """Largest relative error allowed for `quantity`, computed in `dtype` by sums of `reduction` terms."""
    return UNITS[dtype].value * sqrt(reduction) * FACTORS[quantity].value
