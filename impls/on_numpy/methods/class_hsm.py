"""Class-based hierarchical softmax (Goodman 2001, arXiv cs/0108006; Mikolov et al. 2011) with two or three levels.

Each word belongs to one class c. With three levels, each class belongs to one superclass s:

    log P(w | h) = log softmax(U h + a)[c(w)] + log softmax over the words of c(w) of (W h + b)[w]
    log P(w | h) = log P(s | h) + log P(c | s, h) + log P(w | c, h)

With two levels, the layer is SOHSM without projections. What differs is how words are assigned to classes. The option
`bins` selects one of the rules in `impls/structures/classes.py`: by descending count, with equal shares of the counts
or of their square roots; at random; by the similarity of word vectors (Le et al. 2011; Chen et al. 2016, arXiv
1512.04906); by the similarity of the words' neighbours in the training text; or as given.

With two levels, the forward pass costs 2 D (C + words of the class) FLOPs per token, which is O(D sqrt V) with
C = sqrt V classes. With three levels it is O(D V^(1/3)).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.on_numpy import cost
from vocabench.impls.on_numpy.oracle import OracleLayer, best, draw, log_softmax
from vocabench.impls.on_numpy.pairs_option import pairs, read_pairs
from vocabench.impls.options import Choice, Number, Table, read_table
from vocabench.impls.spec import BIAS, Arrays, Definition, LayerSpec, LeastWork, Shapes
from vocabench.impls.structures import bigrams, classes, clusters
from vocabench.impls.structures.shelves import Shelves
from vocabench.impls.uniform import uniform

OPTIONS = {
    "bins": Choice("sqrt_count", (*classes.BINS, "given"), "rule that assigns words to classes"),
    "levels": Choice(2, (2, 3), "2: classes and words; 3: superclasses above them, too"),
    "classes": Number(0, 0, 2**31, "number of classes of words; 0 is V^(1/2) for two levels, V^(2/3) for three"),
    "cluster": Table("(V,) the class of each word for bins='given', or a .npy file of them", dims=1),
    "vectors": Table("(V, E) word vectors for bins='similarity', or a .npy file of them"),
    "pairs": pairs("bins"),
    "bias": BIAS,
}


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    vocab = len(counts_V)
    rng = np.random.default_rng([seed, 0])
    group_counts = classes.sizes(vocab, int(options["levels"]))  # type: ignore[call-overload]
    if options["classes"]:
        group_counts[-1] = int(options["classes"])  # type: ignore[call-overload]
        if group_counts[-1] > vocab:
            raise BadInput(f"option classes={group_counts[-1]}: allowed: at most {vocab}, the vocabulary")
        group_counts[0] = min(group_counts)
    vectors_VE, given_V = _vectors(options, counts_V), _given(options, vocab)
    class_V = _group(options, counts_V, vectors_VE, group_counts[-1], rng) if given_V is None else given_V
    arrays: Arrays = {"cluster": class_V, "cluster_count": np.array(int(class_V.max()) + 1)}
    if len(group_counts) == 2:
        count = int(class_V.max()) + 1
        counts_C = np.bincount(class_V, weights=_weights(options, counts_V), minlength=count)
        vectors_CE = None if vectors_VE is None else classes.sums(vectors_VE, class_V, count)
        arrays["supercluster"] = _group(options, counts_C, vectors_CE, min(group_counts[0], count), rng, summed=True)
    return arrays


def _given(options: Mapping[str, object], vocab: int) -> NDArray[np.int64] | None:
    cluster_V = read_table("cluster", options["cluster"])
    if (options["bins"] == "given") != (cluster_V is not None):
        has = "missing" if cluster_V is None else "given"
        raise BadInput(f"option cluster is {has} with bins={options['bins']!r}: allowed: cluster with 'given' alone")
    return None if cluster_V is None else clusters.check_partition(cluster_V, vocab)


def _vectors(options: Mapping[str, object], counts_V: NDArray[np.int64]) -> NDArray | None:
    vocab = len(counts_V)
    vectors_VE, pairs_P3 = read_table("vectors", options["vectors"]), read_pairs(options, "bins", vocab)
    if (options["bins"] == "similarity") != (vectors_VE is not None):
        has = "missing" if vectors_VE is None else "given"
        raise BadInput(
            f"option vectors is {has} with bins={options['bins']!r}: allowed: vectors with 'similarity' alone"
        )
    if vectors_VE is not None and len(vectors_VE) != vocab:
        raise BadInput(f"option vectors has {len(vectors_VE)} rows: allowed: {vocab}, one for each word")
    return vectors_VE if pairs_P3 is None else bigrams.vectors(pairs_P3, counts_V)


def _weights(options: Mapping[str, object], counts_V: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.sqrt(counts_V) if options["bins"] == "sqrt_count" else counts_V.astype(np.float64)


def _group(
    options: Mapping[str, object],
    counts_M: NDArray,
    vectors_ME: NDArray | None,
    count: int,
    rng: np.random.Generator,
    *,
    summed: bool = False,
) -> NDArray[np.int64]:
    """Return the group (M,) of each word or class. With `summed`, the counts are sums of the words' weights."""
    if vectors_ME is not None:
        return classes.by_similarity(
            vectors_ME, np.ceil(counts_M).astype(np.int64), classes.limits(len(counts_M), count), rng
        )
    if options["bins"] == "random":
        return classes.at_random(len(counts_M), count, rng)
    return classes.by_share(counts_M if summed else _weights(options, counts_M), count)


