"""Calls of the C++ kernels with arrays that do and do not belong together, executed in a child process.

`python -m tests.impls.cpp.kernel_calls MODE FRAMEWORK` prints one line for each call, the first part of it before the
call, so that a crash shows which call caused it. The modes are `refusals` (wrong calls), `edges` (unusual sizes) and
`outside` (indices of tokens out of range). `sanitized LIBRARY` executes right and wrong calls of PyTorch's interface
with a library that was compiled to report wrong accesses.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocabench.impls.cpp import Paths
from vocabench.impls.on_numpy.methods.sohsm import Projected

Arguments = dict[str, Any]
LONG_IN_TORCH = ("row", "word", "children", "targets", "start", "size", "slot")  # int32 in the other frameworks


class Sizes(NamedTuple):
    """Sizes of the arrays of a call.

    Attributes:
        tokens: Number of tokens, of which one more has a vector.
        dim: Width of vectors.
        words: Number of words of each cluster.
        nodes: Number of inner nodes of a tree that is a chain.
        k: Number of words to search for.
    """

    tokens: int = 12
    dim: int = 16
    words: tuple[int, ...] = (3, 1, 7)
    nodes: int = 5
    k: int = 3


def arguments(sizes: Sizes) -> Arguments:
    """Return NumPy arrays that belong together."""
    tokens, dim, words_C, nodes, k = sizes
    rng, clusters, slots = np.random.default_rng(1), len(words_C), max(words_C) + 1
    words = max(sum(words_C), 1)
    cluster_N = np.sort(rng.choice(np.flatnonzero(words_C), tokens)) if sum(words_C) else np.zeros(tokens, int)
    slot_CS = np.broadcast_to(np.arange(slots), (clusters, slots))
    is_word_CS = slot_CS < np.array(words_C)[:, None]
    index_NL = np.broadcast_to(np.arange(nodes)[::-1], (tokens, nodes))
    length_N = rng.integers(0, nodes + 1, tokens)
    shapes = {
        **{"hidden": (tokens, dim), "slab": (clusters, slots, dim), "bias": (clusters, slots)},
        **{"excess": (tokens, slots), "weight": (tokens,), "log_cluster": (tokens, clusters)},
        **{"cluster_projection": (dim, dim), "word_projection": (dim, dim)},
        **{"cluster_weight": (clusters, dim), "cluster_bias": (clusters,)},
        **{"nodes": (nodes, dim), "dscores": (tokens, nodes)},
        **{"weight_VD": (words, dim), "bias_V": (words,), "share": (tokens,), "dscores_NV": (tokens, words)},
    }
    integers = {
        "row": rng.permutation(tokens),
        "end": np.bincount(cluster_N, minlength=clusters).cumsum(),
        "slot": (rng.random(tokens) * np.array(words_C)[cluster_N]).astype(int),
        "word": np.where(is_word_CS, is_word_CS.cumsum().reshape(clusters, slots) - 1, -1),
        "start": np.arange(clusters) * slots,
        "size": np.array(words_C),
        "index": index_NL,
        "sign": np.where(np.arange(nodes) < length_N[:, None], rng.choice([-1, 1], (tokens, nodes)), 0),
        "place": nodes - length_N,
        "children": np.array([(node + 1, nodes + node if node else 0) for node in range(nodes)]).reshape(nodes, 2),
        "targets": rng.integers(0, words, tokens),
    }
    floats = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    scalars = {"k": k, "width": k, "most": 5, "slots": slots, "temperature": 0.5, "top_p": 0.9}
    return floats | {name: values.astype(np.int32) for name, values in integers.items()} | scalars


def calls(framework: str) -> dict[str, Callable[[Arguments], Any]]:
    """Return functions that call the kernels of a framework with arrays of NumPy."""
    kernels: Any = importlib.import_module(f"vocabench.impls.on_{framework}.ops.cpp_kernels")
    if framework == "jax":
        assert kernels.known("float32")  # registers the kernels
    return {
        name: lambda given, call=call: call({key: _in(framework, key, value) for key, value in given.items()})
        for name, call in {**_common(kernels), **_OF_FRAMEWORK[framework](kernels)}.items()
    }


def _in(framework: str, name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if framework == "torch":
        import torch

        return torch.from_numpy(value.astype(np.int64) if name in LONG_IN_TORCH else value.copy())
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.constant(value)
    import jax.numpy as jnp

    return jnp.asarray(value)


def _paths(a: Arguments) -> Paths:
    return Paths(a["index"], a["sign"], a["place"])


def _common(kernels: Any) -> dict[str, Callable[[Arguments], Any]]:
    fused = "hidden", "weight_VD", "bias_V", "targets", "share", "most"
    return {
        "path_losses": lambda a: kernels.path_losses(a["hidden"], a["nodes"], _paths(a)),
        "path_gradients": lambda a: kernels.path_gradients(a["dscores"], a["hidden"], a["nodes"], _paths(a)),
        "leaves": lambda a: kernels.likeliest_leaves(a["hidden"], a["nodes"], a["children"], a["k"]),
        "beam": lambda a: kernels.leaves_of_beam(a["hidden"], a["nodes"], a["children"], a["k"], a["width"]),
        "fused": lambda a: kernels.fused_softmax(*(a[name] for name in fused)),
        "nucleus": lambda a: kernels.nucleus(a["dscores_NV"], a["share"], a["temperature"], a["top_p"]),
    }


_UPPER = "cluster_projection", "word_projection", "cluster_weight", "cluster_bias"
_PROJECTED = Projected(0.5, 0.5, -np.inf)


def _of_torch(kernels: Any) -> dict[str, Callable[[Arguments], Any]]:
    from vocabench.impls.on_torch.two_level.words import WordRows

    def words(a: Arguments) -> tuple[Any, ...]:
        return a["slab"], a["bias"], WordRows(a["start"], a["size"], a["slots"], in_slab=True)

    def lower(a: Arguments) -> tuple[Any, ...]:
        slab, bias, rows = words(a)
        return slab, bias, a["word"], rows, a["k"]

    def tokens(a: Arguments) -> tuple[Any, ...]:
        slab, bias, rows = words(a)
        return a["hidden"], a["row"], slab, bias, a["end"], rows

    def losses(a: Arguments, differentiated: bool = True) -> Any:
        hidden, row, *rest = tokens(a)
        return kernels.losses(hidden, row, a["slot"], *rest, differentiated=differentiated)

    return {
        "scores": lambda a: kernels.scores(*tokens(a)),
        "losses": losses,
        "losses only": functools.partial(losses, differentiated=False),
        "gradients": lambda a: kernels.gradients(a["excess"], a["weight"], *tokens(a)),
        "likeliest": lambda a: kernels.likeliest(a["hidden"], a["log_cluster"], *lower(a)),
        "of hidden": lambda a: kernels.likeliest_of_hidden(
            a["hidden"], _PROJECTED, [a[name] for name in _UPPER], *lower(a)
        ),
        "product": lambda a: kernels.matrix_product(a["hidden"], a["weight_VD"]),
        "product of columns": lambda a: kernels.matrix_product(a["hidden"], a["weight_VD"].T.contiguous().T),
        "weight gradient": lambda a: kernels.weight_gradient(a["dscores_NV"], a["hidden"]),
    }


def _of_tensorflow(kernels: Any) -> dict[str, Callable[[Arguments], Any]]:
    def of_hidden(a: Arguments) -> Any:
        upper = [a[name] for name in _UPPER]
        return kernels.search_of_hidden(_PROJECTED, upper, a["slab"], a["bias"], a["word"])(a["hidden"], a["k"])

    return {
        "scores": lambda a: kernels.scores(a["hidden"], a["row"], a["slab"], a["bias"], a["word"], a["end"]),
        "losses": lambda a: kernels.losses(a["hidden"], a["row"], a["slot"], a["slab"], a["bias"], a["word"], a["end"]),
        "gradients": lambda a: kernels.gradients(
            a["excess"], a["weight"], a["hidden"], a["row"], a["slab"], a["word"], a["end"]
        ),
        "likeliest": lambda a: kernels.likeliest(
            a["hidden"], a["log_cluster"], a["slab"], a["bias"], a["word"], a["k"]
        ),
        "of hidden": of_hidden,
        "product": lambda a: kernels._operations().vocabench_matrix_product(
            a["hidden"], a["weight_VD"], threads=2, left_by_columns=0, right_by_columns=0
        ),
    }


def _of_jax(kernels: Any) -> dict[str, Callable[[Arguments], Any]]:
    import jax

    def product(a: Arguments) -> Any:
        out = jax.ShapeDtypeStruct((len(a["hidden"]), len(a["weight_VD"])), np.float32)
        sides = {"left_by_columns": np.int32(0), "right_by_columns": np.int32(0)}
        return kernels._call(kernels._PRODUCT, out)(a["hidden"], a["weight_VD"], **sides)

    given = {
        "scores": lambda a: kernels.scores(a["hidden"], a["row"], a["slab"], a["bias"], a["word"], a["end"]),
        "losses": lambda a: kernels.losses(
            a["hidden"], a["row"], a["slot"], a["slab"], a["bias"], a["word"], a["end"], differentiated=True
        ),
        "gradients": lambda a: kernels.gradients(
            a["excess"], a["weight"], a["hidden"], a["row"], a["slab"], a["bias"], a["word"], a["end"]
        ),
        "likeliest": lambda a: kernels.likeliest(
            a["hidden"], a["log_cluster"], a["slab"], a["bias"], a["word"], a["k"]
        ),
        "of hidden": lambda a: kernels.likeliest_of_hidden(
            a["hidden"], _PROJECTED, [a[name] for name in _UPPER], a["slab"], a["bias"], a["word"], a["k"]
        ),
        "product": product,
        "weight gradient": lambda a: kernels._weight_gradient(a["dscores_NV"], a["hidden"]),
    }
    return {name: lambda a, call=call: jax.block_until_ready(call(a)) for name, call in given.items()}


_OF_FRAMEWORK = {"torch": _of_torch, "tensorflow": _of_tensorflow, "jax": _of_jax}


def shorter(array: NDArray, axis: int = 0) -> NDArray:
    return np.take(array, range(array.shape[axis] - 1), axis=axis)


def longer(array: NDArray, axis: int = 0) -> NDArray:
    return np.concatenate([array, np.take(array, [0], axis=axis)], axis=axis)


def with_first(array: NDArray, value: float) -> NDArray:
    changed = array.copy()
    changed.flat[0] = value
    return changed


# The name of a call, the argument that is wrong, and how. The error must name what is allowed.
_WRONG_AXES = (
    *(("scores", "hidden", 1), ("scores", "bias", 1), ("scores", "word", 1), ("scores", "end", 0)),
    *(("losses", "hidden", 1), ("losses", "slot", 0), ("losses", "slab", 2)),
    *(("gradients", "hidden", 1), ("gradients", "excess", 1), ("gradients", "weight", 0)),
    *(("likeliest", "hidden", 1), ("likeliest", "log_cluster", 1), ("likeliest", "log_cluster", 0)),
    *(("likeliest", "word", 0), ("likeliest", "bias", 0)),
    *(("of hidden", "hidden", 1), ("of hidden", "cluster_weight", 0), ("of hidden", "cluster_weight", 1)),
    *(("of hidden", "cluster_bias", 0), ("of hidden", "word_projection", 1)),
    *(("path_losses", "hidden", 1), ("path_losses", "hidden", 0), ("path_losses", "sign", 1)),
    *(("path_losses", "place", 0), ("path_losses", "index", 0)),
    *(("path_gradients", "hidden", 1), ("path_gradients", "dscores", 1)),
    *(("leaves", "hidden", 1), ("leaves", "children", 0), ("beam", "hidden", 1), ("beam", "children", 1)),
    *(("fused", "hidden", 0), ("fused", "hidden", 1), ("fused", "bias_V", 0), ("fused", "share", 0)),
    *(("fused", "targets", 0), ("nucleus", "share", 0)),
    *(("product", "weight_VD", 1), ("weight gradient", "hidden", 0)),
)
_NOT_IN_TORCH = ("scores", "word", 1)  # PyTorch's interface takes the sizes of the clusters instead
_OUTSIDE = 10**6
_WRONG_VALUES = (
    *(("scores", "row", _OUTSIDE), ("scores", "row", -1), ("losses", "end", _OUTSIDE), ("losses", "end", -1)),
    *(("likeliest", "k", 0), ("likeliest", "k", 12)),
    *(("leaves", "children", _OUTSIDE), ("leaves", "children", -1), ("beam", "children", 10)),
    *(("leaves", "k", 0), ("leaves", "k", 7), ("beam", "width", 2), ("beam", "width", 0)),
    *(("fused", "most", 0), ("fused", "most", -3)),
    *(("nucleus", "temperature", 0.0), ("nucleus", "top_p", 0.0), ("nucleus", "top_p", 1.5)),
)


def wrong_calls(framework: str) -> Iterator[tuple[str, str, Arguments]]:
    """Yield the name, a description and the arguments of calls that must be refused."""
    right, available = arguments(Sizes()), calls(framework)
    for (name, key, axis), (word, change) in itertools.product(_WRONG_AXES, (("shorter", shorter), ("longer", longer))):
        if name in available and not (framework == "torch" and (name, key, axis) == _NOT_IN_TORCH):
            yield name, f"{word} axis {axis} of {key}", right | {key: change(right[key], axis)}
    for name, key, value in _WRONG_VALUES:
        if name in available:
            changed = with_first(right[key], value) if isinstance(right[key], np.ndarray) else value
            yield name, f"{key} {value}", right | {key: changed}
    if framework == "torch":
        for key, value in (("size", _OUTSIDE), ("size", -1), ("start", _OUTSIDE), ("start", -1)):
            yield "losses", f"{key} {value}", right | {key: with_first(right[key], value)}


def _report(kind: str, name: str, call: Callable[[Arguments], Any], given: Arguments) -> None:
    """Print what a call does: `accepted`, followed by `NaN` if a result contains it, or `refused` and the error."""
    print(kind, name, end="\t", flush=True)
    try:
        contains_nan = any(np.isnan(np.asarray(array)).any() for array in _leaves(call(given)))
        print("accepted", "NaN" if contains_nan else "", flush=True)
    except Exception as error:
        print("refused", type(error).__name__, " ".join(str(error).split()), flush=True)


def _leaves(result: Any) -> Iterator[Any]:
    """Yield the arrays of a result, which may be nested tuples."""
    if isinstance(result, tuple):
        for part in result:
            yield from _leaves(part)
    elif result is not None:
        yield result


def refusals(framework: str) -> None:
    available = calls(framework)
    for name, call in available.items():  # so that a refusal below is due to the change
        _report("right", name, call, arguments(Sizes()))
    for name, description, given in wrong_calls(framework):
        _report("wrong", f"{name}: {description}", available[name], given)


_EDGES = (
    Sizes(tokens=0),
    Sizes(tokens=5, words=(1,), nodes=0, k=1),
    Sizes(tokens=9, dim=17, words=(0, 1), nodes=1, k=1),
    Sizes(tokens=30, dim=16, words=(0, 4, 0, 2), nodes=4, k=5),
)


def edges(framework: str) -> None:
    for sizes, (name, call) in itertools.product(_EDGES, calls(framework).items()):
        if name != "fused" or sizes.dim % 16 == 0:
            _report("right", f"{name}: {sizes}", call, arguments(sizes))


def outside(framework: str) -> None:
    """Print the losses, and the largest gradient, of a token whose slot or node is out of range, and of the others."""
    available, right = calls(framework), arguments(Sizes())
    right["sign"][0, 0] = right["sign"][1, 0] = 1
    for (name, key), index in itertools.product((("losses", "slot"), ("path_losses", "index")), (-1, _OUTSIDE)):
        print(name, key, index, end="\t", flush=True)
        expected = [np.asarray(array) for array in available[name](right)]
        actual = [np.asarray(array) for array in available[name](right | {key: with_first(right[key], index)})]
        row = right["row"][0] if name == "losses" else 0
        others = [
            (np.delete(e, r, 0), np.delete(a, r, 0)) for e, a, r in zip(expected, actual, (0, 0, row), strict=True)
        ]
        print(
            "NaN" if np.isnan(actual[0][0]) else "a number",
            "without gradient" if not actual[1][0].any() and not actual[2][row].any() else "with gradient",
            "others unchanged" if all(np.array_equal(*pair) for pair in others) else "others changed",
            flush=True,
        )
    dscores = right | {"index": with_first(right["index"], _OUTSIDE)}
    _report("right", "path_gradients", available["path_gradients"], dscores)


_SIZES = (
    *(Sizes(tokens=tokens, dim=dim) for tokens in (0, 1, 11, 13, 70) for dim in (1, 16, 31, 96)),
    Sizes(tokens=200, dim=19, words=(0, 90, 0, 1, 33, 0), nodes=300, k=40),
    Sizes(tokens=70, dim=32, words=(1,), nodes=0, k=1),
    Sizes(tokens=9, dim=7, words=(0, 1), nodes=1, k=1),
    Sizes(tokens=5, dim=0),
    Sizes(tokens=33, dim=48, words=(130,), nodes=1000, k=129),
    Sizes(tokens=1100, dim=16, words=(2,) * 12, nodes=17, k=18),
)


def _with_nan(given: Arguments) -> Arguments:
    changed = dict(given)
    for name, value in given.items():
        if isinstance(value, np.ndarray) and value.dtype == np.float32 and value.size:
            changed[name] = with_first(value, np.nan)
    return changed


def _changed(given: Arguments) -> Iterator[Arguments]:
    """Yield arguments one of which has another size, or an index outside of its range."""
    for key, value in given.items():
        if isinstance(value, np.ndarray):
            axes = [axis for axis in range(value.ndim) if value.shape[axis]]
            yield from (given | {key: change(value, axis)} for axis in axes for change in (shorter, longer))
            if value.dtype == np.int32 and value.size:
                yield from (given | {key: with_first(value, index)} for index in (-1, _OUTSIDE))
        else:
            yield from (given | {key: number} for number in (-1, 0, 1, 1000))


def sanitized(library: str) -> None:
    from vocabench.impls.on_torch.ops import cpp_kernels

    loaded = ctypes.CDLL(library)
    cpp_kernels._library = lambda: loaded
    available = calls("torch")
    accepted = dict.fromkeys(available, 0)
    of_sizes = [(given, _with_nan(given)) for given in map(arguments, _SIZES)]
    every = (*itertools.chain(*of_sizes), *_changed(arguments(Sizes())))
    for name, given in itertools.product(available, every):
        try:
            available[name](given)
            accepted[name] += 1
        except (IndexError, ValueError, RuntimeError):  # PyTorch refuses some calls itself
            pass
    print(accepted)


if __name__ == "__main__":
    modes = {"refusals": refusals, "edges": edges, "outside": outside, "sanitized": sanitized}
    modes[sys.argv[1]](sys.argv[2])
