"""Our C++ kernels (`impls/cpp`) as XLA operations.

They compute both levels of two-level layers, binary trees, fused softmax and matrix products, and draw from the
likeliest words.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, partial
from typing import NoReturn

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import core
from numpy.typing import NDArray

from vocabench.impls import cpp, cpus
from vocabench.impls.cpp import CPP, Interface, Paths
from vocabench.impls.errors import BadInput, Unsupported
from vocabench.impls.models.decisions import Decisions, Squares
from vocabench.impls.on_jax.ops.arrays import Array, is_known, product, varying_as
from vocabench.impls.on_numpy.methods.sohsm import Projected

_SCORES, _CLUSTER_LOSSES, _BY_WORDS = "cluster_scores_of_xla", "cluster_losses_of_xla", "cluster_gradients_of_xla"
_LIKELIEST, _OF_HIDDEN = "likeliest_words_of_xla", "likeliest_of_hidden_of_xla"
_FUSED = {"float32": "fused_softmax_of_xla", "bfloat16": "fused_bfloat16_of_xla"}
_PATH_LOSSES, _BY_NODES = "path_losses_of_xla", "path_gradients_of_xla"
_LEAVES, _BEAM = "likeliest_leaves_of_xla", "leaves_of_beam_of_xla"
_PRODUCT, _BY_WEIGHT = "matrix_product_of_xla", "weight_gradient_of_xla"
_WORD_STEPS, _NUCLEUS = "word_steps_of_xla", "nucleus_words_of_xla"
_TARGETS = (
    *(_SCORES, _CLUSTER_LOSSES, _BY_WORDS, _LIKELIEST, _OF_HIDDEN, *_FUSED.values()),
    *(_PATH_LOSSES, _BY_NODES, _LEAVES, _BEAM, _PRODUCT, _BY_WEIGHT, _WORD_STEPS, _NUCLEUS),
)
_EXAMPLES = 4096  # a multiple of the examples of word_steps
_DECODING = (_LIKELIEST, _OF_HIDDEN, _LEAVES, _BEAM, _SCORES, _NUCLEUS)


def interface() -> Interface:
    """Return how XLA calls the kernels: by its foreign function interface, whose structs depend on its version."""
    return Interface("for_jax", flags=("-isystem", jax.ffi.include_dir()), against=f"jaxlib {jaxlib.__version__}")


def known(dtype: str) -> bool:
    """Return whether there are kernels for vectors of a spec's `dtype` on JAX's default device, which must be a CPU."""
    return dtype == "float32" and jax.default_backend() == "cpu" and _registered()


def fuses(dtype: str) -> bool:
    """Return whether there is a kernel of fused softmax for words of a spec's `dtype`, as `known` does for the rest."""
    return dtype in _FUSED and known("float32")


def multiplies(dtype: str) -> bool:
    """Return whether they multiply large matrices of `dtype` faster than JAX."""
    return cpp.multiplies_fastest() and known(dtype)


def scores(
    hidden_ND: Array, row_N: Array, slab_CSD: Array, bias_CS: Array | None, word_CS: Array, end_C: Array
) -> Array:
    """Return the (N, S) scores of each token, sorted by cluster, with the words of its cluster.

    Scores are -inf in empty slots, and 0 for tokens that belong to no cluster.

    Args:
        hidden_ND: Vectors in float32.
        row_N: int32, the row of `hidden_ND` of each token.
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: int32, the word in each slot; negative in empty slots, which come last.
        end_C: int32, one past the last token of each cluster.
    """
    out = jax.ShapeDtypeStruct((row_N.shape[0], slab_CSD.shape[1]), jnp.float32)
    return _call(_SCORES, out)(slab_CSD, word_CS, hidden_ND, row_N, end_C, _or_none(bias_CS))


