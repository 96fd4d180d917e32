"""Self-organized hierarchical softmax (Shen, Tan, Pal, Courville 2017, arXiv 1707.08588).

Each word belongs to one of C clusters. A first softmax selects the cluster, and a second one selects the word in its
cluster. With h_c = relu(W_c h) and h_w = relu(W_w h),

    log P(w | h) = log softmax(U_c h_c)[c(w)] + log softmax over the words of c(w) of (U_w h_w)[w]

Two projections are not in the paper. With `projection="residual"`, h_c = h + relu(W_c h) / 4, and h_w is computed in
the same way. With "cluster_residual", only h_c is computed like this, and h_w = h.

The clusters start at random, or grouped by the words' neighbours in the training text (option `start`, not in the
paper). Every `interval` batches they are recomputed from the layer's own predictions (equations 8, 9, algorithm 1).
That part is in `impls/structures/clusters.py` and `statistics.py`, and is the same in all frameworks.

The forward pass costs 2 D (2 D + C + words of a cluster) FLOPs per token. With C = sqrt V this is O(D sqrt V) instead
of O(D V).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.oracle import OracleLayer, best, draw, log_softmax, mean_nll
from vocabench.impls.on_numpy.pairs_option import pairs, read_pairs
from vocabench.impls.options import Choice, Number, Table, read_table
from vocabench.impls.spec import Arrays, Definition, LayerSpec, LeastWork, Shapes
from vocabench.impls.structures import bigrams, classes, clusters
from vocabench.impls.structures.statistics import SMOOTHINGS
from vocabench.impls.uniform import uniform

PROJECTIONS = ("relu", "linear", "residual", "cluster_residual", "none")
RECTIFIED = 0.25  # factor of the rectifier in a residual projection: small, since Adagrad's first steps are large
OPTIONS = {
    "projection": Choice("relu", PROJECTIONS, "map from h to h_c and h_w; relu as in the paper"),
    "bias": Choice(False, (False, True), "cluster and word biases, initialized to log frequencies"),
    "init": Choice("uniform", ("uniform", "orthogonal"), "projections uniform in +-1/sqrt(D), or orthogonal of gain 2"),
    "clusters": Number(0, 0, 2**31, "number of clusters; 0 is ceil(sqrt V)"),
    "gamma": Number(1.5, 1.0, 1e6, "a cluster holds at most floor(gamma sqrt V) words"),
    "budget": Number(0.1, 1e-9, 1.0, "a cluster that has reached this share of the tokens takes no further word"),
    "smoothing": Choice("running", SMOOTHINGS, "how equation 9 weights new samples"),
    "start": Choice("random", ("random", bigrams.NAME), "initial clusters; random as in the paper"),
    "pairs": pairs("start"),
    "cluster": Table("(V,) initial clusters that replace those of `start`, or a .npy file of them", dims=1),
    "interval": Number(1000, 0, 2**31, "batches between re-organizations; 0 keeps the first clusters"),
}


def limits(counts_V: NDArray[np.int64], options: Mapping[str, object]) -> clusters.Limits:
    return clusters.limits(
        len(counts_V),
        gamma=float(options["gamma"]),  # type: ignore[arg-type]
        budget=float(options["budget"]),  # type: ignore[arg-type]
        clusters=int(options["clusters"]),  # type: ignore[call-overload]
    )


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    bounds, rng = limits(counts_V, options), np.random.default_rng([seed, 0])
    given_V, pairs_P3 = read_table("cluster", options["cluster"]), read_pairs(options, "start", len(counts_V))
    if given_V is not None and pairs_P3 is not None:
        raise BadInput("option cluster is given with start='bigram': allowed: one of the two")
    if pairs_P3 is not None:
        cluster_V = classes.by_similarity(bigrams.vectors(pairs_P3, counts_V), counts_V, bounds, rng)
    elif given_V is None:
        cluster_V = clusters.random_clusters(counts_V, bounds, rng)
    else:
        cluster_V = clusters.check_partition(given_V, len(counts_V), bounds.clusters)
        sizes_C = np.bincount(cluster_V, minlength=bounds.clusters)
        if not 0 < sizes_C.min() <= sizes_C.max() <= bounds.words:
            raise BadInput(
                f"option cluster has clusters of {sizes_C.min()} to {sizes_C.max()} words: allowed: from 1 to "
                f"{bounds.words} (gamma={options['gamma']})"
            )
    return {"cluster": cluster_V, "cluster_count": np.array(bounds.clusters)}


# Parameters of the upper level. The projections (D, D) and the cluster bias (C,) are optional.
UPPER_LEVEL = ("cluster_projection", "word_projection", "cluster_weight", "cluster_bias")


class Projected(NamedTuple):
    """Coefficients of a projection W of h: kept h + share max(W h, least)."""

    kept: float
    share: float
    least: float


def projected(projection: str) -> Projected:
    """Return the coefficients of one of `PROJECTIONS`."""
    plain = {"relu": Projected(0.0, 1.0, 0.0), "linear": Projected(0.0, 1.0, -np.inf)}
    return plain.get(projection, Projected(1.0, RECTIFIED, 0.0))


def held(options: Mapping[str, object], structure: Arrays) -> dict[str, object]:
    return {**options, "cluster": structure["cluster"], "interval": 0, "start": "random", "pairs": None}


def _projections(spec: LayerSpec) -> tuple[str, ...]:
    """Return the parameter names of the projections in use."""
    names = {"none": (), "cluster_residual": ("cluster_projection",)}
    return names.get(str(spec.options["projection"]), ("cluster_projection", "word_projection"))


def shapes(spec: LayerSpec) -> Shapes:
    count = int(spec.structure["cluster_count"])
    parameter_shapes: Shapes = dict.fromkeys(_projections(spec), (spec.dim, spec.dim))
    parameter_shapes |= {"cluster_weight": (count, spec.dim), "word_weight": (spec.vocab, spec.dim)}
    if spec.options["bias"]:
        parameter_shapes |= {"cluster_bias": (count,), "word_bias": (spec.vocab,)}
    return parameter_shapes


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    bound = 1 / np.sqrt(spec.dim)
    params = {name: uniform(rng, bound, shape) for name, shape in spec.parameter_shapes().items()}
    if spec.options["init"] == "orthogonal":
        for name in _projections(spec):
            params[name] = 2.0 * np.linalg.qr(rng.standard_normal((spec.dim, spec.dim)))[0]
    if spec.options["bias"]:
        smooth_V = spec.counts + 1.0  # keeps the logarithm finite for words of count zero
        cluster_V = spec.structure["cluster"]
        total_C = np.bincount(cluster_V, weights=smooth_V, minlength=int(spec.structure["cluster_count"])) + 1.0
        params["cluster_bias"] = np.log(total_C / total_C.sum())
        params["word_bias"] = np.log(smooth_V / total_C[cluster_V])
    return params


def least_work(spec: LayerSpec, targets_N: NDArray[np.int64]) -> LeastWork:
    """Count all clusters, and the words of the targets' clusters."""
    tokens, width, clusters = len(targets_N), spec.dim, int(spec.structure["cluster_count"])
    tokens_G, sizes_G = cost.groups_reached(spec.structure["cluster"], targets_N)
    tokens_G, sizes_G = np.append(tokens_G, tokens), np.append(sizes_G, clusters)
    multiply_adds = int(tokens_G @ sizes_G) * width
    projections = len(_projections(spec))
    if spec.options["projection"] == "linear":
        multiply_adds = cost.through_projection(tokens_G, width, width, sizes_G)
    else:  # a projection with a rectifier cannot be merged into the weights
        multiply_adds += projections * tokens * width**2
    parameters = int(sizes_G.sum()) * (width + bool(spec.options["bias"])) + projections * width**2
    return cost.least(spec, tokens, multiply_adds=multiply_adds, parameters=parameters)


