"""The C++ kernels (`impls/cpp`) as TensorFlow operations: two-level layers, binary trees, fused softmax, sampling."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from vocabench.impls import cpp, cpus
from vocabench.impls.cpp import CPP, Interface, Paths
from vocabench.impls.errors import BadInput, Unsupported
from vocabench.impls.models.decisions import Decisions, Squares
from vocabench.impls.on_numpy.methods.sohsm import Projected
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, in_dtype, must_be_portable, product


def interface() -> Interface:
    """Return how TensorFlow calls the kernels: by its C interface for operations, which depends on its version."""
    headers, links = ("-isystem", tf.sysconfig.get_include()), tuple(tf.sysconfig.get_link_flags())
    against = f"TensorFlow {tf.__version__} ({tf.version.GIT_VERSION})"
    return Interface("for_tensorflow", flags=headers, links=links, against=against)


def known(dtype: str) -> bool:
    """Return whether there are kernels for vectors of a spec's `dtype`: on a CPU, if there is no GPU to compute on."""
    return dtype == "float32" and not tf.config.list_logical_devices("GPU") and _operations() is not None


def fuses(dtype: str) -> bool:
    """Return whether there is a kernel of fused softmax for words of a spec's `dtype`, as `known` does for the rest."""
    return dtype in ("float32", "bfloat16") and known("float32")


def multiplies(dtype: str) -> bool:
    """Return whether the kernels multiply large matrices of `dtype` faster than TensorFlow does."""
    return cpp.multiplies_fastest() and known(dtype)


@cache
def threads() -> int:
    """Return the threads that TensorFlow uses for one operation, which do not change after its first operation.

    Asking TensorFlow takes 0.2 ms.
    """
    configured = tf.config.threading.get_intra_op_parallelism_threads() or os.environ.get("TF_NUM_INTRAOP_THREADS")
    return int(configured or cpus.usable())


def scores(
    hidden_ND: Tensor, row_P: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor, end_C: Tensor
) -> Tensor:
    """Return (P, S) scores of tokens, sorted by cluster, with the words of their clusters; -inf in empty slots.

    Args:
        hidden_ND: Vectors in float32.
        row_P: int32: the row of each token.
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: int32: the word in each slot; negative in empty slots, which come last.
        end_C: int32: one past the last token of each cluster.
    """
    inputs = slab_CSD, word_CS, hidden_ND, row_P, end_C, _or_empty(bias_CS)
    scores_PS = _operations().vocabench_cluster_scores(*inputs, threads=threads())
    return tf.ensure_shape(scores_PS, [row_P.shape[0], slab_CSD.shape[1]])


