"""The output layer's part of a network's parameters: `output.<name>`, in the layer's own layout while it is trained."""

from __future__ import annotations

import jax.numpy as jnp

from vocabench.impls.on_jax import adapter
from vocabench.impls.on_jax.layer import OutputLayer, Tree, put
from vocabench.impls.spec import Arrays

_PREFIX = "output."


def output_of(tree: Tree) -> Tree:
    return {name.removeprefix(_PREFIX): value for name, value in tree.items() if name.startswith(_PREFIX)}


def with_output(tree: Tree, output: Tree) -> Tree:
    """`tree` with `output` in place of the output layer's part, whose names may be others in the layer's layout."""
    body = {name: value for name, value in tree.items() if not name.startswith(_PREFIX)}
    return {**body, **{f"{_PREFIX}{name}": value for name, value in output.items()}}


def from_canonical(layer: OutputLayer, structure: Tree, params: Arrays, dtype: jnp.dtype) -> Tree:
    tree = {name: put(value, dtype) for name, value in params.items()}
    return with_output(tree, layer.from_canonical(structure, output_of(tree)))


def to_canonical(layer: OutputLayer, structure: Tree, tree: Tree) -> Arrays:
    canonical = with_output(tree, layer.to_canonical(structure, output_of(tree)))
    return {name: adapter.to_numpy(value) for name, value in canonical.items()}
