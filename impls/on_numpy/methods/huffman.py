"""Huffman hierarchical softmax (Mikolov et al. 2013; Liu et al. 2022, arXiv 2204.03855).

Words are the leaves of a Huffman tree with V-1 inner nodes. A word is reached from the root by a sequence of turns. At
an inner node with vector r, the probability of turning left is sigma(r.h), and that of turning right is sigma(-r.h)
(equation 1, algorithm 3). Therefore

    log P(w | h) = sum over the inner nodes of w's path of log sigma(sign . r.h)

where sign is +1 for a left turn and -1 for a right turn. The probabilities of the leaves sum to one without a
normalizer. A target costs 2 D x (length of its code) FLOPs, and frequent words have short codes.
`impls/on_numpy/tree.py` has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.on_numpy.tree import TreeSoftmax, least_work
from vocabench.impls.spec import Arrays, Definition, LayerSpec, Shapes
from vocabench.impls.structures import huffman
from vocabench.impls.uniform import uniform


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    tree = huffman.build(counts_V)
    return {"code_length": tree.code_length, "index": tree.index, "sign": tree.sign, "children": tree.children}


def shapes(spec: LayerSpec) -> Shapes:
    return {"node_weight": (spec.vocab - 1, spec.dim)}


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    bound = 1 / np.sqrt(spec.dim)
    return {"node_weight": uniform(rng, bound, (spec.vocab - 1, spec.dim))}


DEFINITION = Definition(
    name="huffman",
    paper="Liu et al., Hierarchical Softmax for End-to-End Low-resource Multilingual ASR, arXiv 2204.03855, 2022",
    options={},
    structure=structure,
    shapes=shapes,
    initial=initial,
    draws=lambda spec: spec.structure["index"].shape[1],
    least_work=least_work,
)

LAYER = TreeSoftmax
