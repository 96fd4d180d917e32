"""What a layer is before any framework: its method, word counts, size, options, structure and parameter shapes.

Shape letters used in every module: N tokens, V words of the vocabulary, D width of the hidden vector, C clusters,
S slots of a cluster or words that a loss draws, L longest code, B sequences of a batch, T time steps, K best words
asked for, U uniform numbers that a sampled word takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.arrays import array_of, is_floating, largest
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.forms import Form
from vocabench.impls.options import Option

Arrays = dict[str, NDArray]
Shapes = dict[str, tuple[int, ...]]

# How numbers are stored and multiplied. "tf32" stores float32, and rounds the operands of matrix products alone: to 10
# bits of mantissa, as CUDA devices from compute capability 8.0 do. In "float32" they are never rounded.
DTYPES = ("float32", "tf32", "float64", "bfloat16")


@dataclass(frozen=True)
class LeastWork:
    """What no implementation of a layer can do without in one forward and backward pass."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Extra:
    """A random input of a training loss besides hidden vectors and targets.

    Attributes:
        draw: From the spec, a generator and `before_N`, as `LayerSpec.draw_extra` takes it: word ids; or None where the
            batch goes without.
        for_each_word: Whether it is a number for each word of the vocabulary, (V,), and not a list of word ids.
    """

    draw: Callable[[LayerSpec, np.random.Generator, NDArray[np.int64] | None], NDArray | None]
    for_each_word: bool = False


@dataclass(frozen=True)
class Definition:
    """A method, independent of any framework. Each `impls/on_numpy/methods/<method>.py` holds one as `DEFINITION`.

    Attributes:
        name: The method's name in the registry.
        paper: Where the method comes from.
        options: Name to one of the kinds of `impls/options.py`.
        structure: Builds the arrays of `layer.structure()` from the counts, options and seed.
        shapes: Canonical parameter names to shapes.
        initial: Draws the initial parameters, float64, under those names.
        train_only_loss: True where the training loss is not the negative log-likelihood.
        extra: Random inputs of the training loss besides hidden vectors and targets, by name.
        draws: How many uniform numbers `Layer.sample` takes for a word.
        variants: Options that change what the layer computes, and not only its structure or start: agreement is checked
            with each of these too.
        bootstrap: Where a structure is made from word vectors (option `vectors`) and none are given: the options of the
            layer to train first, whose mean hidden vector for each word they then are. None where none is needed.
        held: From options and the structure that a layer has by now, learned or made from text: the options that make
            this very structure, where there are such; else the options as they are.
        least_work: From the spec, the targets (N,) of a batch and the inputs named in `extra`, what forward and
            backward take at least: the method's own, whatever an implementation does on top. None where nobody counted.
        takes_maxima: True where the loss takes the highest of several numbers, so that its gradient jumps where two of
            them are equal.
    """

    name: str
    paper: str
    options: Mapping[str, Option]
    structure: Callable[[NDArray[np.int64], Mapping[str, object], int], Arrays]
    shapes: Callable[[LayerSpec], Shapes]
    initial: Callable[[LayerSpec, np.random.Generator], Arrays]
    train_only_loss: bool = False
    extra: Mapping[str, Extra] = field(default_factory=dict)
    draws: Callable[[LayerSpec], int] = lambda spec: 1
    variants: Sequence[Mapping[str, object]] = ()
    bootstrap: Callable[[Mapping[str, object]], Mapping[str, object] | None] = lambda options: None
    held: Callable[[Mapping[str, object], Arrays], Mapping[str, object]] = lambda options, structure: options
    least_work: Callable[..., LeastWork] | None = None
    takes_maxima: bool = False


@dataclass(frozen=True)
class LayerSpec:
    """One layer: everything that every framework builds from. Make it with `LayerSpec.build`.

    Attributes:
        form: The id of the `Form` in which a framework computes the layer; empty for the one that the framework
            prefers. It changes time and memory, not the result.
    """

    definition: Definition
    counts: NDArray[np.int64]  # (V,)
    dim: int
    seed: int
    dtype: str
    options: Mapping[str, object]
    structure: Arrays = field(repr=False)
    form: str = ""

    @classmethod
    def build(
        cls,
        definition: Definition,
        *,
        counts: ArrayLike,
        dim: int,
        seed: int = 0,
        dtype: str = "float32",
        options: Mapping[str, object] | None = None,
    ) -> LayerSpec:
        """Check every argument and build the method's structure.

        Raises:
            BadInput: An argument is out of range, or an option is unknown to the method.
        """
        counts_V = check_counts(counts)
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
            raise BadInput(f"dim={dim!r}: allowed: a whole number from 1")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise BadInput(f"seed={seed!r}: allowed: a whole number from 0")
        if dtype not in DTYPES:
            raise unknown("dtype", str(dtype), DTYPES)
        checked = check_options(definition, options or {})
        return cls(
            definition=definition,
            counts=counts_V,
            dim=int(dim),
            seed=int(seed),
            dtype=dtype,
            options=MappingProxyType(checked),
            structure=definition.structure(counts_V, checked, int(seed)),
        )

    @property
    def method(self) -> str:
        return self.definition.name

    @property
    def storage(self) -> str:
        """What parameters, gradients and activations are kept in."""
        return storage(self.dtype)

    @property
    def vocab(self) -> int:
        return len(self.counts)

    @property
    def draws(self) -> int:
        """How many uniform numbers `Layer.sample` takes for a word: one for each choice on the way to it."""
        return self.definition.draws(self)

    def draw_extra(self, rng: np.random.Generator, before: ArrayLike | None = None) -> Arrays:
        """The loss's random inputs for one batch.

        Args:
            rng: What they are drawn from.
            before: (N,) for each target the word before it, -1 where there is none. Where left out, no sampler reads
                the words before.
        """
        before_N = None if before is None else check_ids("before", before, self.vocab, lowest=-1)
        drawn = {name: extra.draw(self, rng, before_N) for name, extra in self.definition.extra.items()}
        return {name: value for name, value in drawn.items() if value is not None}

    def form_of(self, forms: Sequence[Form]) -> Form | None:
        """Choose from the forms that a framework has for this layer, the preferred one first.

        Returns:
            The form that `form` names, or the first one; None where there are no forms.

        Raises:
            BadInput: `form` names none of them.
        """
        if not self.form:
            return next(iter(forms), None)
        by_id = {form.id: form for form in forms}
        if self.form not in by_id:
            raise unknown(f"form of {self.method}", self.form, list(by_id))
        return by_id[self.form]

    def parameter_shapes(self) -> Shapes:
        return self.definition.shapes(self)

    def initial_parameters(self) -> Arrays:
        """The same float64 parameters for every framework, drawn from the seed."""
        return self.definition.initial(self, np.random.default_rng([self.seed, 1]))

    def check_parameters(self, params: Mapping[str, ArrayLike]) -> Arrays:
        """`params` as arrays, once names, shapes and numbers are found to be what the layer can hold."""
        return check_parameters(self.method, self.parameter_shapes(), params, self.storage)


