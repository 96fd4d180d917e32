"""Huffman hierarchical softmax in JAX. See `impls/on_numpy/methods/huffman.py` for the definition."""

from vocabench.impls.on_jax.trees.tree_layer import TreeSoftmax


class HuffmanSoftmax(TreeSoftmax):
    """log P(w | h) = sum over the inner nodes of w's path of log sigma(sign . r.h) (Mikolov et al. 2013; Liu et al.
    2022).

    Parameters: `node_weight` (V-1, D), the inner nodes in order of creation.
    """


LAYER = HuffmanSoftmax
