"""The output layer's part of a network's parameters: `output.<name>`, in the layer's own layout during training."""

from __future__ import annotations

import jax.numpy as jnp

from vocabench.impls.on_jax.device import put, to_numpy
from vocabench.impls.on_jax.layer import OutputLayer
from vocabench.impls.on_jax.ops.arrays import Tree
from vocabench.impls.spec import Arrays

_PREFIX = "output."


def output_of(tree: Tree) -> Tree:
    """Return the output layer's part of a network's tree, by the layer's names."""
    return {name.removeprefix(_PREFIX): value for name, value in tree.items() if name.startswith(_PREFIX)}


def with_output(tree: Tree, output: Tree) -> Tree:
    """Return `tree` with the output layer's part replaced by `output`. The names of its entries may differ."""
    body = {name: value for name, value in tree.items() if not name.startswith(_PREFIX)}
    return {**body, **{f"{_PREFIX}{name}": value for name, value in output.items()}}


def from_canonical(layer: OutputLayer, structure: Tree, params: Arrays, dtype: jnp.dtype) -> Tree:
    """Return a network's parameters on the default device, with the output layer's part in its own layout."""
    tree = {name: put(value, dtype) for name, value in params.items()}
    return with_output(tree, layer.from_canonical(structure, output_of(tree)))


def to_canonical(layer: OutputLayer, structure: Tree, tree: Tree) -> Arrays:
    """Return a network's canonical parameters on the host."""
    canonical = with_output(tree, layer.to_canonical(structure, output_of(tree)))
    return {name: to_numpy(value) for name, value in canonical.items()}
