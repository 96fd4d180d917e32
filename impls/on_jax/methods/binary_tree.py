"""Hierarchical softmax over a binary tree in JAX. See `impls/on_numpy/methods/binary_tree.py` for the definition."""

from vocabench.impls.on_jax.trees.tree_layer import TreeSoftmax


class BinaryTreeSoftmax(TreeSoftmax):
    """log P(w | h) = logsumexp over w's codes of the sum over the code's inner nodes of log sigma(sign . (r.h + b))
    (Morin and Bengio 2005; Mnih and Hinton 2009).

    Parameters: `node_weight` (nodes, D + 1), with the biases in the last column.
    """


LAYER = BinaryTreeSoftmax