DEFINITION = Definition(
    name="sohsm",
    paper="Shen, Tan, Pal, Courville, Self-organized Hierarchical Softmax, arXiv 1707.08588, 2017",
    options=OPTIONS,
    structure=structure,
    shapes=shapes,
    held=held,
    initial=initial,
    draws=lambda spec: 2,
    least_work=least_work,
    variants=tuple({"projection": name, "bias": True} for name in PROJECTIONS if name != "relu"),
)


class SelfOrganizedHierarchicalSoftmax(OracleLayer):
    """Two-level softmax over clusters and the words of a cluster."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.cluster_V = spec.structure["cluster"]
        self.clusters = int(spec.structure["cluster_count"])

    def _project(self, hidden_ND: NDArray, name: str) -> NDArray:
        if name not in self.params:
            return hidden_ND
        projected_ND = hidden_ND @ self.params[name].T
        if self.spec.options["projection"] == "linear":
            return projected_ND
        rectified_ND = np.maximum(projected_ND, 0)
        return rectified_ND if self.spec.options["projection"] == "relu" else hidden_ND + rectified_ND * RECTIFIED

    def cluster_log_probs(self, hidden_ND: NDArray) -> NDArray:
        """Return log P(c | h) (N, C), the first factor."""
        scores_NC = self._project(hidden_ND.astype(np.float64), "cluster_projection") @ self.params["cluster_weight"].T
        return log_softmax(scores_NC + self.params.get("cluster_bias", 0.0))

    def _plain_log_probs(self, hidden_ND: NDArray) -> NDArray:
        hidden_ND = hidden_ND.astype(np.float64)
        word_hidden_ND = self._project(hidden_ND, "word_projection")
        scores_NV = word_hidden_ND @ self.params["word_weight"].T + self.params.get("word_bias", 0.0)
        log_probs_NV = self.cluster_log_probs(hidden_ND)[:, self.cluster_V]
        for cluster in range(self.clusters):
            words = np.flatnonzero(self.cluster_V == cluster)
            if len(words):
                log_probs_NV[:, words] += log_softmax(scores_NV[:, words])
        return log_probs_NV

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        # Search only the words of the most probable clusters.
        _, chosen_NW = best(self.cluster_log_probs(hidden_ND), min(width, self.clusters))
        followed_NC = np.zeros((len(hidden_ND), self.clusters), dtype=bool)
        np.put_along_axis(followed_NC, chosen_NW, True, axis=1)
        return best(np.where(followed_NC[:, self.cluster_V], self._log_probs(hidden_ND), -np.inf), k)

    def _draw(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        cluster_N = draw(np.exp(self.cluster_log_probs(hidden_ND)), uniforms_NU[:, 0])
        inside_NV = self.cluster_V == cluster_N[:, None]
        return draw(np.exp(np.where(inside_NV, self._log_probs(hidden_ND), -np.inf)), uniforms_NU[:, 1])

    def _plain_loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        hidden_ND = hidden_ND.astype(np.float64)
        loss, dprojected, grads = self._above_projections(hidden_ND, targets_N)
        dhidden_ND = np.zeros_like(hidden_ND)
        for name, dprojected_ND in dprojected.items():
            dhidden_ND += self._back(dprojected_ND, hidden_ND, name, grads)
        return loss, dhidden_ND, grads

    def _above_projections(self, hidden_ND: NDArray, targets_N: NDArray) -> tuple[float, Arrays, Arrays]:
        """Return the loss, its gradients (N, D) with respect to both projections' outputs, and those of what is above.

        The gradients of the projections themselves are zeros.
        """
        tokens = len(targets_N)
        grads = {name: np.zeros_like(value) for name, value in self.params.items()}
        cluster_N = self.cluster_V[targets_N]

        # The cluster: a softmax over C.
        loss, dscores_NC = mean_nll(self.cluster_log_probs(hidden_ND), cluster_N)
        cluster_hidden_ND = self._project(hidden_ND, "cluster_projection")
        grads["cluster_weight"] = dscores_NC.T @ cluster_hidden_ND
        if "cluster_bias" in grads:
            grads["cluster_bias"] = dscores_NC.sum(axis=0)

        # The word: a softmax over the words of its cluster.
        word_hidden_ND = self._project(hidden_ND, "word_projection")
        dword_hidden_ND = np.zeros_like(word_hidden_ND)
        for cluster in np.unique(cluster_N):
            rows = np.flatnonzero(cluster_N == cluster)
            words = np.flatnonzero(self.cluster_V == cluster)
            weight_SD = self.params["word_weight"][words]
            bias_S = self.params["word_bias"][words] if "word_bias" in grads else 0.0
            log_probs_RS = log_softmax(word_hidden_ND[rows] @ weight_SD.T + bias_S)
            one_hot_RS = words[None, :] == targets_N[rows][:, None]
            loss -= float(log_probs_RS[one_hot_RS].sum()) / tokens
            dscores_RS = (np.exp(log_probs_RS) - one_hot_RS) / tokens
            grads["word_weight"][words] = dscores_RS.T @ word_hidden_ND[rows]
            if "word_bias" in grads:
                grads["word_bias"][words] = dscores_RS.sum(axis=0)
            dword_hidden_ND[rows] = dscores_RS @ weight_SD
        dcluster_hidden_ND = dscores_NC @ self.params["cluster_weight"]
        return loss, {"cluster_projection": dcluster_hidden_ND, "word_projection": dword_hidden_ND}, grads

    def _plain_kinks(self, hidden_ND: NDArray, targets_N: NDArray, rounding: float) -> tuple[NDArray, Arrays]:
        projection, hidden_ND = self.spec.options["projection"], hidden_ND.astype(np.float64)
        if projection in ("linear", "none"):
            return super()._plain_kinks(hidden_ND, targets_N, rounding)
        scale = 1.0 if projection == "relu" else RECTIFIED
        bound_ND, bounds = np.zeros_like(hidden_ND), {}
        for name, dprojected_ND in self._above_projections(hidden_ND, targets_N)[1].items():
            if name in self.params:
                argument_ND = np.abs(hidden_ND @ self.params[name].T)
                at_kink_ND = argument_ND <= rounding * argument_ND.max(initial=0.0)
                jump_ND = np.where(at_kink_ND, scale * np.abs(dprojected_ND), 0)
                bounds[name] = jump_ND.T @ np.abs(hidden_ND)
                bound_ND += jump_ND @ np.abs(self.params[name])
        return bound_ND, bounds

    def _back(self, dout_ND: NDArray, hidden_ND: NDArray, name: str, grads: Arrays) -> NDArray:
        """Back-propagate through a projection: set `grads[name]`, and return the gradient of the hidden vectors."""
        if name not in self.params:
            return dout_ND
        projection = self.spec.options["projection"]
        adds = projection not in ("relu", "linear")  # adds its input to its output
        dprojected_ND = dout_ND
        if projection != "linear":
            dprojected_ND = dout_ND * (hidden_ND @ self.params[name].T > 0)
        if adds:
            dprojected_ND = dprojected_ND * RECTIFIED
        grads[name] = dprojected_ND.T @ hidden_ND
        dhidden_ND = dprojected_ND @ self.params[name]
        return dhidden_ND + dout_ND if adds else dhidden_ND


LAYER = SelfOrganizedHierarchicalSoftmax
