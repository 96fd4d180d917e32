"""What a layer is in any framework: its method, word counts, size, options, structure and parameter shapes.

An underscore and capital letters at the end of a name give the shape of an array: `hidden_ND` is (N, D). The letters
are the same in every module:

    N tokens                  C clusters                                    B sequences of a batch
    V words of the vocabulary S slots of a cluster, or sampled words        T time steps
    D width of hidden vectors L length of the longest code                  K requested best words
                              U uniform numbers for one sampled word
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.impls.arrays import array_of, is_floating, largest
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.forms import Form
from vocabench.impls.options import Choice, Given, Option

Arrays = dict[str, NDArray]
Shapes = dict[str, tuple[int, ...]]

# Precisions of storage and of matrix products. "tf32" stores float32 and rounds only the operands of matrix products,
# to 10 bits of mantissa, as CUDA devices from compute capability 8.0 on do. "float32" never rounds them.
DTYPES = ("float32", "tf32", "float64", "bfloat16")

# The option of methods that name their biases in `Definition.biases`.
BIAS = Choice(True, (True, False), "whether scores have biases; False leaves them out, as if they were 0")


@dataclass(frozen=True)
class LeastWork:
    """The work that every implementation of a layer must do in one forward and backward pass."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Extra:
    """A random input of a training loss besides hidden vectors and targets.

    Attributes:
        draw: Draws the input from the spec, a generator, `before_N` and `tokens` (see `LayerSpec.draw_extra`). Returns
            None if the batch does not need it.
        for_each_word: Whether the input is (V,), one number for each word, instead of word ids.
        for_each_token: Returns whether these options of the layer give each token word ids of its own, (N, S), instead
            of (S,) that all tokens of a batch share.
    """

    draw: Callable[[LayerSpec, np.random.Generator, NDArray[np.int64] | None, int | None], NDArray | None]
    for_each_word: bool = False
    for_each_token: Callable[[Mapping[str, object]], bool] = lambda options: False


