"""Binary trees over words for tests of their layers."""

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.structures import huffman, trees


def random_tree(vocab: int) -> NDArray[np.int64]:
    return trees.random_tree(vocab, np.random.default_rng(vocab))


def chain(vocab: int) -> NDArray[np.int64]:
    """Paths of all lengths up to the number of words."""
    first = np.arange(vocab - 1) + vocab - 1
    first[0] = 0
    return np.stack([np.arange(1, vocab), first], axis=1)


ALL_LEAVES_OF = [
    huffman.build(zipf_counts(300)).children,
    huffman.build(zipf_counts(2)).children,
    huffman.build(np.ones(2**9, np.int64)).children,  # leaves side by side have half of their turns in common
    chain(45),
]


def log_leaves(tree: huffman.HuffmanTree, scores_MN: NDArray) -> NDArray[np.float64]:
    """(N, F) log-probabilities of the leaves from scores of the inner nodes."""
    turns_FLN = tree.sign[:, :, None] * scores_MN[tree.index].astype(np.float64)
    return (-np.logaddexp(0, -turns_FLN) * (tree.sign != 0)[:, :, None]).sum(axis=1).T
