"""Grow or shrink the vocabulary of a trained layer, and keep what its parameters have learned.

Word ids stay: a smaller vocabulary drops the last words, and a larger one appends words.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.options import read_words
from vocabench.impls.spec import Arrays, LayerSpec, check_counts
from vocabench.impls.structures import bands, clusters, huffman, multiway, spelling, trees


def resized(spec: LayerSpec, counts: ArrayLike, **options: object) -> LayerSpec:
    """Return the specification of the same layer for another vocabulary.

    Words keep their clusters and their places in a binary tree where these are not a function of the counts alone. New
    words go to the clusters with the fewest words, and share a leaf of the tree with a rare word.

    Args:
        spec: The layer's specification, with its present structure.
        counts: (V',) how often each word of the new vocabulary occurs.
        **options: Options to change, such as the `words` of a layer that spells them.

    Raises:
        BadInput: The counts or options are invalid, or an option that lists the vocabulary is left as it is.
    """
    counts_V = check_counts(counts)
    kept = {**spec.options, **_structure_kept(spec, counts_V), **options}
    made = LayerSpec.build(
        spec.definition, counts=counts_V, dim=spec.dim, seed=spec.seed, dtype=spec.dtype, options=kept
    )
    return replace(made, form=spec.form)


def _structure_kept(spec: LayerSpec, counts_V: NDArray[np.int64]) -> Mapping[str, object]:
    """Return the options that keep as much of the structure as the new vocabulary allows."""
    structure, vocab = spec.structure, len(counts_V)
    if "cutoffs" in structure:
        return {"cutoffs": [end for end in structure["cutoffs"][:-1].tolist() if end < vocab]}
    if "cluster" in structure and "cluster" in spec.definition.options:
        held = spec.definition.held(spec.options, structure)
        if held.get("cluster") is None:
            return held
        if "gamma" not in held:
            return {**held, "cluster": _clusters_kept(structure, vocab, vocab)}
        count = int(structure["cluster_count"])
        given = 0 if count == math.ceil(math.sqrt(vocab)) else count
        most = clusters.limits(vocab, gamma=float(held["gamma"]), budget=1.0, clusters=given).words  # type: ignore[arg-type]
        return {**held, "clusters": given, "cluster": _clusters_kept(structure, vocab, most)}
    if "children" in structure and "children" in spec.definition.options:
        if len(structure["leaf_word"]) > spec.vocab:
            raise BadInput(
                f"resize of {spec.method}: a word has several leaves: allowed: trees with a leaf for each word"
            )
        children = _tree_kept(structure["children"], spec.counts, counts_V)
        return {**_defaults(spec), "tree": "given", "children": children}
    return {}


def _defaults(spec: LayerSpec) -> Mapping[str, object]:
    return {name: option.default for name, option in spec.definition.options.items()}


def _clusters_kept(structure: Arrays, vocab: int, most: int) -> NDArray[np.int64]:
    """Return the cluster (V',) of each word, with new words in the clusters that have the fewest.

    Words move from the largest cluster to the smallest while one is empty or has more than `most` words.
    """
    cluster_V = structure["cluster"][:vocab].copy()
    words_C = np.bincount(cluster_V, minlength=int(structure["cluster_count"]))
    while words_C.min() == 0 or words_C.max() > most:
        largest, smallest = words_C.argmax(), words_C.argmin()
        cluster_V[np.flatnonzero(cluster_V == largest)[-1]] = smallest
        words_C[largest] -= 1
        words_C[smallest] += 1
    fewest = [(words, cluster) for cluster, words in enumerate(words_C.tolist())]
    heapq.heapify(fewest)
    added = []
    for _ in range(vocab - len(cluster_V)):
        words, cluster = fewest[0]
        heapq.heapreplace(fewest, (words + 1, cluster))
        added.append(cluster)
    return np.concatenate([cluster_V, np.array(added, np.int64)])


def _tree_kept(children: NDArray[np.int64], old_V: NDArray[np.int64], counts_V: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a binary tree without the words that were dropped, in which new words share a leaf with rare words."""
    leaves, vocab = len(old_V), len(counts_V)
    kept = min(leaves, vocab)
    pairs: list[tuple[int, int]] = []

    def joined(left: int, right: int) -> int:
        pairs.append((left, right))
        return vocab + len(pairs) - 1

    # What stands for a word's leaf: the word, or the root of a small tree that it shares with new words.
    leaf = list(range(kept))
    rare_first = np.argsort(counts_V[:kept], kind="stable").tolist()
    for number, word in enumerate(range(kept, vocab)):
        host = rare_first[number % kept]
        leaf[host] = joined(leaf[host], word)
    below: list[int | None] = [*leaf, *([None] * (2 * leaves - 1 - kept))]
    for nodes in reversed(huffman.levels(children)):
        for node in nodes.tolist():
            left, right = (below[child] for child in children[node].tolist())
            if left is not None and right is not None:
                below[leaves + node] = joined(left, right)
            else:
                below[leaves + node] = right if left is None else left
    return trees.renumber(np.array(pairs, np.int64), counts_V)


def carried_over(old: LayerSpec, new: LayerSpec, params: Arrays) -> Arrays:
    """Return canonical parameters of the layer `new`: what they have in common with `old`, and initial values else.

    Rows of a word are copied by word, and rows of inner nodes by the words that they separate: from a node with the
    same words on its left and right, or with opposite sign if they are swapped. Parameters that are not made of such
    rows are copied if their shape stays.

    Args:
        old, new: The specifications, with present structures, of the layers before and after.
        params: Canonical parameters of `old`, or other arrays of their names and shapes, as an optimizer has.
    """
    made = new.initial_parameters()
    if "characters" in new.structure:
        made = _of_unseen_words(old, made, params)
    for name, initial in made.items():
        if name not in params:
            continue
        value = np.asarray(params[name])
        old_keys, new_keys = (_row_keys(spec, name, (old, new)) for spec in (old, new))
        if old_keys is None or new_keys is None:
            if value.shape == initial.shape:
                made[name] = value
        elif value.shape[1:] == initial.shape[1:]:
            made[name] = _rows_by_key(value, old_keys, initial, new_keys)
    return made


def _of_unseen_words(old: LayerSpec, made: Arrays, params: Arrays) -> Arrays:
    """Return `made` with what a layer that spells words should start from for words that it has never seen.

    They have no correction, so that their vectors come from their spelling alone, and the bias of the rarest words.
    """
    made = dict(made)
    if "correction_weight" in made:
        made["correction_weight"] = np.zeros_like(made["correction_weight"])
    if "bias" in made and "bias" in params:
        rarest = np.asarray(params["bias"])[old.counts == old.counts.min()]
        made["bias"] = np.full_like(made["bias"], rarest.mean())
    return made


def _rows_by_key(
    value: NDArray, old_keys: tuple[NDArray, NDArray], initial: NDArray, new_keys: tuple[NDArray, NDArray]
) -> NDArray:
    """Return the initial rows, where those whose key or opposite key is known are replaced."""
    place = {key: row for row, key in enumerate(old_keys[0].tolist())}
    made = initial.astype(value.dtype)
    for keys, sign in zip(new_keys, (1, -1), strict=True):
        rows = np.array([place.get(key, -1) for key in keys.tolist()], np.int64)
        known = rows >= 0
        made[known] = sign * value[rows[known]]
    return made


_UNKNOWN = -(2**62)  # the key of a row without a counterpart


def _row_keys(spec: LayerSpec, name: str, both: tuple[LayerSpec, LayerSpec]) -> tuple[NDArray, NDArray] | None:
    """Return what identifies each row of a parameter, and what identifies the row with opposite sign.

    None if the rows have no such identity.
    """
    structure, shape = spec.structure, spec.parameter_shapes()[name]
    words_R: NDArray[np.int64] | None = None
    if "children" in structure:
        return _node_keys(structure, spec.vocab, min(part.vocab for part in both))
    if "node_parent" in structure and name.startswith("node_"):
        words_R = _subtree_keys(structure, spec.vocab, min(part.vocab for part in both))
    elif name == "char_embedding":
        words = read_words("words", spec.options["words"]) or tuple(map(str, range(spec.vocab)))
        words_R = np.array([-2, -1, *map(ord, spelling.alphabet(words))])  # the two marks, then code points
    elif "cutoffs" in structure:
        ends = structure["cutoffs"].tolist()
        if name == "head_weight":
            words_R = np.concatenate([structure["order"][: ends[0]], -1 - np.arange(len(ends) - 1)])
        elif tail := re.fullmatch(r"tail(\d+)_weight", name):
            start, end = ends[int(tail[1])], ends[int(tail[1]) + 1]
            words_R = structure["order"][start:end]
    elif "band" in structure and (band := re.fullmatch(r"band(\d+)_weight", name)):
        by_band_V = bands.words_by_band(structure["band"])
        words_R = by_band_V[structure["band"][by_band_V] == int(band[1])]
    elif shape[0] == spec.vocab:
        words_R = np.arange(spec.vocab)
    if words_R is None:
        return None
    return words_R, np.full(len(words_R), _UNKNOWN)


def _subtree_keys(structure: Arrays, vocab: int, kept: int) -> NDArray[np.int64]:
    """Return keys of inner nodes other than the root, which depend on the words below them, as in `_node_keys`."""
    parent, sums = structure["node_parent"], np.zeros(len(structure["node_parent"]), np.uint64)
    np.add.at(sums, structure["word_parent"], _numbers(vocab, kept)[:vocab])
    depth = multiway.node_depths(parent)
    for level in range(int(depth.max()), 0, -1):
        here = np.flatnonzero(depth == level)
        np.add.at(sums, parent[here], sums[here])
    return sums[1:].view(np.int64)


def _numbers(vocab: int, kept: int) -> NDArray[np.uint64]:
    """Return a random number for each of the first `kept` words, and 0 for all others."""
    number_V = np.random.default_rng(0).integers(0, 2**63, max(vocab, kept), dtype=np.uint64)
    number_V[kept:] = 0
    return number_V


def _node_keys(structure: Arrays, vocab: int, kept: int) -> tuple[NDArray, NDArray]:
    """Return keys of inner nodes, which depend on the words on their left and right among the first `kept` words.

    A set of words is the sum of random numbers, one for each word, so that two sets are never taken for one another.
    """
    children, leaf_word = structure["children"], trees.words_of_leaves(structure, vocab)
    number_V = _numbers(vocab, kept)
    leaves = len(leaf_word)
    sums = np.concatenate([number_V[leaf_word], np.zeros(len(children), np.uint64)])
    for nodes in reversed(huffman.levels(children)):
        sums[leaves + nodes] = sums[children[nodes]].sum(axis=1)
    left, right = sums[children].T
    separates = (left != 0) & (right != 0)
    factor = np.uint64(0x9E3779B97F4A7C15)
    keys = [
        np.where(separates, (one * factor + other).view(np.int64), _UNKNOWN)
        for one, other in ((left, right), (right, left))
    ]
    return keys[0], keys[1]
