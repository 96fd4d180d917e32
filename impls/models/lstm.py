"""The one LSTM that every network of ours is made of: its canonical parameters, and where they start.

i, f, g, o = split(input_weight x + hidden_weight h + bias);  c = sigma(f) c + sigma(i) tanh(g);  h = sigma(o) tanh(c)
"""

from __future__ import annotations

import numpy as np

from vocabench.impls.spec import Arrays, Shapes
from vocabench.impls.uniform import uniform


def shapes(prefix: str, inputs: int, hidden: int) -> Shapes:
    """Of `<prefix>_input_weight`, `<prefix>_hidden_weight` and `<prefix>_bias`, gates in the order input, forget, cell,
    output, with a single bias."""
    gates = 4 * hidden
    return {
        f"{prefix}_input_weight": (gates, inputs),
        f"{prefix}_hidden_weight": (gates, hidden),
        f"{prefix}_bias": (gates,),
    }


def initial(prefix: str, inputs: int, hidden: int, rng: np.random.Generator) -> Arrays:
    """Float64 parameters uniform in +-1/sqrt(hidden), biases zero but for the forget gate's, which is 1."""
    bound = 1 / np.sqrt(hidden)
    params = {
        name: np.zeros(shape) if len(shape) == 1 else uniform(rng, bound, shape)
        for name, shape in shapes(prefix, inputs, hidden).items()
    }
    params[f"{prefix}_bias"][hidden : 2 * hidden] = 1.0
    return params