def losses(
    hidden_ND: Array, row_N: Array, slot_N: Array, slab_CSD: Array, bias_CS: Array | None, word_CS: Array, end_C: Array,
    *, differentiated: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return the (N,) negative log-likelihoods of tokens sorted by cluster, and their gradients.

    The likelihood is that of the word in `slot_N` among those of its cluster. The gradients are those with respect to
    the scores (N, S) and the hidden vectors (N, D), one vector for each token. They have no rows unless
    `differentiated`. All results are 0 for tokens that belong to no cluster.
    """
    tokens = row_N.shape[0] if differentiated else 0
    shapes = row_N.shape, (tokens, slab_CSD.shape[1]), (tokens, hidden_ND.shape[1])
    call = _call(_CLUSTER_LOSSES, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    return call(slab_CSD, word_CS, hidden_ND, row_N, end_C, slot_N, _or_none(bias_CS))


def gradients(
    excess_NS: Array, weight_N: Array, hidden_ND: Array, row_N: Array, slab_CSD: Array, bias_CS: Array | None,
    word_CS: Array, end_C: Array,
) -> tuple[Array, Array | None]:  # fmt: skip
    """Return the gradients of the weighted sum of `losses` with respect to words (C, S, D) and biases (C, S)."""
    shapes = slab_CSD.shape, word_CS.shape if bias_CS is not None else (0, 0)
    call = _call(_BY_WORDS, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    dslab_CSD, dbias_CS = call(slab_CSD, word_CS, hidden_ND, row_N, end_C, excess_NS, weight_N)
    return dslab_CSD, None if bias_CS is None else dbias_CS


def likeliest(
    hidden_ND: Array, log_cluster_NC: Array, slab_CSD: Array, bias_CS: Array | None, word_CS: Array, k: int
) -> tuple[Array, Array, Array]:
    """Return values and ids (N, K) of the k likeliest words, best first and ties by id, and the (N,) share of clusters
    searched: 0 for rows that contain NaN, whose words are meaningless.
    """
    call = _call(_LIKELIEST, _best_shapes(hidden_ND.shape[0], k))
    return call(slab_CSD, word_CS, _or_none(bias_CS), hidden_ND, log_cluster_NC)


def likeliest_of_hidden(
    hidden_ND: Array, projected: Projected, upper: Sequence[Array | None], slab_CSD: Array, bias_CS: Array | None,
    word_CS: Array, k: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return the same as `likeliest`, but also compute the upper level with the kernel.

    Args:
        hidden_ND: Hidden vectors in float32.
        projected: The form of the projections.
        upper: Parameters of the upper level, in the order of `sohsm.UPPER_LEVEL`; None for one that is missing.
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: The word in each slot, as in `scores`.
        k: Number of words.
    """
    call = _call(_OF_HIDDEN, _best_shapes(hidden_ND.shape[0], k))
    factors = {name: np.float32(factor) for name, factor in projected._asdict().items()}
    return call(slab_CSD, word_CS, _or_none(bias_CS), hidden_ND, *map(_or_none, upper), **factors)


def linear(hidden_ND: Array, weight_VD: Array) -> Array:
    """Return h W^T (N, V) like `product`, with the kernels where they are fastest.

    On some processors only the gradient with respect to W is computed by the kernels.
    """
    if not is_known(hidden_ND) or hidden_ND.shape[0] == 1 or not known(weight_VD.dtype.name):
        return product(hidden_ND, weight_VD)
    if cpp.multiplies_fastest():
        return _product(hidden_ND.astype(weight_VD.dtype), weight_VD)
    differentiates = cpp.differentiates_fastest(hidden_ND.shape[0], *weight_VD.shape)
    return _linear(hidden_ND, weight_VD) if differentiates else product(hidden_ND, weight_VD)


@jax.custom_vjp
def _linear(hidden_ND: Array, weight_VD: Array) -> Array:
    return product(hidden_ND, weight_VD)


def _linear_forward(hidden_ND: Array, weight_VD: Array) -> tuple[Array, tuple[Array, Array]]:
    return product(hidden_ND, weight_VD), (hidden_ND, weight_VD)


def _linear_backward(factors: tuple[Array, Array], dscores_NV: Array) -> tuple[Array, Array]:
    hidden_ND, weight_VD = factors
    dhidden_ND = (dscores_NV @ weight_VD).astype(hidden_ND.dtype)
    return dhidden_ND, _weight_gradient(dscores_NV, hidden_ND.astype(weight_VD.dtype))


_linear.defvjp(_linear_forward, _linear_backward)


@jax.custom_vjp
def _weight_gradient(dscores_NV: Array, hidden_ND: Array) -> Array:
    """Return the gradient (V, D) of h W^T with respect to W; differentiable any number of times."""
    out = jax.ShapeDtypeStruct((dscores_NV.shape[1], hidden_ND.shape[1]), jnp.float32)
    return _call(_BY_WEIGHT, out)(dscores_NV, hidden_ND)


_weight_gradient.defvjp(
    lambda dscores_NV, hidden_ND: (_weight_gradient(dscores_NV, hidden_ND), (dscores_NV, hidden_ND)),
    lambda factors, ddweight_VD: (factors[1] @ ddweight_VD.T, factors[0] @ ddweight_VD),
)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(left: Array, right: Array, left_by_columns: bool = False, right_by_columns: bool = False) -> Array:
    """Return the products of the rows, or columns, of both matrices; differentiable any number of times."""
    rows, depth = left.shape[::-1] if left_by_columns else left.shape
    columns = right.shape[1 if right_by_columns else 0]
    if not cpp.is_worth_splitting(rows, depth, columns):
        return jnp.matmul(left.T if left_by_columns else left, right if right_by_columns else right.T)
    call = _call(_PRODUCT, jax.ShapeDtypeStruct((rows, columns), jnp.float32))
    return call(left, right, left_by_columns=np.int32(left_by_columns), right_by_columns=np.int32(right_by_columns))


def _product_forward(
    left: Array, right: Array, left_by_columns: bool, right_by_columns: bool
) -> tuple[Array, tuple[Array, Array]]:
    return _product(left, right, left_by_columns, right_by_columns), (left, right)


def _product_backward(
    left_by_columns: bool, right_by_columns: bool, factors: tuple[Array, Array], dproduct: Array
) -> tuple[Array, Array]:
    left, right = factors
    flipped_right, flipped_left = (right, not right_by_columns), (left, not left_by_columns)
    by_rows, by_columns = (dproduct, False), (dproduct, True)
    dleft = _oriented(flipped_right, by_rows) if left_by_columns else _oriented(by_rows, flipped_right)
    dright = _oriented(flipped_left, by_columns) if right_by_columns else _oriented(by_columns, flipped_left)
    return dleft, dright


def _oriented(left: tuple[Array, bool], right: tuple[Array, bool]) -> Array:
    """Return `_product` of two matrices, each with whether to use its columns."""
    return _product(left[0], right[0], left[1], right[1])


_product.defvjp(_product_forward, _product_backward)


def path_losses(hidden_ND: Array, node_weight: Array, paths: Paths) -> tuple[Array, Array, Array]:
    """Return the (N,) sums over paths of -log sigma(sign x r.h), and their derivatives.

    The derivatives are those with respect to the products r.h (N, L) and the hidden vectors (N, D).
    """
    shapes = hidden_ND.shape[:1], paths.index_NL.shape, hidden_ND.shape
    out = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return _call(_PATH_LOSSES, out)(hidden_ND, *paths, node_weight)


def path_gradients(dscores_NL: Array, hidden_ND: Array, node_weight: Array, paths: Paths) -> Array:
    """Return the gradients (nodes, D) of the nodes, from the derivatives with respect to the products r.h."""
    return _call(_BY_NODES, jax.ShapeDtypeStruct(node_weight.shape, jnp.float32))(hidden_ND, *paths, dscores_NL)


def likeliest_leaves(hidden_ND: Array, node_weight: Array, children: Array, k: int) -> tuple[Array, Array, Array]:
    """Return values and numbers (N, K) of a tree's k likeliest leaves, and the (N,) share of nodes visited.

    Leaves are ordered best first, ties by number. The share is 0 for rows that contain NaN.
    """
    return _call(_LEAVES, _best_shapes(hidden_ND.shape[0], k))(node_weight, children, hidden_ND)


def leaves_of_beam(
    hidden_ND: Array, node_weight: Array, children: Array, k: int, width: int
) -> tuple[Array, Array, Array]:
    """Return the same as `likeliest_leaves`, but only for leaves below the `width` likeliest prefixes of each level."""
    return _call(_BEAM, _best_shapes(hidden_ND.shape[0], k))(node_weight, children, hidden_ND, width=np.int32(width))


def draws_from(log_probs_NV: Array) -> bool:
    """Return whether the kernels can draw from these log-probabilities. A symbolic number of rows is for an export."""
    return is_known(log_probs_NV) and known(log_probs_NV.dtype.name)


def nucleus(log_probs_NV: Array, uniforms_N: Array, temperature: float, top_p: float) -> Array:
    """Return (N,) words drawn as described in `impls/cpp/nucleus.h`, without derivatives."""
    log_probs_NV, uniforms_N = jax.lax.stop_gradient((log_probs_NV, uniforms_N.astype(jnp.float32)))
    options = {"temperature": np.float32(temperature), "top_p": np.float32(top_p)}
    return _call(_NUCLEUS, jax.ShapeDtypeStruct(uniforms_N.shape, jnp.int32))(log_probs_NV, uniforms_N, **options)


def _best_shapes(rows: int, k: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    shapes = ((rows, k), jnp.float32), ((rows, k), jnp.int32), ((rows,), jnp.float32)
    return tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes)


def fused_softmax(
    hidden_ND: Array, weight_VD: Array, bias_V: Array, targets_N: Array, share_N: Array, most: int
) -> tuple[Array, tuple[Array, Array, Array]]:
    """Return the total and the gradients that `impls/cpp/fused_softmax.h` describes; targets are int32.

    The words are float32 or bfloat16. The total is float32, and each gradient has the dtype of its array.
    """
    hidden, bias, share = (array.astype(jnp.float32) for array in (hidden_ND, bias_V, share_N))
    out = (jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (jnp.float32(0), hidden, weight_VD, bias))
    call = _call(_FUSED[weight_VD.dtype.name], tuple(out))
    by_unit = cpp.fuses_by_unit(hidden_ND.shape[0], most, weight_VD.shape[1])
    sizes = {"most": np.int32(most), "by_unit": np.int32(by_unit)}
    total, dhidden_ND, dweight_VD, dbias_V = call(hidden, weight_VD, bias, targets_N, share, **sizes)
    return total, (dhidden_ND.astype(hidden_ND.dtype), dweight_VD, dbias_V.astype(bias_V.dtype))


def word_steps(
    input_ID: Array,
    output_RD: Array,
    bags_NJ: NDArray[np.int32],
    decisions: Decisions,
    rates: tuple[float, float],
    squares: Squares,
    threads: int,
) -> tuple[Array, Array, Array]:
    """Return the vectors after the steps that `impls/cpp/word_steps.h` describes, and the mean loss.

    The memory of the given vectors is used for the new ones. The squares are changed in place.

    Raises:
        Unsupported: There are no kernels for the dtype here.
    """
    if not known(output_RD.dtype.name):
        raise Unsupported(f"{CPP} for {output_RD.dtype.name}: allowed: float32 {cpp.WHERE}")
    # XLA compiles for one number of examples, so it is rounded up, and the last rate continues their line.
    examples = len(bags_NJ)
    more = -examples % _EXAMPLES
    bags_NJ = np.pad(bags_NJ, ((0, more), (0, 0)))
    list_N = np.pad(decisions.list_N, (0, more), constant_values=-1)
    first, last = rates
    line = np.array([first, first + (last - first) * len(bags_NJ) / examples], np.float32)
    arrays = bags_NJ, list_N, decisions.row_ML, decisions.sign_ML, line
    *vectors, input_I, output_R, loss = _word_steps(
        input_ID, output_RD, squares.input_I, squares.output_R, *arrays, threads=threads
    )
    squares.input_I[:], squares.output_R[:] = input_I, output_R
    return *vectors, loss


@partial(jax.jit, donate_argnums=(0, 1), static_argnames=("threads",))
def _word_steps(*arrays: Array, threads: int) -> tuple[Array, ...]:
    """Return the first four arrays as the steps have changed them, and the mean loss."""
    out = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (*(array.shape for array in arrays[:4]), ()))
    call = jax.ffi.ffi_call(_WORD_STEPS, out, input_output_aliases={number: number for number in range(4)})
    return tuple(call(*arrays, threads=np.int32(threads)))