def storage(dtype: str) -> str:
    return "float32" if dtype == "tf32" else dtype


def check_parameters(owner: str, shapes: Shapes, params: Mapping[str, ArrayLike], kept_in: str) -> Arrays:
    """`params` as arrays, once they have these names and shapes and numbers that `kept_in` can hold."""
    if not isinstance(params, Mapping):
        raise BadInput(f"parameters of {owner}: {type(params).__name__}: allowed: a dictionary of {sorted(shapes)}")
    missing, extra = sorted(shapes.keys() - params.keys()), sorted(params.keys() - shapes.keys())
    if missing or extra:
        raise BadInput(
            f"parameters of {owner}: missing {missing or 'none'}, unexpected {extra or 'none'}; "
            f"allowed: exactly {sorted(shapes)}"
        )
    arrays = {name: array_of(f"parameter {name} of {owner}", params[name]) for name in shapes}
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape:
            raise BadInput(f"parameter {name} of {owner} has shape {array.shape}: allowed: {shape}")
        if array.dtype.kind not in "iu" and not is_floating(array):
            raise BadInput(f"parameter {name} of {owner} has dtype {array.dtype}: allowed: numbers")
        # Both are NaN where one number is, and no array of the parameter's size is made.
        if array.size and not -largest(kept_in) <= float(array.min()) <= float(array.max()) <= largest(kept_in):
            raise BadInput(
                f"parameter {name} of {owner} holds NaN, infinity or what {kept_in} cannot: allowed: finite numbers"
            )
    return arrays


def check_counts(counts: ArrayLike) -> NDArray[np.int64]:
    """Word counts as (V,) int64.

    Raises:
        BadInput: Not one-dimensional, fewer than two words, negative, fractional or not finite, or all zero.
    """
    array = array_of("counts", counts)
    if array.ndim != 1:
        raise BadInput(f"counts has shape {array.shape}: allowed: one dimension, a count for each word")
    if len(array) < 2:
        raise BadInput(f"counts holds {len(array)} words: allowed: a vocabulary of at least 2")
    if array.dtype.kind not in "iuf":
        raise BadInput(f"counts has dtype {array.dtype}: allowed: whole numbers")
    if not np.isfinite(array).all():
        raise BadInput(
            f"counts[{int(np.flatnonzero(~np.isfinite(array))[0])}] is not finite: allowed: whole numbers from 0"
        )
    if (array < 0).any():
        first = int(np.flatnonzero(array < 0)[0])
        raise BadInput(f"counts[{first}]={array[first]} is negative: allowed: whole numbers from 0")
    if array.dtype.kind == "f" and (array != np.floor(array)).any():
        first = int(np.flatnonzero(array != np.floor(array))[0])
        raise BadInput(f"counts[{first}]={array[first]} is not whole: allowed: whole numbers from 0")
    if not array.any():
        raise BadInput("counts are all zero: allowed: at least one word that occurs")
    if math.fsum(array) >= 2.0**62:
        raise BadInput("counts sum beyond 2**62: allowed: sums that fit 64-bit integers")
    return array.astype(np.int64)


def check_ids(name: str, ids: ArrayLike, vocab: int, *, lowest: int = 0) -> NDArray[np.int64]:
    """`ids` as int64 of one dimension, at least one, inside the vocabulary."""
    array = array_of(name, ids)
    if array.ndim != 1 or not len(array):
        raise BadInput(f"{name} has shape {array.shape}: allowed: one dimension, from one word id on")
    return check_words(name, array, vocab, lowest=lowest)


def check_words(name: str, array: NDArray, vocab: int, *, lowest: int = 0) -> NDArray[np.int64]:
    """`array` as int64, inside the vocabulary."""
    if array.dtype.kind not in "iu":
        raise BadInput(f"{name} has dtype {array.dtype}: allowed: whole numbers")
    outside = np.flatnonzero((array < lowest) | (array >= vocab))
    if len(outside):
        raise BadInput(f"{name}[{outside[0]}]={array.flat[outside[0]]}: allowed: word ids from {lowest} to {vocab - 1}")
    return array.astype(np.int64)


def check_options(definition: Definition, options: Mapping[str, object]) -> dict[str, object]:
    """Every option of the method, with its default where `options` leaves it out."""
    for name in options:
        if name not in definition.options:
            raise unknown(f"option of {definition.name}", name, definition.options)
    return {
        name: option.check(f"option {name}", options[name]) if name in options else option.default
        for name, option in definition.options.items()
    }
