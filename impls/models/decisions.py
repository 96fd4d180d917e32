"""Losses that are sums of binary decisions, whose steps word2vec takes one example at a time.

A Huffman tree decides at each node of a path, and negative sampling between the target and each sampled word. Either
way the loss of an example with hidden vector h is

    sum over the places l of its list of -log sigma(sign_l . w_l.h)

with rows w_l of one parameter. A step changes no other row.

Shape letters: M lists, L places of a list, G groups of examples with the same target and samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.spec import Arrays, LayerSpec
from vocabench.impls.structures.trees import words_of_leaves


@dataclass(frozen=True)
class Decisions:
    """The decisions of N examples.

    Attributes:
        list_N: int32, the list of each example.
        row_ML: int32, the rows of the parameter in each list; 0 where there is none.
        sign_ML: int32, 1 or -1 for each row; 0 where there is none.
    """

    list_N: NDArray[np.int32]
    row_ML: NDArray[np.int32]
    sign_ML: NDArray[np.int32]


@dataclass(frozen=True)
class Squares:
    """Sums of the mean squared gradients of each vector, which a step changes in place.

    Attributes:
        input_I: Those of the input vectors.
        output_R: Those of the rows of the parameter; both are empty if all vectors have the same rate.
    """

    input_I: NDArray[np.floating]
    output_R: NDArray[np.floating]


NO_SQUARES = Squares(np.empty(0, np.float32), np.empty(0, np.float32))


def parameter_of(spec: LayerSpec) -> str:
    """Return the name of the parameter that the decisions of a layer are about.

    Raises:
        BadInput: The layer's loss is no sum of binary decisions on rows of one parameter.
    """
    names = list(spec.parameter_shapes())
    if names == ["node_weight"] and len(words_of_leaves(spec.structure, spec.vocab)) == spec.vocab:
        return "node_weight"
    if names == ["weight"] and spec.options.get("sharing") == "token":
        return "weight"
    raise BadInput(
        f"steps for single examples with {spec.method}: allowed: trees with one code for each word, and "
        "negative_sampling with sharing=token; both without biases"
    )


class Decider:
    """Finds the decisions of examples for a layer. The paths of a tree are converted once."""

    def __init__(self, spec: LayerSpec) -> None:
        self._spec = spec
        self._paths = None
        if parameter_of(spec) == "node_weight":
            self._paths = [np.ascontiguousarray(spec.structure[name], np.int32) for name in ("index", "sign")]

    def decisions(self, targets_G: NDArray[np.int32], group_N: NDArray[np.int32], extra: Arrays) -> Decisions:
        """Return the decisions of N examples, each of which has the target and the samples of a group.

        Args:
            targets_G: The target of each group.
            group_N: The group of each example.
            extra: What `LayerSpec.draw_extra` has drawn for the targets.
        """
        if self._paths is not None:
            return Decisions(targets_G[group_N], *self._paths)
        samples_GS = extra["sampled_ids"]
        row_GL = np.empty((len(targets_G), 1 + samples_GS.shape[1]), np.int32)
        row_GL[:, 0], row_GL[:, 1:] = targets_G, samples_GS
        sign_GL = np.full(row_GL.shape, -1, np.int32)
        sign_GL[:, 0] = 1
        if self._spec.options["remove_hits"]:
            sign_GL[:, 1:][row_GL[:, 1:] == targets_G[:, None]] = 0
        return Decisions(group_N, row_GL, sign_GL)
