"""CNN softmax (Jozefowicz et al. 2016, arXiv 1602.02410, section 3.2): word vectors made from their spelling.

A convolution over the characters c_1..c_L of a word, its begin and end marked, gives its vector, and a correction tells
apart words that are spelled alike but mean different things:

    log P(w | h) = log softmax over w of h.(P f_w / sqrt X + M r_w / sqrt R) + b_w
    f_w = ReLU(for each width k = 1..4 and each filter: max over t of sum_{j<k} K_kj.E[window_kt(j)] / sqrt(k E) + a_k)

Each character c_t of the word, which the marks are not, has a window of every width: c_t itself; c_{t-1} and c_t; these
and c_{t+1}; these and c_{t+2}. What reaches beyond the marks is zero. So every window holds a character of the word: a
window of marks alone would be the same in all words, which softmax does not feel. ReLU and not tanh, so that gradients
stay in proportion however large the filters grow. The highway layers that Kim et al. 2016 have above filters are left
out.

Each product is divided by the square root of the number of its terms, so that its numbers start at about 1. Adagrad's
first steps move each of them by the learning rate, and so a sum of X terms by up to X times that: without the division,
the loss of the language model at 3,000 words went to 359 nats in its first steps at the learning rate 0.1; with it, it
stays below 13, as full softmax does.

Where no words are given, word id i is spelled by its decimal digits: "123" has the characters 1, 2 and 3.

With A characters of width E, F filters a width, words of L characters, X = 4 F and correction width R, a forward call
takes 20 V L E F FLOPs for the filters and 2 V D (X + R) for the vectors, whatever N is, then 2 D V a token and (N, V)
logits as full softmax does. A window's scores depend on four characters alone, and words have but U different windows
(`impls/structures/windows.py`), so the frameworks take 32 U E F for the filters, and (U, X) numbers of memory. Trained
are A E + 10 E F + X (D + 1) + D R + V (R + 1) numbers in place of V (D + 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.oracle import OracleLayer, log_softmax, mean_nll
from vocabench.impls.options import Number, Words, read_words
from vocabench.impls.spec import Arrays, Definition, LayerSpec, LeastWork, Shapes
from vocabench.impls.structures.spelling import END, spell
from vocabench.impls.uniform import uniform

WIDTHS = (1, 2, 3, 4)

OPTIONS = {
    "char_dim": Number(16, 1, 4096, "width of a character's vector"),
    "filters": Number(64, 1, 4096, "filters of each width from 1 to 4 characters"),
    "correction": Number(128, 0, 4096, "width of a word's own vector, at most D, which loses nothing; 0 is none"),
    "words": Words("a word for each id, or a UTF-8 file with one a line; where left out, the digits of the id"),
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
    found: Shapes = {"char_embedding": (alphabet, char_dim)}  # row i - 1 of character i, since padding has none
    for width in WIDTHS:
        found |= {f"conv{width}_weight": (filters, width, char_dim), f"conv{width}_bias": (filters,)}
    found["char_projection"] = (spec.dim, len(WIDTHS) * filters)
    if correction:
        correction = min(correction, spec.dim)
        found |= {"correction_weight": (spec.vocab, correction), "correction_projection": (spec.dim, correction)}
    return found | {"bias": (spec.vocab,)}


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    """Uniform, so that a window's score has a standard deviation of 1/3 and a word vector's two parts are each about as
    long as full softmax's; the words' biases zero.

    Biases of filters start at -1/3, so that a filter is on at some words and off at others. Softmax does not feel what
    all words share: the bias of a filter that is on at all of them would have a gradient of rounding alone, which
    Adagrad divides by its own size.
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
    """Each place of each filter meets each character once: what windows add up of these is not counted."""
    tokens, found = len(targets_N), spec.parameter_shapes()
    filters = found["char_embedding"][0] * sum(math.prod(found[f"conv{width}_weight"]) for width in WIDTHS)
    inner = found["char_projection"][1] + found.get("correction_projection", (0, 0))[1]
    multiply_adds = filters + cost.through_projection(tokens, spec.dim, inner, spec.vocab)
    return cost.least(spec, tokens, multiply_adds=multiply_adds, parameters=cost.all_parameters(spec))


DEFINITION = Definition(
    name="cnn_softmax",
    paper="Jozefowicz et al., Exploring the Limits of Language Modeling, arXiv 1602.02410, 2016",
    options=OPTIONS,
    structure=structure,
    shapes=shapes,
    initial=initial,
    least_work=least_work,
    variants=({"correction": 0},),
    takes_maxima=True,
)


def before(width: int) -> int:
    """At which of the four characters c_{t-1}..c_{t+2} a window begins."""
    return 1 if width == 1 else 0


