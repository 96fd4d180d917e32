"""Canonical parameters of the LSTM that the networks use, and their initial values.

i, f, g, o = split(input_weight x + hidden_weight h + bias);  c = sigma(f) c + sigma(i) tanh(g);  h = sigma(o) tanh(c)
"""

from __future__ import annotations

import numpy as np

from vocabench.impls.spec import Arrays, Shapes
from vocabench.impls.uniform import uniform


def shapes(prefix: str, inputs: int, hidden: int) -> Shapes:
    """Return the shapes of `<prefix>_input_weight`, `<prefix>_hidden_weight` and `<prefix>_bias`.

    The gates come in the order input, forget, cell, output. They have a single bias.
    """
    gates = 4 * hidden
    return {
        f"{prefix}_input_weight": (gates, inputs),
        f"{prefix}_hidden_weight": (gates, hidden),
        f"{prefix}_bias": (gates,),
    }


def initial(prefix: str, inputs: int, hidden: int, rng: np.random.Generator) -> Arrays:
    """Return initial float64 parameters.

    Weights are uniform in +-1/sqrt(hidden). Biases are zero, except for that of the forget gate, which is 1.
    """
    bound = 1 / np.sqrt(hidden)
    params = {
        name: np.zeros(shape) if len(shape) == 1 else uniform(rng, bound, shape)
        for name, shape in shapes(prefix, inputs, hidden).items()
    }
    params[f"{prefix}_bias"][hidden : 2 * hidden] = 1.0
    return params