def bootstrap(options: Mapping[str, object]) -> dict[str, object] | None:
    """Return options for random classes, whose training yields the vectors that `similarity` needs.

    Le et al. 2011 also take the vectors from a previously trained model.
    """
    missing = options["bins"] == "similarity" and options["vectors"] is None
    return {**options, "bins": "random"} if missing else None


def held(options: Mapping[str, object], structure: Arrays) -> Mapping[str, object]:
    """Return options that fix the classes. Superclasses stay as they are, since no option sets them."""
    if "supercluster" in structure:
        return options
    return {**options, "bins": "given", "cluster": structure["cluster"], "vectors": None, "pairs": None}


def names(spec: LayerSpec) -> list[tuple[str, NDArray[np.int64] | None]]:
    """Return for each level, from the top, its name in the parameters and the group of each member.

    The group is None where one softmax covers all members.
    """
    class_V, superclass_C = spec.structure["cluster"], spec.structure.get("supercluster")
    levels: list[tuple[str, NDArray[np.int64] | None]] = [] if superclass_C is None else [("superclass", None)]
    return [*levels, ("class", superclass_C), ("word", class_V)]


def shelves(spec: LayerSpec) -> list[Shelves]:
    """Return the memory layout of each level below the highest, for the frameworks' layers."""
    layouts, mass_M = [], spec.counts
    for _, group_M in reversed(names(spec)[1:]):
        assert group_M is not None
        layouts.append(Shelves.of(group_M, mass_M))
        mass_M = np.bincount(group_M, weights=mass_M).astype(np.int64)
    return layouts[::-1]


def shapes(spec: LayerSpec) -> Shapes:
    counts = {"class": int(spec.structure["cluster_count"]), "word": spec.vocab}
    if "supercluster" in spec.structure:
        counts["superclass"] = int(spec.structure["supercluster"].max()) + 1
    parameter_shapes: Shapes = {}
    for name, _ in names(spec):
        parameter_shapes |= {f"{name}_weight": (counts[name], spec.dim), f"{name}_bias": (counts[name],)}
    return parameter_shapes


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    """Draw weights uniform in +-1/sqrt(D), and set biases to the log frequencies within each group.

    Training therefore starts from the unigram distribution.
    """
    bound = 1 / np.sqrt(spec.dim)
    parameter_shapes = spec.parameter_shapes()
    params = {name: uniform(rng, bound, shape) for name, shape in parameter_shapes.items() if name.endswith("_weight")}
    mass_M = spec.counts + 1.0  # a word of count zero has a finite logarithm
    for name, group_M in reversed(names(spec)):
        if group_M is None:
            params[f"{name}_bias"] = np.log(mass_M / mass_M.sum())
            continue
        total_C = np.bincount(group_M, weights=mass_M)
        params[f"{name}_bias"] = np.log(mass_M / total_C[group_M])
        mass_M = total_C
    return {name: params[name] for name in parameter_shapes}


def least_work(spec: LayerSpec, targets_N: NDArray[np.int64]) -> LeastWork:
    """Count, on each level, the members of the groups that contain the targets."""
    parameter_shapes, scored, members, member_N = spec.parameter_shapes(), 0, 0, targets_N
    for name, group_M in reversed(names(spec)):
        group_M = np.zeros(parameter_shapes[f"{name}_weight"][0], dtype=np.int64) if group_M is None else group_M
        tokens_G, sizes_G = cost.groups_reached(group_M, member_N)
        scored, members = scored + int(tokens_G @ sizes_G), members + int(sizes_G.sum())
        member_N = group_M[member_N]
    values = members * (spec.dim + spec.has_bias)
    return cost.least(spec, len(targets_N), multiply_adds=scored * spec.dim, parameters=values)


