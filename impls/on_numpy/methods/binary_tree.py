"""Hierarchical softmax over a binary tree (Morin and Bengio 2005; Mnih and Hinton 2009).

Each leaf is reached from the root by a sequence of turns. At an inner node with vector r and bias b, the probability of
turning left is sigma(r.h + b) (Mnih and Hinton, equation 5). A word is one leaf, except in trees built by the rule
`adaptive_eps`, where it may be several leaves whose probabilities are summed:

    log P(w | h) = logsumexp over the codes of w of sum over the code's inner nodes of log sigma(sign . (r.h + b))

The option `tree` selects the tree:

    random          A balanced tree over the words in random order.
    balanced, adaptive, adaptive_eps
                    Recursive splits of the word vectors by a mixture of two Gaussians (Mnih and Hinton 2009, section
                    4): into halves, by the more probable component, or into both parts where the responsibility is
                    within `eps` of 1/2. The vectors come from a model trained on a random tree: the vector of a word
                    is the mean of the hidden vectors from which it had to be predicted.
    wordnet         WordNet's is-a hierarchy made binary (Morin and Bengio 2005). It needs the folder of a WordNet 3
                    database (`wordnet`) and the spelling of the words (`words`).
    given           Any other tree, as `children` (V-1, 2). Word w has number w and inner node j has number V + j.
                    Children come before their parents, and the root is last.

A target costs 2 D x (length of its codes) FLOPs. `impls/on_numpy/tree.py` has the formulas;
`impls/structures/trees.py` and `wordnet.py` build the trees.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.errors import BadInput
from vocabench.impls.on_numpy.tree import TreeSoftmax, least_work
from vocabench.impls.options import Choice, Folder, Number, Table, Words, path_of, read_table, read_words
from vocabench.impls.spec import BIAS, Arrays, Definition, LayerSpec, Shapes
from vocabench.impls.structures import huffman, trees, wordnet
from vocabench.impls.uniform import uniform

OPTIONS = {
    "tree": Choice("random", ("random", *trees.RULES, "wordnet", "given"), "rule that builds the tree"),
    "eps": Number(0.1, 0.0, 0.5, "adaptive_eps: words with a responsibility within eps of 1/2 go to both sides"),
    "vectors": Table("(V, E) word vectors for trees built from vectors, or a .npy file of them"),
    "wordnet": Folder("folder of a WordNet 3 database (data.noun, index.noun, ...) for tree='wordnet'"),
    "words": Words("V words for tree='wordnet', or a text file of them; a task over text supplies its own"),
    "children": Table("(V-1, 2) children of the inner nodes for tree='given', or a .npy file of them"),
    "bias": BIAS,
}


def structure(counts_V: NDArray[np.int64], options: Mapping[str, object], seed: int) -> Arrays:
    tree = _tree(options, counts_V, np.random.default_rng([seed, 0]))
    codes = huffman.from_children(tree.children)
    return {
        "code_length": codes.code_length,
        "index": codes.index,
        "sign": codes.sign,
        "children": codes.children,
        "leaf_word": tree.leaf_word,
    }


def bootstrap(options: Mapping[str, object]) -> dict[str, object] | None:
    """Return options for a random tree, whose training yields the vectors (Mnih and Hinton 2009, section 4)."""
    missing = options["tree"] in trees.RULES and options["vectors"] is None
    return {**options, "tree": "random"} if missing else None


def _tree(options: Mapping[str, object], counts_V: NDArray[np.int64], rng: np.random.Generator) -> trees.Tree:
    kind, vocab = str(options["tree"]), len(counts_V)
    vectors_VE = _only_with(options, "vectors", trees.RULES)
    children = _only_with(options, "children", ("given",))
    if children is not None:
        return trees.Tree(trees.check_children(children, vocab), np.arange(vocab))
    if kind == "wordnet":
        tree = _of_wordnet(options, counts_V, rng)
    elif vectors_VE is None:
        tree = trees.Tree(trees.random_tree(vocab, rng), np.arange(vocab))
    else:
        if len(vectors_VE) != vocab:
            raise BadInput(f"option vectors has {len(vectors_VE)} rows: allowed: {vocab}, one for each word")
        tree = trees.mixture_tree(vectors_VE.astype(np.float64), kind, float(options["eps"]), rng)  # type: ignore[arg-type]
    # Fast layers score the last nodes for all tokens at once, so the most visited nodes come last.
    codes_V = np.bincount(tree.leaf_word)
    visits_F = counts_V[tree.leaf_word] / codes_V[tree.leaf_word]
    return trees.Tree(trees.renumber(tree.children, visits_F), tree.leaf_word)


def _of_wordnet(options: Mapping[str, object], counts_V: NDArray[np.int64], rng: np.random.Generator) -> trees.Tree:
    words = read_words("words", options["words"])
    for name, value in (("wordnet", options["wordnet"]), ("words", words)):
        if not value:
            raise BadInput(f"option {name} is missing with tree='wordnet': allowed: both wordnet and words")
    assert words is not None
    if len(words) != len(counts_V):
        raise BadInput(f"option words has {len(words)} words: allowed: {len(counts_V)}, one for each count")
    graph = wordnet.read(path_of(str(options["wordnet"])))
    return wordnet.wordnet_tree(words, graph, rng, counts_V=counts_V)


def _only_with(options: Mapping[str, object], name: str, kinds: tuple[str, ...]) -> NDArray | None:
    """Return the array of option `name`, which the `kinds` of trees require and other trees do not accept."""
    array = read_table(name, options[name])
    if (options["tree"] in kinds) != (array is not None):
        has = "missing" if array is None else "given"
        raise BadInput(f"option {name} is {has} with tree={options['tree']!r}: allowed: with {', '.join(kinds)} alone")
    return array


def shapes(spec: LayerSpec) -> Shapes:
    nodes = len(spec.structure["children"])
    return {"node_weight": (nodes, spec.dim), "node_bias": (nodes,)}


def initial(spec: LayerSpec, rng: np.random.Generator) -> Arrays:
    """Draw vectors uniform in +-1/sqrt(D), and set biases to the log-odds of the counts on both sides.

    Training therefore starts from the unigram distribution.
    """
    children = spec.structure["children"]
    bound = 1 / np.sqrt(spec.dim)
    leaf_word = spec.structure["leaf_word"]
    mass = np.concatenate([((spec.counts + 1.0) / np.bincount(leaf_word))[leaf_word], np.zeros(len(children))])
    for nodes in reversed(huffman.levels(children)):
        mass[len(leaf_word) + nodes] = mass[children[nodes]].sum(axis=1)
    left, right = mass[children].T
    weight = uniform(rng, bound, (len(children), spec.dim))
    return {"node_weight": weight, "node_bias": np.log(left) - np.log(right)}


DEFINITION = Definition(
    name="binary_tree",
    paper="Mnih and Hinton, A Scalable Hierarchical Distributed Language Model, NIPS 2008; Morin and Bengio, 2005",
    options=OPTIONS,
    structure=structure,
    shapes=shapes,
    initial=initial,
    draws=lambda spec: spec.structure["index"].shape[1],
    bootstrap=bootstrap,
    least_work=least_work,
    variants=({"bias": False},),
    biases=("node_bias",),
)

LAYER = TreeSoftmax