def losses(
    hidden_ND: Tensor, row_N: Tensor, slot_N: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor,
    end_C: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute -log P of the word in `slot_N` among the words of the cluster, for tokens sorted by cluster.

    Returns:
        (N,) losses, their derivatives (N, S) with respect to the scores, and (N, D) with respect to the hidden vectors,
        each of which belongs to one token.
    """
    inputs = slab_CSD, word_CS, hidden_ND, row_N, end_C, slot_N, _or_empty(bias_CS)
    outputs = _operations().vocabench_cluster_losses(*inputs, threads=threads())
    shapes = row_N.shape, [row_N.shape[0], slab_CSD.shape[1]], hidden_ND.shape
    losses_N, excess_NS, dhidden_ND = map(tf.ensure_shape, outputs, shapes)
    return losses_N, excess_NS, dhidden_ND


def gradients(
    excess_NS: Tensor, weight_N: Tensor, hidden_ND: Tensor, row_N: Tensor, slab_CSD: Tensor, word_CS: Tensor,
    end_C: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the sum of `losses`, each times its weight, with respect to words and word biases."""
    inputs = slab_CSD, word_CS, hidden_ND, row_N, end_C, excess_NS, weight_N
    outputs = _operations().vocabench_cluster_gradients(*inputs, threads=threads())
    return tf.ensure_shape(outputs.dslab, slab_CSD.shape), tf.ensure_shape(outputs.dbias, word_CS.shape)


def likeliest(
    hidden_ND: Tensor, log_cluster_NC: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return values and ids (N, K) of the k likeliest words, best first, ties by lower id.

    The third result is the (N,) share of clusters that were expanded: 0 for rows that contain NaN, whose words are
    meaningless.
    """
    inputs = slab_CSD, word_CS, _or_empty(bias_CS), hidden_ND, log_cluster_NC
    return _shaped(_operations().vocabench_likeliest_words(*inputs, threads=threads(), k=k), hidden_ND, k)


def search_of_hidden(
    projected: Projected, upper: Sequence[tf.Variable | None], slab_CSD: tf.Variable, bias_CS: tf.Variable | None,
    word_CS: tf.Variable,
) -> Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Return a function of hidden vectors and k with the results of `likeliest`, which computes both levels.

    Its constant arguments are prepared once, since TensorFlow takes a fifth of the time of one vector for it.

    Args:
        projected: Describes the projections of the hidden vectors.
        upper: The parameters named by `vocabench.impls.on_numpy.methods.sohsm.UPPER_LEVEL`.
        slab_CSD, bias_CS, word_CS: The arguments of `scores`.
    """
    operation = _operations().vocabench_likeliest_of_hidden
    words, parameters = (slab_CSD, word_CS, _or_empty(bias_CS)), tuple(map(_or_empty, upper))
    attributes = {"threads": threads(), **projected._asdict()}

    def search(hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        outputs = operation(*words, in_dtype(hidden_ND, tf.float32), *parameters, k=k, **attributes)
        return _shaped(outputs, hidden_ND, k)

    return search


def linear(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
    """Return (N, V) h W^T in the dtype of W, as `product` does, by the kernels where they are fastest."""
    weight_VD = tf.convert_to_tensor(weight_VD)
    if hidden_ND.shape[0] is None or must_be_portable() or not multiplies(weight_VD.dtype.name):
        return product(hidden_ND, weight_VD)
    return _product((tf.cast(hidden_ND, weight_VD.dtype), False), (weight_VD, False))


def _product(left: tuple[Tensor, bool], right: tuple[Tensor, bool]) -> Tensor:
    """Return the products of the rows of one matrix with the rows of the other, differentiable any number of times.

    Args:
        left, right: A matrix, and whether its columns take the part of its rows.
    """
    (left_matrix, left_by_columns), (right_matrix, right_by_columns) = left, right
    rows, depth = left_matrix.shape[::-1] if left_by_columns else left_matrix.shape
    columns = right_matrix.shape[1 if right_by_columns else 0]
    if not cpp.is_worth_splitting(rows, depth, columns):
        return tf.matmul(left_matrix, right_matrix, transpose_a=left_by_columns, transpose_b=not right_by_columns)

    @tf.custom_gradient
    def by_kernels(left_matrix: Tensor, right_matrix: Tensor) -> tuple[Tensor, object]:
        def gradient(dproduct: Tensor) -> tuple[Tensor, Tensor]:
            right_T, left_T = (right_matrix, not right_by_columns), (left_matrix, not left_by_columns)
            dleft = _product(right_T, (dproduct, False)) if left_by_columns else _product((dproduct, False), right_T)
            dright = _product(left_T, (dproduct, True)) if right_by_columns else _product((dproduct, True), left_T)
            return dleft, dright

        sides = {"left_by_columns": int(left_by_columns), "right_by_columns": int(right_by_columns)}
        products = _operations().vocabench_matrix_product(left_matrix, right_matrix, threads=threads(), **sides)
        return tf.ensure_shape(products, [rows, columns]), gradient

    return by_kernels(left_matrix, right_matrix)


def path_losses(hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the sums over paths of -log sigma(sign x r.h).

    Returns:
        (N,) sums, and their derivatives with respect to the products r.h (N, L) and the hidden vectors (N, D).
    """
    losses_N, dscores_NL, dhidden_ND = _operations().vocabench_path_losses(
        hidden_ND, *paths, node_weight, threads=threads()
    )
    dscores_NL = tf.ensure_shape(dscores_NL, paths.index_NL.shape)
    return tf.ensure_shape(losses_N, hidden_ND.shape[:1]), dscores_NL, tf.ensure_shape(dhidden_ND, hidden_ND.shape)


def path_gradients(dscores_NL: Tensor, hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> Tensor:
    """Return the gradient with respect to the nodes (nodes, D), from the derivatives with respect to the products."""
    inputs = hidden_ND, *paths, dscores_NL, tf.shape(node_weight)[0]
    return tf.ensure_shape(_operations().vocabench_path_gradients(*inputs, threads=threads()), node_weight.shape)


def likeliest_leaves(hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return values and numbers (N, K) of a tree's k likeliest leaves, best first, ties by lower number.

    The third result is the (N,) share of nodes that were scored: 0 for rows that contain NaN.
    """
    inputs = node_weight, children, in_dtype(hidden_ND, tf.float32)
    return _shaped(_operations().vocabench_likeliest_leaves(*inputs, threads=threads(), k=k), hidden_ND, k)


def leaves_of_beam(
    hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of `likeliest_leaves` for the leaves below the `width` likeliest prefixes of each level."""
    inputs = node_weight, children, in_dtype(hidden_ND, tf.float32)
    outputs = _operations().vocabench_leaves_of_beam(*inputs, threads=threads(), k=k, width=width)
    return _shaped(outputs, hidden_ND, k)


def _shaped(outputs: tuple[Tensor, ...], hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Set the static shapes of values, ids and shares in a graph."""
    if not tf.executing_eagerly():
        rows = hidden_ND.shape[0]
        for output, shape in zip(outputs, ([rows, k], [rows, k], [rows]), strict=True):
            output.set_shape(shape)
    return tuple(outputs)


def fused_softmax(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, share_N: Tensor, most: int
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return the weighted sum of the losses and its gradients, as defined in `impls/cpp/fused_softmax.h`.

    Targets are int32; `most` is the largest number of tokens of a block. The words are float32 or bfloat16. The sum is
    float32, and each gradient has the dtype of its array.
    """
    hidden, bias, share = (tf.cast(array, tf.float32) for array in (hidden_ND, bias_V, share_N))
    inputs = hidden, weight_VD, bias, targets_N, share
    tokens = most if hidden_ND.shape[0] is None else hidden_ND.shape[0]
    sizes = {"most": most, "by_unit": int(cpp.fuses_by_unit(tokens, most, weight_VD.shape[1]))}
    is_half = weight_VD.dtype == tf.bfloat16
    fused = _operations().vocabench_fused_bfloat16 if is_half else _operations().vocabench_fused_softmax
    outputs = fused(*inputs, threads=threads(), **sizes)
    gradients = zip((outputs.dvectors, outputs.dwords, outputs.dbias), (hidden_ND, weight_VD, bias_V), strict=True)
    dhidden_ND, dweight_VD, dbias_V = (
        tf.cast(tf.ensure_shape(gradient, array.shape), array.dtype) for gradient, array in gradients
    )
    return tf.ensure_shape(outputs.total, []), (dhidden_ND, dweight_VD, dbias_V)


def word_steps(
    input_ID: tf.Variable,
    output_RD: tf.Variable,
    bags_NJ: NDArray[np.int32],
    decisions: Decisions,
    rates: tuple[float, float],
    squares: Squares,
    threads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the vectors after the steps that `impls/cpp/word_steps.h` describes, and the mean loss.

    The vectors are copied once for all steps of a call. The squares are changed in place.

    Raises:
        BadInput: The arrays do not belong together, or an index is out of range.
        Unsupported: There are no kernels for the dtype here.
    """
    if not known(output_RD.dtype.name):
        raise Unsupported(f"{CPP} for {output_RD.dtype.name}: allowed: float32 {cpp.WHERE}")
    arrays = bags_NJ, decisions.list_N, decisions.row_ML, decisions.sign_ML, np.array(rates, np.float32)
    try:
        new_input_ID, new_output_RD, input_I, output_R, loss = _operations().vocabench_word_steps(
            input_ID, output_RD, squares.input_I, squares.output_R, *arrays, threads=threads
        )
    except tf.errors.InvalidArgumentError as error:
        raise BadInput(error.message) from None
    squares.input_I[:], squares.output_R[:] = input_I.numpy(), output_R.numpy()
    return new_input_ID, new_output_RD, loss


def draws_from(log_probs_NV: Tensor) -> bool:
    """Return whether the kernels can draw from these log-probabilities, where the operation need not be portable."""
    return not must_be_portable() and known(log_probs_NV.dtype.name)


def nucleus(log_probs_NV: Tensor, uniforms_N: Tensor, temperature: float, top_p: float) -> Tensor:
    """Return (N,) words drawn as described in `impls/cpp/nucleus.h`, without derivatives."""
    given = map(tf.stop_gradient, (log_probs_NV, tf.cast(uniforms_N, tf.float32)))
    drawn_N = _operations().vocabench_nucleus_words(*given, threads=threads(), temperature=temperature, top_p=top_p)
    return tf.ensure_shape(drawn_N, log_probs_NV.shape[:1])


def _or_empty(array: Tensor | None) -> Tensor:
    return _empty() if array is None else array


@cache
def _empty() -> Tensor:
    """Return the array that stands for an absent argument, created once because creating it takes an operation."""
    with tf.init_scope():  # otherwise it would belong to the graph that is traced first
        return tf.zeros([0])


_WITHOUT_DERIVATIVES = (
    "VocabenchClusterScores",
    "VocabenchClusterLosses",
    "VocabenchClusterGradients",
    "VocabenchPathLosses",
    "VocabenchPathGradients",
    "VocabenchLikeliestWords",
    "VocabenchLikeliestOfHidden",
    "VocabenchLikeliestLeaves",
    "VocabenchLeavesOfBeam",
    "VocabenchNucleusWords",
    "VocabenchWordSteps",
)


@cache
def _operations() -> Any:
    return cpp.library(interface(), _load)


def _load(path: str) -> Any:
    try:
        operations = tf.load_op_library(path)
    except tf.errors.OpError as error:
        raise OSError(error.message) from None
    refused = ctypes.CDLL(path).refused_by_tensorflow
    refused.restype = ctypes.c_char_p
    if reason := refused():
        raise OSError(reason.decode())
    for name in _WITHOUT_DERIVATIVES:
        with suppress(KeyError):  # registered when the library was loaded before
            tf.RegisterGradient(name)(_refuse)
    return operations


def _refuse(operation: Any, *upstream: Tensor) -> None:
    """Refuse to differentiate an operation: the results of a search, or the first derivatives of a loss."""
    raise BadInput(
        f"derivative of {operation.type}: allowed: first derivatives of losses and log-probabilities, or a function "
        "traced in the context vocabench.tensorflow.portable()"
    )