@dataclass(frozen=True)
class Definition:
    """A method, independent of any framework. Each `impls/on_numpy/methods/<method>.py` holds one as `DEFINITION`.

    Attributes:
        name: Name of the method in the registry.
        paper: Reference for the method.
        options: Maps the name of each option to its kind, from `impls/options.py`.
        structure: Builds the arrays of `layer.structure()` from the counts, the options and the seed.
        shapes: Returns the canonical parameter names and their shapes, those of `biases` included.
        initial: Draws the initial float64 parameters under these names.
        train_only_loss: True if the training loss is not the negative log-likelihood.
        extra: Random inputs of the training loss besides hidden vectors and targets, by name.
        draws: Returns the number of uniform numbers that `Layer.sample` needs for one word.
        variants: Options that change the computed function and not only the structure or the initial values. Agreement
            is checked with each of them.
        bootstrap: Returns the options of a layer to train first, if the structure is built from word vectors (option
            `vectors`) that are not given: the mean hidden vector for each word then becomes its vector. Otherwise None.
        held: Returns the options that reproduce a given structure, learned or built from text, if there are such
            options. Otherwise returns the options unchanged.
        least_work: Returns the least work of forward and backward pass for the spec, the targets (N,) of a batch and
            the inputs named in `extra`. None if it is not known.
        takes_maxima: True if the loss contains a maximum, so that its gradient jumps where two arguments are equal.
        needs_counts: False if nothing depends on how often words occur, so that the size of the vocabulary is enough.
        one_softmax: True if the distribution is one softmax over the vocabulary, so that it has logits.
        biases: Names of the parameters that the option `bias=False` leaves out (`BIAS`).
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
    needs_counts: bool = True
    one_softmax: bool = False
    biases: Sequence[str] = ()


@dataclass(frozen=True, eq=False, repr=False)
class LayerSpec:
    """The specification of one layer, from which every framework builds it. Create it with `LayerSpec.build`.

    Specifications are equal if everything in them is, arrays included. They can be hashed, copied and pickled.

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
    structure: Arrays
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
        """Check every argument and build the structure of the method.

        Raises:
            BadInput: An argument is out of range, or an option is unknown to the method.
        """
        counts_V = check_counts(counts)
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
            raise BadInput(f"dim={dim!r}: allowed: a whole number from 1")
        seed = check_seed(seed)
        if dtype not in DTYPES:
            raise unknown("dtype", str(dtype), DTYPES)
        checked = check_options(definition, options or {})
        return cls(
            definition=definition,
            counts=counts_V,
            dim=int(dim),
            seed=seed,
            dtype=dtype,
            options=MappingProxyType(checked),
            structure=definition.structure(counts_V, checked, int(seed)),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerSpec) and (self is other or self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __copy__(self) -> LayerSpec:
        return self

    def __deepcopy__(self, memo: object) -> LayerSpec:
        return self  # nothing in it ever changes

    def __reduce__(self) -> tuple[Callable[..., LayerSpec], tuple[object, ...]]:
        """Pickle the method by name, because a definition holds functions, and the structure as it is."""
        arguments = self.counts, self.dim, self.seed, self.dtype, dict(self.options), self.structure, self.form
        return _unpickled, (self.method, *arguments)

    @cached_property
    def digest(self) -> bytes:
        """A digest (32 bytes) of everything that determines what a layer computes, and of the requested form."""
        sizes = f"{self.dim} {self.seed} {self.dtype} {self.form!r} {sorted(self.options)}"
        arrays = [self.counts, *(self.options[name] for name in sorted(self.options))]
        return _digest([self.method, sizes, self.structure_digest, *arrays])

    @cached_property
    def structure_digest(self) -> bytes:
        """A digest (32 bytes) of the structure: layers with the same one give parameters the same meaning."""
        names = sorted(self.structure)
        shapes = f"{self.method} {self.vocab} {names} {sorted(self.parameter_shapes().items())}"
        return _digest([shapes, *(self.structure[name] for name in names)])

    def computed_by(self, definition: Definition, dtype: str) -> LayerSpec:
        """Return the specification of a layer by another method that computes the same function.

        Options that only one of the methods has are left out, or have their defaults.
        """
        options = {name: self.options.get(name, option.default) for name, option in definition.options.items()}
        return replace(self, definition=definition, dtype=dtype, options=MappingProxyType(options))

    @property
    def method(self) -> str:
        return self.definition.name

    def __repr__(self) -> str:
        return f"LayerSpec({self.method!r}, {self.sizes()}, seed={self.seed})"

    def sizes(self) -> str:
        """Return the sizes, the dtype, and what differs from the defaults, as layers show them in `repr`."""
        shown = {"vocab": self.vocab, "dim": self.dim, "dtype": self.dtype}
        for name, option in self.definition.options.items():
            if self.options[name] != option.default:
                shown[name] = self.options[name]
        if self.form:
            shown["form"] = self.form
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    @property
    def storage(self) -> str:
        """The dtype in which parameters, gradients and activations are stored."""
        return storage(self.dtype)

    @property
    def vocab(self) -> int:
        return len(self.counts)

    @property
    def has_bias(self) -> bool:
        """Whether the layer has the biases that its definition names."""
        return bool(self.options.get("bias", True))

    @property
    def draws(self) -> int:
        """The number of uniform numbers that `Layer.sample` needs for one word: one for each choice."""
        return self.definition.draws(self)

    def draw_extra(
        self, rng: np.random.Generator, before: ArrayLike | None = None, *, tokens: int | None = None
    ) -> Arrays:
        """Draw the random inputs of the loss for one batch.

        Args:
            rng: The generator.
            before: (N,) the word before each target, or -1 if there is none. If left out, samplers that depend on the
                previous word fall back to the unigram distribution.
            tokens: The number N of targets, by default the length of `before`. Required if each token has an input of
                its own, as with `sharing="token"`.

        Raises:
            BadInput: `before` holds an id outside the vocabulary, `tokens` is missing, or the two do not match.
        """
        whole = isinstance(tokens, int | np.integer | None) and not isinstance(tokens, bool)
        if not whole or (tokens is not None and tokens < 0):
            raise BadInput(f"tokens={tokens!r}: allowed: a whole number from 0, or None")
        before_N = None if before is None else check_ids("before", before, self.vocab, lowest=-1)
        if before_N is not None:
            if tokens is not None and tokens != len(before_N):
                raise BadInput(f"before has shape {before_N.shape} with tokens={tokens}: allowed: ({tokens},)")
            tokens = len(before_N)
        drawn = {name: extra.draw(self, rng, before_N, tokens) for name, extra in self.definition.extra.items()}
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
        shapes = self.definition.shapes(self)
        if self.has_bias:
            return shapes
        return {name: shape for name, shape in shapes.items() if name not in self.definition.biases}

    def initial_parameters(self) -> Arrays:
        """Draw the initial float64 parameters from the seed. They are the same for every framework."""
        drawn = self.definition.initial(self, np.random.default_rng([self.seed, 1]))
        return {name: drawn[name] for name in self.parameter_shapes()}

    def check_parameters(self, params: Mapping[str, ArrayLike]) -> Arrays:
        """Return `params` as arrays, after checking that the layer can hold their names, shapes and values."""
        return check_parameters(self.method, self.parameter_shapes(), params, self.storage)


def check_seed(seed: object) -> int:
    """Return a seed as an int.

    Raises:
        BadInput: It is not a whole number from 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        shown = " ".join(repr(seed).split())  # a random key of JAX is shown on several lines
        raise BadInput(f"seed={shown}: allowed: a whole number from 0")
    return int(seed)


def _unpickled(
    method: str,
    counts_V: NDArray[np.int64],
    dim: int,
    seed: int,
    dtype: str,
    options: dict[str, object],
    structure: Arrays,
    form: str,
) -> LayerSpec:
    definition = importlib.import_module(f"vocabench.impls.on_numpy.methods.{method}").DEFINITION
    return LayerSpec(definition, counts_V, dim, seed, dtype, MappingProxyType(options), structure, form)


def _digest(parts: Iterable[object]) -> bytes:
    """Return the SHA-256 digest of texts, values of options and arrays, the last by content."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.array if isinstance(part, Given) else part
        if isinstance(content, np.ndarray):
            digest.update(f"{content.shape} {content.dtype.str} ".encode())
            digest.update(np.ascontiguousarray(content).data)
        else:
            text = content if isinstance(content, bytes) else repr(content).encode()
            digest.update(f"{len(text)} ".encode() + text)
    return digest.digest()


def storage(dtype: str) -> str:
    return "float32" if dtype == "tf32" else dtype


def check_parameters(owner: str, shapes: Shapes, params: Mapping[str, ArrayLike], kept_in: str) -> Arrays:
    """Return `params` as arrays, after checking their names, their shapes and that dtype `kept_in` can hold them."""
    check_names(owner, shapes, params)
    arrays = {name: array_of(f"parameter {name} of {owner}", params[name]) for name in shapes}
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape:
            raise BadInput(f"parameter {name} of {owner} has shape {array.shape}: allowed: {shape}")
        if array.dtype.kind not in "iu" and not is_floating(array):
            raise BadInput(f"parameter {name} of {owner} has dtype {array.dtype}: allowed: numbers")
        # Both are NaN if any element is, and neither allocates an array of the size of the parameter.
        if array.size and not -largest(kept_in) <= float(array.min()) <= float(array.max()) <= largest(kept_in):
            raise BadInput(
                f"parameter {name} of {owner} has NaN, infinity or values beyond {kept_in}: allowed: finite numbers"
            )
    return arrays


def check_names(owner: str, shapes: Shapes, params: Mapping[str, object]) -> None:
    """Raise `BadInput` if `params` has not exactly the names of `shapes`."""
    if not isinstance(params, Mapping):
        raise BadInput(f"parameters of {owner}: {type(params).__name__}: allowed: a dictionary of {sorted(shapes)}")
    missing, extra = sorted(shapes.keys() - params.keys()), sorted(params.keys() - shapes.keys())
    if missing or extra:
        raise BadInput(
            f"parameters of {owner}: missing {missing or 'none'}, unexpected {extra or 'none'}; "
            f"allowed: exactly {sorted(shapes)}"
        )


def check_like(spec: LayerSpec, given: Mapping[str, Sequence[int]]) -> None:
    """Raise `BadInput` if given shapes by name are not those of the layer's canonical parameters."""
    shapes = spec.parameter_shapes()
    check_names(spec.method, shapes, given)
    for name, shape in shapes.items():
        if tuple(given[name]) != shape:
            raise BadInput(f"parameter {name} of {spec.method} has shape {tuple(given[name])}: allowed: {shape}")


def check_counts(counts: ArrayLike) -> NDArray[np.int64]:
    """Return word counts as (V,) int64.

    Raises:
        BadInput: The counts are not one-dimensional, have fewer than two words, are negative, fractional or not finite,
            or are all zero.
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
    """Return `ids` as one-dimensional int64, after checking that there are some and all are in the vocabulary."""
    array = array_of(name, ids)
    if array.ndim != 1 or not len(array):
        raise BadInput(f"{name} has shape {array.shape}: allowed: one dimension, from one word id on")
    return check_words(name, array, vocab, lowest=lowest)


def check_words(name: str, array: NDArray, vocab: int, *, lowest: int = 0) -> NDArray[np.int64]:
    """Return `array` as int64, after checking that all ids are in the vocabulary."""
    if array.dtype.kind not in "iu":
        raise BadInput(f"{name} has dtype {array.dtype}: allowed: whole numbers")
    outside = np.argwhere((array < lowest) | (array >= vocab))
    if len(outside):
        place = tuple(outside[0].tolist())
        shown = ", ".join(map(str, place))
        raise BadInput(f"{name}[{shown}]={array[place]}: allowed: word ids from {lowest} to {vocab - 1}")
    return array.astype(np.int64)


def check_options(definition: Definition, options: Mapping[str, object]) -> dict[str, object]:
    """Return every option of the method, with the default of those that `options` leaves out."""
    for name in options:
        if name not in definition.options:
            raise unknown(f"option of {definition.name}", name, definition.options)
    return {
        name: option.check(f"option {name}", options[name]) if name in options else option.default
        for name, option in definition.options.items()
    }
