"""Huffman hierarchical softmax in TensorFlow. See `impls/on_numpy/methods/huffman.py` for the definition."""

from vocabench.impls.on_tensorflow.trees.tree_layer import TreeSoftmax


class HuffmanSoftmax(TreeSoftmax):
    """log P(w | h) = sum over the inner nodes of w's path of log sigma(sign . r.h) (Mikolov et al. 2013; Liu et al.
    2022).

    Weights: `node_weight` (V-1, D), inner nodes in order of creation.
    """


LAYER = HuffmanSoftmax
