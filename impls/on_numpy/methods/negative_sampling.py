"""Negative sampling (Mikolov et al. 2013): the target against S sampled words, without corrections.

With s_w = h.W_w + b_w, for the target t,

    loss = -log sigma(s_t) - sum over the samples w of log sigma(-s_w)

This is `nce` without its corrections, and it no longer estimates a distribution. At the optimum, s_w is log P(w | h)
minus the logarithm of the expected number of occurrences of w among the samples. `target_log_probs` and all evaluation
report the full softmax of these scores, which differs from the distribution of the text.

With `sharing="token"`, each target has S sampled words of its own, as in word2vec: the input `sampled_ids` is (N, S).
With `sharing="batch"`, all tokens of a batch share S sampled words, which makes their scores one product of matrices.
Each step then moves a few words away from all tokens at once, and most words from none: word vectors learn poorly.

The forward pass costs 2 D (1 + S) FLOPs per token. A batch reads at most N + S rows of W, forward and backward,
whatever V is, or N (1 + S) rows with `sharing="token"`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.on_numpy import sampled
from vocabench.impls.on_numpy.methods import full_softmax
from vocabench.impls.on_numpy.methods.nce import NoiseContrastiveEstimation
from vocabench.impls.options import Choice, Number
from vocabench.impls.spec import Arrays, LayerSpec

OPTIONS = sampled.options(remove_hits=True) | {
    "samples": Number(64, 1, 2**31, "number S of sampled words of a batch, or of each target with sharing=token"),
    "sharing": Choice(
        "batch",
        ("batch", "token"),
        "batch: all tokens share S sampled words, for large batches; token: each target has its own, for word vectors",
    ),
    "initial": Choice("uniform", ("uniform", "zero"), "initial weights: uniform, or zero as in word2vec"),
}


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    if options["sharing"] == "token" and options["unique"]:
        raise BadInput("option unique=True with sharing='token': allowed: False, which draws with replacement")
    return sampled.structure(counts_V, options, corrected=False)


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    params = full_softmax.initial(spec, rng)
    if spec.options["initial"] == "zero":
        params["weight"] = np.zeros_like(params["weight"])
    return params


DEFINITION = dataclasses.replace(
    full_softmax.DEFINITION,
    name="negative_sampling",
    paper="Mikolov et al., Distributed representations of words and phrases and their compositionality, 2013",
    options=OPTIONS,
    structure=structure,
    initial=initial,
    train_only_loss=True,
    needs_counts=True,
    extra={"sampled_ids": sampled.SAMPLED_IDS},
    least_work=sampled.least_work,
    variants=({"remove_hits": False, "bias": False}, {"sharing": "token", "samples": 5}),
)

LAYER = NoiseContrastiveEstimation
