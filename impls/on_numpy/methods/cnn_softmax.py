"""CNN softmax (Jozefowicz et al. 2016, arXiv 1602.02410, section 3.2): word vectors computed from spelling.

A convolution over the characters c_1..c_L of a word, with marks at its beginning and end, yields the word's vector. A
learned correction r_w separates words that are spelled alike but differ in meaning:

    log P(w | h) = log softmax over w of h.(P f_w / sqrt X + M r_w / sqrt R) + b_w
    f_w = ReLU(for each width k = 1..4 and each filter: max over t of sum_{j<k} K_kj.E[window_kt(j)] / sqrt(k E) + a_k)

Each character c_t of the word, marks excluded, has one window of each width: c_t itself; c_{t-1} and c_t; these and
c_{t+1}; these and c_{t+2}. Positions beyond the marks are zero. Each window therefore contains a character of the word.
A window of marks alone would be the same for all words, and softmax is invariant to what all words share. The filters
use ReLU instead of tanh, so that gradients do not vanish when the filters grow. The highway layers that Kim et al. 2016
place above the filters are left out.

Each product is divided by the square root of its number of terms, so that its values start at about 1. Adagrad's first
steps move each parameter by the learning rate, and a sum of X terms by up to X times as much. Without the division, the
loss of a language model with 3,000 words rose to 359 nats in the first steps at a learning rate of 0.1; with it, the
loss stays below 13, as for full softmax.

If no words are given, word id i is spelled by its decimal digits: "123" has the characters 1, 2 and 3.

Let A be the number of characters, E their width, F the number of filters per width, L the length of the words, X = 4 F,
and R the width of the correction. A forward call takes 20 V L E F FLOPs for the filters and 2 V D (X + R) for the
vectors, whatever N is. Each token then takes 2 D V FLOPs, with (N, V) logits, as in full softmax.

The scores of a window depend on four characters only, and the vocabulary has just U distinct windows
(`impls/structures/windows.py`). The frameworks therefore take 32 U E F FLOPs for the filters and (U, X) values of
memory. The layer trains A E + 10 E F + X (D + 1) + D R + V (R + 1) parameters instead of V (D + 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.calls import PLAIN, Objective
from vocabench.impls.errors import BadInput
from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.oracle import SoftmaxLayer
from vocabench.impls.options import Number, Words, read_words
from vocabench.impls.spec import BIAS, Arrays, Definition, LayerSpec, LeastWork, Shapes
from vocabench.impls.structures.spelling import END, spell
from vocabench.impls.uniform import uniform

WIDTHS = (1, 2, 3, 4)

OPTIONS = {
    "char_dim": Number(16, 1, 4096, "width of a character's vector"),
    "filters": Number(64, 1, 4096, "filters of each width from 1 to 4 characters"),
    "correction": Number(128, 0, 4096, "width of a word's own vector, capped at D without loss; 0 is none"),
    "bias": BIAS,
    "words": Words("a word for each id, or a UTF-8 file with one per line; if left out, the digits of the id"),
}


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    vocab = len(counts_V)
    words = read_words("words", options["words"])
    if words is None:
        words = tuple(map(str, range(vocab)))
    if len(words) != vocab:
        raise BadInput(f"option words has {len(words)} words: allowed: {vocab}, one for each id")
    characters_VL, alphabet = spell(words)
    return {"characters": characters_VL, "alphabet": np.array(alphabet)}


def shapes(spec: LayerSpec) -> Shapes:
    alphabet = int(spec.structure["alphabet"])
    char_dim, filters, correction = (int(spec.options[name]) for name in ("char_dim", "filters", "correction"))  # type: ignore[call-overload]
    parameter_shapes: Shapes = {"char_embedding": (alphabet, char_dim)}  # row i - 1: character i; padding has none
    for width in WIDTHS:
        parameter_shapes |= {f"conv{width}_weight": (filters, width, char_dim), f"conv{width}_bias": (filters,)}
    parameter_shapes["char_projection"] = (spec.dim, len(WIDTHS) * filters)
    if correction:
        correction = min(correction, spec.dim)
        parameter_shapes["correction_weight"] = (spec.vocab, correction)
        parameter_shapes["correction_projection"] = (spec.dim, correction)
    return parameter_shapes | {"bias": (spec.vocab,)}


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    """Draw the weights uniformly, and set the biases of the words to zero.

    The score of a window has a standard deviation of 1/3, and both parts of a word vector are about as long as a word
    vector of full softmax.

    The biases of the filters start at -1/3, so that a filter is active for some words and inactive for others. Softmax
    is invariant to what all words share. If a filter were active for all words, the gradient of its bias would consist
    of rounding errors only, which Adagrad would scale up by dividing them by their own size.
    """
    bounds = {
        "char_projection": 2 / np.sqrt(spec.dim),
        "correction_weight": np.sqrt(3),
        "correction_projection": 1 / np.sqrt(spec.dim),
    }
    params: Arrays = {}
    for name, shape in spec.parameter_shapes().items():
        if name.endswith("bias"):
            params[name] = np.full(shape, 0.0 if name == "bias" else -1 / 3)
        else:
            bound = bounds.get(name, 1.0)
            params[name] = uniform(rng, bound, shape)
    return params


def least_work(spec: LayerSpec, targets_N: NDArray[np.int64]) -> LeastWork:
    """Count one product of each filter position with each character. Sums of these over windows are not counted."""
    tokens, parameter_shapes = len(targets_N), spec.parameter_shapes()
    filter_weights = sum(math.prod(parameter_shapes[f"conv{width}_weight"]) for width in WIDTHS)
    filters = parameter_shapes["char_embedding"][0] * filter_weights
    inner = parameter_shapes["char_projection"][1] + parameter_shapes.get("correction_projection", (0, 0))[1]
    multiply_adds = filters + cost.through_projection(tokens, spec.dim, inner, spec.vocab)
    return cost.least(spec, tokens, multiply_adds=multiply_adds, parameters=cost.all_parameters(spec))


DEFINITION = Definition(
    name="cnn_softmax",
    paper="Jozefowicz et al., Exploring the Limits of Language Modeling, arXiv 1602.02410, 2016",
    options=OPTIONS,
    structure=structure,
    shapes=shapes,
    needs_counts=False,
    one_softmax=True,
    biases=("bias",),
    initial=initial,
    least_work=least_work,
    variants=({"correction": 0, "bias": False},),
    takes_maxima=True,
)


def before(width: int) -> int:
    """Return the index, among the four characters c_{t-1}..c_{t+2}, of the first one in a window."""
    return 1 if width == 1 else 0


class CnnSoftmax(SoftmaxLayer):
    """Softmax over word vectors that a convolution computes from spelling."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        # One more position of padding lets the last character have the widest window.
        self.characters_VL = np.pad(spec.structure["characters"], ((0, 0), (0, 1)))

    def _embedding(self) -> NDArray:
        """Return the vectors (1 + A, E) of padding, which is zero, and of the characters."""
        return np.pad(self.params["char_embedding"], ((1, 0), (0, 0)))

    def _scaled(self, name: str) -> NDArray:
        """Return a weight divided by the square root of the number of terms in its products."""
        weight = self.params[name]
        return weight / np.sqrt(weight[0].size)

    def _scores(self, width: int) -> NDArray:
        """Return the score (V, T, F) of each filter in each window of each word, -inf beyond the word."""
        chars_VLE = self._embedding()[self.characters_VL]
        weight_FkE = self._scaled(f"conv{width}_weight")
        positions, begin = self.characters_VL.shape[1] - 3, before(width)
        scores_VTF = self.params[f"conv{width}_bias"] + sum(
            chars_VLE[:, begin + j : begin + j + positions] @ weight_FkE[:, j].T for j in range(width)
        )
        in_word_VT = self.characters_VL[:, 1 : 1 + positions] > END
        return np.where(in_word_VT[:, :, None], scores_VTF, -np.inf)

    def _pooled(self, width: int) -> tuple[NDArray, NDArray]:
        """Return the largest score (V, F) of each filter in each word, and the start (V, F) of its first window."""
        scores_VTF = self._scores(width)
        first_VF = scores_VTF.argmax(axis=1)
        return np.take_along_axis(scores_VTF, first_VF[:, None], axis=1)[:, 0], before(width) + first_VF

    def _features(self) -> NDArray:
        """Compute the features (V, X) of the words."""
        return np.maximum(np.concatenate([self._pooled(width)[0] for width in WIDTHS], axis=1), 0)

    def _vectors(self, features_VX: NDArray) -> NDArray:
        """Compute the word vectors (V, D)."""
        vectors_VD = features_VX @ self._scaled("char_projection").T
        if "correction_weight" in self.params:
            vectors_VD = vectors_VD + self.params["correction_weight"] @ self._scaled("correction_projection").T
        return vectors_VD

    def _logits(self, hidden_ND: NDArray) -> NDArray:
        return hidden_ND.astype(np.float64) @ self._vectors(self._features()).T + self._bias()

    def _back(self, hidden_ND: NDArray, dlogits_NV: NDArray) -> tuple[NDArray, Arrays]:
        params, features_VX = self.params, self._features()
        vectors_VD = self._vectors(features_VX)
        dvectors_VD = dlogits_NV.T @ hidden_ND
        grads = {"bias": dlogits_NV.sum(axis=0)}
        grads["char_projection"] = dvectors_VD.T @ features_VX / np.sqrt(features_VX.shape[1])
        if "correction_weight" in params:
            correction_VR = params["correction_weight"]
            grads["correction_weight"] = dvectors_VD @ self._scaled("correction_projection")
            grads["correction_projection"] = dvectors_VD.T @ correction_VR / np.sqrt(correction_VR.shape[1])
        dpooled_VX = np.where(features_VX > 0, dvectors_VD @ self._scaled("char_projection"), 0)
        grads |= self._filter_grads(np.split(dpooled_VX, len(WIDTHS), axis=1))
        return dlogits_NV @ vectors_VD, grads

    def kinks(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        rounding: float,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
    ) -> tuple[NDArray, Arrays]:
        hidden_ND = hidden_ND.astype(np.float64)
        dlogits_NV = self._loss_and_dlogits(hidden_ND, targets_N, objective, token_weight_N)[1]
        jump_VX = np.abs(dlogits_NV.T @ hidden_ND @ self._scaled("char_projection"))
        embedding_AE = self._embedding()
        bound_AE, bounds = np.zeros_like(embedding_AE), {}
        for width, jump_VF in zip(WIDTHS, np.split(jump_VX, len(WIDTHS), axis=1), strict=True):
            weight_FkE = self._scaled(f"conv{width}_weight")
            bound_FkE, bound_F = np.zeros_like(weight_FkE), np.zeros(len(weight_FkE))
            words_X, filters_X, own_Xk, other_Xk = self._undecided(width, rounding)
            jump_X = jump_VF[words_X, filters_X]
            for j, (own_X, other_X) in enumerate(zip(own_Xk.T, other_Xk.T, strict=True)):
                difference_XE = np.abs(embedding_AE[own_X] - embedding_AE[other_X])
                np.add.at(bound_FkE[:, j], filters_X, jump_X[:, None] * difference_XE)
                moved_XE = np.where(own_X != other_X, jump_X, 0)[:, None] * np.abs(weight_FkE[filters_X, j])
                np.add.at(bound_AE, own_X, moved_XE)
                np.add.at(bound_AE, other_X, moved_XE)
            np.add.at(bound_F, filters_X, np.where(other_Xk.any(axis=1), 0, jump_X))
            bounds |= {f"conv{width}_weight": bound_FkE / np.sqrt(weight_FkE[0].size), f"conv{width}_bias": bound_F}
        return np.zeros_like(hidden_ND), bounds | {"char_embedding": bound_AE[1:]}

    def _undecided(self, width: int, rounding: float) -> tuple[NDArray, NDArray, NDArray, NDArray]:
        """Return what rounding can decide: which of two windows has the largest score, or whether it is positive.

        Returns:
            Words (X,), filters (X,), and the characters (X, k) of the window that receives the gradient and of the one
            that may receive it instead, all padding where the rectifier may stop it.
        """
        scores_VTF = self._scores(width)
        first_VF, best_VF = scores_VTF.argmax(axis=1), scores_VTF.max(axis=1)
        margin = rounding * float(np.abs(best_VF).max())
        other_VTF = scores_VTF >= np.maximum(best_VF, 0)[:, None] - margin
        np.put_along_axis(other_VTF, first_VF[:, None], False, axis=1)
        words_X, windows_X, filters_X = np.nonzero(other_VTF)
        stopped_words_X, stopped_filters_X = np.nonzero(np.abs(best_VF) <= margin)
        window_k = before(width) + np.arange(width)
        other_Xk = self.characters_VL[words_X[:, None], windows_X[:, None] + window_k]
        words_X, filters_X = np.append(words_X, stopped_words_X), np.append(filters_X, stopped_filters_X)
        own_Xk = self.characters_VL[words_X[:, None], first_VF[words_X, filters_X][:, None] + window_k]
        return words_X, filters_X, own_Xk, np.pad(other_Xk, ((0, len(stopped_words_X)), (0, 0)))

    def _filter_grads(self, dpooled: list[NDArray]) -> Arrays:
        """Compute gradients with respect to the filters and the characters.

        Args:
            dpooled: Gradients (V, F) with respect to the largest scores, for each width. They flow to the first window
                that has the largest score.
        """
        embedding_AE, grads = self._embedding(), {}
        dembedding_AE = np.zeros_like(embedding_AE)
        for width, dpooled_VF in zip(WIDTHS, dpooled, strict=True):
            weight_FkE = self._scaled(f"conv{width}_weight")
            dweight_FkE = np.zeros_like(weight_FkE)
            word_V1, filters_F = np.arange(self.spec.vocab)[:, None], np.arange(dpooled_VF.shape[1])
            first_VF = self._pooled(width)[1]
            for j in range(width):
                # The share of each filter's gradient that each character receives at position j of the window.
                share_AF = np.zeros((len(embedding_AE), len(filters_F)))
                np.add.at(share_AF, (self.characters_VL[word_V1, first_VF + j], filters_F), dpooled_VF)
                dweight_FkE[:, j] = share_AF.T @ embedding_AE / np.sqrt(weight_FkE[0].size)
                dembedding_AE += share_AF @ weight_FkE[:, j]
            grads |= {f"conv{width}_weight": dweight_FkE, f"conv{width}_bias": dpooled_VF.sum(axis=0)}
        return grads | {"char_embedding": dembedding_AE[1:]}  # padding stays zero


LAYER = CnnSoftmax