class CnnSoftmax(OracleLayer):
    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        # One more of padding, so that the widest window of the last character can be read.
        self.characters_VL = np.pad(spec.structure["characters"], ((0, 0), (0, 1)))

    def _embedding(self) -> NDArray:
        """(1 + A, E): padding, which is zero, and the characters."""
        return np.pad(self.params["char_embedding"], ((1, 0), (0, 0)))

    def _scaled(self, name: str) -> NDArray:
        """A matrix over the square root of how many terms its products have."""
        weight = self.params[name]
        return weight / np.sqrt(weight[0].size)

    def _pooled(self, width: int) -> tuple[NDArray, NDArray]:
        """(V, F) the largest score of each filter over the windows of a word, and where the first such begins."""
        chars_VLE = self._embedding()[self.characters_VL]
        weight_FkE = self._scaled(f"conv{width}_weight")
        places, begin = self.characters_VL.shape[1] - 3, before(width)
        scores_VTF = self.params[f"conv{width}_bias"] + sum(
            chars_VLE[:, begin + j : begin + j + places] @ weight_FkE[:, j].T for j in range(width)
        )
        own_VT = self.characters_VL[:, 1 : 1 + places] > END
        first_VF = np.where(own_VT[:, :, None], scores_VTF, -np.inf).argmax(axis=1)
        return np.take_along_axis(scores_VTF, first_VF[:, None], axis=1)[:, 0], begin + first_VF

    def _features(self) -> NDArray:
        """(V, X)"""
        return np.maximum(np.concatenate([self._pooled(width)[0] for width in WIDTHS], axis=1), 0)

    def _vectors(self, features_VX: NDArray) -> NDArray:
        """(V, D)"""
        vectors_VD = features_VX @ self._scaled("char_projection").T
        if "correction_weight" in self.params:
            vectors_VD = vectors_VD + self.params["correction_weight"] @ self._scaled("correction_projection").T
        return vectors_VD

    def _log_probs(self, hidden_ND: NDArray) -> NDArray:
        return log_softmax(hidden_ND.astype(np.float64) @ self._vectors(self._features()).T + self.params["bias"])

    def _loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        hidden_ND = hidden_ND.astype(np.float64)
        params = self.params
        features_VX = self._features()
        vectors_VD = self._vectors(features_VX)
        loss, dlogits_NV = mean_nll(log_softmax(hidden_ND @ vectors_VD.T + params["bias"]), targets_N)
        dvectors_VD = dlogits_NV.T @ hidden_ND
        grads = {"bias": dlogits_NV.sum(axis=0)}
        grads["char_projection"] = dvectors_VD.T @ features_VX / np.sqrt(features_VX.shape[1])
        if "correction_weight" in params:
            correction_VR = params["correction_weight"]
            grads["correction_weight"] = dvectors_VD @ self._scaled("correction_projection")
            grads["correction_projection"] = dvectors_VD.T @ correction_VR / np.sqrt(correction_VR.shape[1])
        dpooled_VX = np.where(features_VX > 0, dvectors_VD @ self._scaled("char_projection"), 0)
        grads |= self._filter_grads(np.split(dpooled_VX, len(WIDTHS), axis=1))
        return loss, dlogits_NV @ vectors_VD, grads

    def _filter_grads(self, dpooled: list[NDArray]) -> Arrays:
        """Of each width (V, F), which go to the first window with the largest score."""
        embedding_AE, grads = self._embedding(), {}
        dembedding_AE = np.zeros_like(embedding_AE)
        for width, dpooled_VF in zip(WIDTHS, dpooled, strict=True):
            weight_FkE = self._scaled(f"conv{width}_weight")
            dweight_FkE = np.zeros_like(weight_FkE)
            words_V1, filters_F = np.arange(self.spec.vocab)[:, None], np.arange(dpooled_VF.shape[1])
            first_VF = self._pooled(width)[1]
            for j in range(width):
                # How much of each filter's gradient falls on each character, at place j of the window.
                falls_AF = np.zeros((len(embedding_AE), len(filters_F)))
                np.add.at(falls_AF, (self.characters_VL[words_V1, first_VF + j], filters_F), dpooled_VF)
                dweight_FkE[:, j] = falls_AF.T @ embedding_AE / np.sqrt(weight_FkE[0].size)
                dembedding_AE += falls_AF @ weight_FkE[:, j]
            grads |= {f"conv{width}_weight": dweight_FkE, f"conv{width}_bias": dpooled_VF.sum(axis=0)}
        return grads | {"char_embedding": dembedding_AE[1:]}  # padding stays zero


LAYER = CnnSoftmax