def _or_none(array: Array | None) -> Array:
    return jnp.zeros(0, jnp.float32) if array is None else array


def threads() -> int:
    """Return the number of threads in XLA's pools."""
    return int(os.environ.get("NPROC") or cpus.usable())


def _call(target: str, out):  # type: ignore[no-untyped-def]
    call = partial(jax.ffi.ffi_call(target, out, vmap_method="sequential"), threads=np.int32(threads()))

    def without_derivative(*arrays: Array, **attributes: np.generic):  # type: ignore[no-untyped-def]
        if not any(isinstance(array, core.Tracer) for array in arrays):
            return call(*map(_narrow, arrays), **attributes)

        def compute(*arrays: Array):  # type: ignore[no-untyped-def]
            return varying_as(arrays, call(*map(_narrow, arrays), **attributes))

        kernel = jax.custom_jvp(compute)
        kernel.defjvp(partial(_refuse_derivative, target))
        return kernel(*arrays)

    return without_derivative


def _refuse_derivative(target: str, primals: object, tangents: object) -> NoReturn:
    what = "derivatives of decoding" if target in _DECODING else "second derivatives of losses"
    raise BadInput(
        f"form 'cpp' has no {what}: allowed: a layer in another form, which its spec asks for: "
        "dataclasses.replace(layer.spec, form=...)"
    )


def _narrow(array: Array) -> Array:
    """Return an array in 32 bits, which all kernels take; others arise where `jax_enable_x64` is on."""
    narrow = jnp.int32 if jnp.issubdtype(array.dtype, jnp.integer) else jnp.float32
    return array if array.dtype.itemsize <= 4 else array.astype(narrow)


@cache
def _registered() -> bool:
    library = cpp.library(interface())
    if library is None:
        return False
    for target in _TARGETS:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    return True