DEFINITION = Definition(
    name="class_hsm",
    paper="Goodman, Classes for Fast Maximum Entropy Training, arXiv cs/0108006, 2001; Mikolov et al., ICASSP 2011",
    options=OPTIONS,
    structure=structure,
    shapes=shapes,
    initial=initial,
    draws=lambda spec: len(names(spec)),
    bootstrap=bootstrap,
    held=held,
    least_work=least_work,
    variants=({"bins": "random", "levels": 3}, {"bias": False}),
    biases=("superclass_bias", "class_bias", "word_bias"),
)


class ClassHierarchicalSoftmax(OracleLayer):
    """Class-based hierarchical softmax with two or three levels."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.levels = names(spec)
        # For each level from the top, the member that contains each word; on the last level, the word itself.
        way = [np.arange(spec.vocab)]
        for _, group_M in reversed(self.levels[1:]):
            assert group_M is not None
            way.append(group_M[way[-1]])
        self.member_V = way[::-1]

    def _within(self, hidden_ND: NDArray, level: int) -> NDArray:
        """Return log P (N, M) of each member of a level given its group."""
        name, group_M = self.levels[level]
        scores_NM = hidden_ND.astype(np.float64) @ self.params[f"{name}_weight"].T + self._bias(f"{name}_bias")
        return log_softmax(scores_NM) if group_M is None else log_softmax_by_group(scores_NM, group_M)

    def _joint(self, hidden_ND: NDArray) -> list[NDArray]:
        """Return for each level log P (N, M) of each member, including its path from the top."""
        joint = [self._within(hidden_ND, 0)]
        for level in range(1, len(self.levels)):
            joint.append(joint[-1][:, self.levels[level][1]] + self._within(hidden_ND, level))
        return joint

    def _plain_log_probs(self, hidden_ND: NDArray) -> NDArray:
        return self._joint(hidden_ND)[-1]

    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        # On each level, keep the most probable members of the groups kept so far.
        joint = self._joint(hidden_ND)
        for level in range(len(joint) - 1):
            kept_NM = np.full_like(joint[level], -np.inf)
            values_NW, chosen_NW = best(joint[level], min(width, kept_NM.shape[1]))
            np.put_along_axis(kept_NM, chosen_NW, values_NW, axis=1)
            lost_NM = np.isneginf(kept_NM)[:, self.levels[level + 1][1]]
            joint[level + 1] = np.where(lost_NM, -np.inf, joint[level + 1])
        return best(joint[-1], k)

    def _draw(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        chosen_N = draw(np.exp(self._within(hidden_ND, 0)), uniforms_NU[:, 0])
        for level in range(1, len(self.levels)):
            inside_NM = self.levels[level][1] == chosen_N[:, None]
            chosen_N = draw(np.where(inside_NM, np.exp(self._within(hidden_ND, level)), 0.0), uniforms_NU[:, level])
        return chosen_N

    def _plain_loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        hidden_ND = hidden_ND.astype(np.float64)
        rows, loss, dhidden_ND, grads = np.arange(len(targets_N)), 0.0, np.zeros_like(hidden_ND), {}
        for level, (name, group_M) in enumerate(self.levels):
            # One softmax per level, over the group of the member that contains the target.
            member_N = self.member_V[level][targets_N]
            log_within_NM = self._within(hidden_ND, level)
            loss -= log_within_NM[rows, member_N].mean()
            dscores_NM = np.exp(log_within_NM)
            if group_M is not None:
                dscores_NM *= group_M == group_M[member_N][:, None]
            dscores_NM[rows, member_N] -= 1
            dscores_NM /= len(targets_N)
            grads[f"{name}_weight"] = dscores_NM.T @ hidden_ND
            if f"{name}_bias" in self.params:
                grads[f"{name}_bias"] = dscores_NM.sum(axis=0)
            dhidden_ND += dscores_NM @ self.params[f"{name}_weight"]
        return float(loss), dhidden_ND, grads


def log_softmax_by_group(scores_NM: NDArray, group_M: NDArray[np.int64]) -> NDArray:
    """Compute the log softmax along the last axis, within each group."""
    order = np.argsort(group_M, kind="stable")
    starts_C = np.searchsorted(group_M[order], np.arange(group_M.max() + 1))
    shifted_NM = scores_NM - np.maximum.reduceat(scores_NM[:, order], starts_C, axis=1)[:, group_M]
    sum_NC = np.add.reduceat(np.exp(shifted_NM)[:, order], starts_C, axis=1)
    return shifted_NM - np.log(sum_NC)[:, group_M]


LAYER = ClassHierarchicalSoftmax
