"""Initial values of a layer, its canonical parameters, and their conversion to another vocabulary or structure."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from vocabench.impls.errors import BadInput
from vocabench.impls.forms import Form
from vocabench.impls.on_jax import inputs
from vocabench.impls.on_jax.device import JAX_DTYPES, Device, precision, put, to_numpy
from vocabench.impls.on_jax.ops.arrays import Array, Given, Leaves, Tree
from vocabench.impls.resizing import carried_over, resized
from vocabench.impls.spec import LayerSpec, check_seed
from vocabench.impls.tying import check_shape, tied_name


class Convertible(ABC):
    """A layer whose parameters have a canonical form (`impls/spec.py`).

    Attributes:
        spec: The specification.
    """

    spec: LayerSpec

    def __init__(self, spec: LayerSpec) -> None:
        self.spec = spec

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        """Return the forms that a layer of this spec has, in order of preference for each kind of device."""
        raise NotImplementedError

    def init(self, seed: int | None = None, device: Device | None = None) -> tuple[Tree, Tree]:
        """Create the initial parameters, in the layer's own layout and dtype, and the structure.

        Args:
            seed: Seed of the initial parameters; the specification's seed if None. The structure does not depend on it.
            device: Where the arrays are placed; JAX's default device if None.

        Returns:
            The parameters and the structure.

        Raises:
            BadInput: The seed is not a whole number from 0.
        """
        spec = self.spec if seed is None else replace(self.spec, seed=check_seed(seed))
        with precision(spec.dtype), nullcontext() if device is None else jax.default_device(device):
            structure = jax.device_put(self.structure(), device)
            canonical = spec.initial_parameters()
            params = {name: put(value, JAX_DTYPES[spec.dtype], device) for name, value in canonical.items()}
            return self.from_canonical(structure, params), structure

    def structure(self) -> Tree:
        """Return the arrays that the functions read besides the parameters, and what `training_loss` records."""
        return self.placement()

    def placement(self) -> Tree:
        """Return the part of the structure that losses and decoding read."""
        return {}

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        """Convert parameters, gradients or optimizer slots from the layer's own layout to the canonical one."""
        return dict(tree)

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        """Convert parameters, gradients or optimizer slots from the canonical layout to the layer's own."""
        return dict(tree)

    @cached_property
    def _layout(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """The shapes of the parameters in the layer's own layout, and of the structure."""

        def made(canonical: Tree) -> tuple[Tree, Tree]:
            placed = self.placement()
            return self.from_canonical(placed, canonical), placed

        shapes = {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in self.spec.parameter_shapes().items()}
        params, placed = jax.eval_shape(made, shapes)
        return {name: value.shape for name, value in params.items()}, {k: value.shape for k, value in placed.items()}

    def _checked(self, params: Leaves, structure: Leaves) -> tuple[Tree, Tree]:
        """Return parameters and structure as arrays of JAX, after checking that they are of this layer."""
        own, placed = self._layout
        tree = inputs.check_tree("params", self.spec.method, params, own, exactly=True)
        return tree, inputs.check_tree("structure", self.spec.method, structure, placed, exactly=False)

    @property
    def reorganizes(self) -> bool:
        """Whether training moves words to other clusters, as SOHSM does."""
        return False

    def reorganize(
        self, params: Leaves, structure: Leaves, opt_state: Any = None, *, seed: int | None = None
    ) -> tuple[Tree, Tree, Any]:
        """Move words to new clusters. The clusters are found on the host, outside of traced functions.

        Args:
            params: Parameters.
            structure: Structure.
            opt_state: A pytree, such as the state of an optimizer of optax. Every dictionary in it with the names of
                the parameters moves along, as far as its arrays have their shapes.
            seed: Seed of the order in which words are placed, instead of the layer's.

        Returns:
            The parameters, the structure and the state of the optimizer.

        Raises:
            BadInput: The layer does not reorganize.
        """
        raise BadInput(f"reorganize of {self.spec.method}: allowed: layers of sohsm with an interval")

    def present_spec(self, structure: Leaves) -> LayerSpec:
        """Return the specification with the present structure, which training may have changed."""
        return self.spec

    def resize(
        self, params: Leaves, structure: Leaves, counts: ArrayLike, **options: object
    ) -> tuple[Self, Tree, Tree]:
        """Return a layer for another vocabulary, with what the parameters have learned, on the same device.

        A model whose embedding is tied passes `tie(params, structure, embedding_VD)`, and trains
        `word_vectors(params, structure)` of the result from then on.

        Args:
            params: Parameters.
            structure: Structure.
            counts: (V',) how often each word of the new vocabulary occurs. Word ids stay: a smaller vocabulary drops
                the last words, and a larger one appends words.
            **options: Options of the method to change.

        Returns:
            The layer, its parameters and its structure.

        Raises:
            BadInput: As `resizing.resized`.
        """
        tree, arrays = self._checked(params, structure)
        before, like = self.present_spec(arrays), next(iter(tree.values()))
        spec = resized(before, counts, **options)
        made = self.of_spec(spec)
        device = next(iter(like.devices())) if len(like.devices()) == 1 else None
        with precision(spec.dtype), nullcontext() if device is None else jax.default_device(device):
            canonical = {name: to_numpy(value) for name, value in self.to_canonical(arrays, tree).items()}
            carried = carried_over(before, spec, canonical)
            placed = jax.device_put(made.structure(), device)
            made_params = {name: put(value, like.dtype, device) for name, value in carried.items()}
            return made, made.from_canonical(placed, made_params), placed

    def tie(self, params: Leaves, structure: Leaves, embedding_VD: Given) -> Tree:
        """Return parameters with an embedding as the vectors of the words (Press and Wolf 2017).

        The result is differentiable. A model that trains the embedding calls `tie` in each step, so that the gradients
        of both uses add up, and leaves the weight that `tie` replaces out of its parameters:

            loss = layer.loss(layer.tie(params, structure, embedding_VD), structure, hidden, targets)

        Args:
            params: Parameters; those of the words' vectors may be missing.
            structure: Structure.
            embedding_VD: (V, D), words in order of their ids.

        Raises:
            BadInput: The method has no vector of width D for each word, or the embedding has another shape.
        """
        name, vectors_VD = tied_name(self.spec), jnp.asarray(embedding_VD)
        check_shape(vectors_VD.shape, self.spec)
        arrays = inputs.check_tree("structure", self.spec.method, structure, self._layout[1], exactly=False)
        others = {name: jnp.asarray(value) for name, value in params.items()}
        dtype = next((value.dtype for value in others.values()), vectors_VD.dtype)
        return {**others, **self._in_own_layout(arrays, name, vectors_VD.astype(dtype))}

    def word_vectors(self, params: Leaves, structure: Leaves) -> Array:
        """Return the (V, D) vectors that `tie` replaces, words in order of their ids.

        Raises:
            BadInput: The method has no vector of width D for each word, or the parameters do not fit.
        """
        name = tied_name(self.spec)
        tree, arrays = self._checked(params, structure)
        return self.to_canonical(arrays, tree)[name]

    def _in_own_layout(self, structure: Tree, name: str, by_word_VD: Array) -> Tree:
        """Return what one canonical parameter is in the layer's own layout."""
        return self.from_canonical(structure, {name: by_word_VD})

    def of_spec(self, spec: LayerSpec) -> Self:
        """Return a layer of the same class, in the form of `spec` if there is one for it."""
        ids = [form.id for form in type(self).forms(spec)]
        return type(self)(spec if spec.form in ids else replace(spec, form=""))


def moved(opt_state: Any, params: Tree, move: Callable[[Tree], Tree]) -> Any:
    """Return a pytree in which `move` is applied to the dictionaries that have the names and shapes of `params`."""
    shapes = {name: np.shape(value) for name, value in params.items()}

    def of_node(node: Any) -> Any:
        if not _is_slot(node, params):
            return node
        like = {name: value for name, value in node.items() if np.shape(value) == shapes[name]}
        return {**node, **move(like)}

    return jax.tree.map(of_node, opt_state, is_leaf=partial(_is_slot, params=params))


def slots_of(opt_state: Any, params: Tree) -> list[dict[str, Any]]:
    """Return the dictionaries of a pytree that have the names of `params`."""
    leaves = jax.tree.leaves(opt_state, is_leaf=partial(_is_slot, params=params))
    return [leaf for leaf in leaves if _is_slot(leaf, params)]


def _is_slot(node: object, params: Tree) -> bool:
    return isinstance(node, dict) and node.keys() == params.keys()
