"""Our kernels in C++ (`impls/cpp`), as operations of TensorFlow's: both levels of two-level layers, binary trees, and
fused softmax."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from vocabench.impls import cpp, cpus
from vocabench.impls.cpp import Paths
from vocabench.impls.on_numpy.methods.sohsm import Projected
from vocabench.impls.on_tensorflow.layer import Tensor, in_dtype, product


def known(dtype: str) -> bool:
    """Whether there are kernels for vectors of a spec's `dtype` where TensorFlow places them by itself: on a CPU."""
    return dtype == "float32" and not tf.config.list_logical_devices("GPU") and _operations() is not None


def multiplies(dtype: str) -> bool:
    """Whether they multiply large matrices of `dtype` there faster than TensorFlow does."""
    return cpp.multiplies_fastest() and known(dtype)


@cache
def threads() -> int:
    """As many as TensorFlow has for one operation, which stay as many once it has begun. To ask takes 0.2 ms."""
    chosen = tf.config.threading.get_intra_op_parallelism_threads() or os.environ.get("TF_NUM_INTRAOP_THREADS")
    return int(chosen or cpus.usable())


def scores(
    hidden_ND: Tensor, row_P: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor, end_C: Tensor
) -> Tensor:
    """(P, S) of each token, sorted by cluster, with the words of its cluster; -inf in empty slots.

    Args:
        hidden_ND: Vectors in float32.
        row_P: int32: that of each token.
        slab_CSD: Word vectors by cluster and slot.
        bias_CS: Word biases, or None.
        word_CS: int32: the word in each slot; negative in empty slots, which come last.
        end_C: int32: one past the last token of each cluster.
    """
    given = slab_CSD, word_CS, hidden_ND, row_P, end_C, _or_none(bias_CS)
    scores_PS = _operations().vocabench_cluster_scores(*given, threads=threads())
    return tf.ensure_shape(scores_PS, [row_P.shape[0], slab_CSD.shape[1]])


def losses(
    hidden_ND: Tensor, row_N: Tensor, slot_N: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor,
    end_C: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(N,) of each token, sorted by cluster, -log P of the word in `slot_N` among those of its cluster; (N, S) their
    gradients by the scores; and (N, D) those by the hidden vectors, each of which is one token's."""
    given = slab_CSD, word_CS, hidden_ND, row_N, end_C, slot_N, _or_none(bias_CS)
    found = _operations().vocabench_cluster_losses(*given, threads=threads())
    shapes = row_N.shape, [row_N.shape[0], slab_CSD.shape[1]], hidden_ND.shape
    losses_N, excess_NS, dhidden_ND = map(tf.ensure_shape, found, shapes)
    return losses_N, excess_NS, dhidden_ND


def gradients(
    excess_NS: Tensor, weight_N: Tensor, hidden_ND: Tensor, row_N: Tensor, slab_CSD: Tensor, word_CS: Tensor,
    end_C: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Those by the words (C, S, D) and by their biases (C, S) of the sum of `losses`, each times its weight."""
    given = slab_CSD, word_CS, hidden_ND, row_N, end_C, excess_NS, weight_N
    found = _operations().vocabench_cluster_gradients(*given, threads=threads())
    return tf.ensure_shape(found.dslab, slab_CSD.shape), tf.ensure_shape(found.dbias, word_CS.shape)


def likeliest(
    hidden_ND: Tensor, log_cluster_NC: Tensor, slab_CSD: Tensor, bias_CS: Tensor | None, word_CS: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Values and ids (N, K) of the k likeliest words, best first, equals by their ids, and (N,) the share of the
    clusters that were looked through for them: 0 of a row that is no numbers, whose words are of no meaning."""
    given = slab_CSD, word_CS, _or_none(bias_CS), hidden_ND, log_cluster_NC
    return _found(_operations().vocabench_likeliest_words(*given, threads=threads(), k=k), hidden_ND, k)


def search_of_hidden(
    projected: Projected, upper: Sequence[tf.Variable | None], slab_CSD: tf.Variable, bias_CS: tf.Variable | None,
    word_CS: tf.Variable,
) -> Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """A function of hidden vectors and k: as `likeliest`, with an upper level that the kernel makes too.

    A function, as what does not change from call to call is made once: TensorFlow takes a fifth of a vector's time to
    make it.

    Args:
        projected: What projections make of vectors.
        upper: What `vocabench.impls.on_numpy.methods.sohsm.UPPER_LEVEL` names.
    """
    operation = _operations().vocabench_likeliest_of_hidden
    words, above = (slab_CSD, word_CS, _or_none(bias_CS)), tuple(map(_or_none, upper))
    numbers = {"threads": threads(), **projected._asdict()}

    def search(hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        return _found(operation(*words, in_dtype(hidden_ND, tf.float32), *above, k=k, **numbers), hidden_ND, k)

    return search


def linear(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
    """(N, V) h W^T in the dtype of W, as `product`: by the kernels where they are fastest."""
    weight_VD = tf.convert_to_tensor(weight_VD)
    if hidden_ND.shape[0] is None or not multiplies(weight_VD.dtype.name):
        return product(hidden_ND, weight_VD)
    return _product((tf.cast(hidden_ND, weight_VD.dtype), False), (weight_VD, False))


def _product(left: tuple[Tensor, bool], right: tuple[Tensor, bool]) -> Tensor:
    """The products of the rows of one with those of the other, or of the columns where they are said to be meant;
    differentiable as often as wanted."""
    (left_matrix, left_by_columns), (right_matrix, right_by_columns) = left, right
    rows, depth = left_matrix.shape[::-1] if left_by_columns else left_matrix.shape
    columns = right_matrix.shape[1 if right_by_columns else 0]
    if not cpp.is_worth_splitting(rows, depth, columns):
        return tf.matmul(left_matrix, right_matrix, transpose_a=left_by_columns, transpose_b=not right_by_columns)

    @tf.custom_gradient
    def by_kernels(left_matrix: Tensor, right_matrix: Tensor) -> tuple[Tensor, object]:
        def gradient(dproduct: Tensor) -> tuple[Tensor, Tensor]:
            of_right, of_left = (right_matrix, not right_by_columns), (left_matrix, not left_by_columns)
            dleft = _product(of_right, (dproduct, False)) if left_by_columns else _product((dproduct, False), of_right)
            dright = _product(of_left, (dproduct, True)) if right_by_columns else _product((dproduct, True), of_left)
            return dleft, dright

        sides = {"left_by_columns": int(left_by_columns), "right_by_columns": int(right_by_columns)}
        found = _operations().vocabench_matrix_product(left_matrix, right_matrix, threads=threads(), **sides)
        return tf.ensure_shape(found, [rows, columns]), gradient

    return by_kernels(left_matrix, right_matrix)


def path_losses(hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> tuple[Tensor, Tensor, Tensor]:
    """(N,) sums over paths of -log sigma(sign x r.h), and their derivatives by the products r.h (N, L) and by the
    hidden vectors (N, D)."""
    losses_N, dscores_NL, dhidden_ND = _operations().vocabench_path_losses(
        hidden_ND, *paths, node_weight, threads=threads()
    )
    dscores_NL = tf.ensure_shape(dscores_NL, paths.index_NL.shape)
    return tf.ensure_shape(losses_N, hidden_ND.shape[:1]), dscores_NL, tf.ensure_shape(dhidden_ND, hidden_ND.shape)


def path_gradients(dscores_NL: Tensor, hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> Tensor:
    """(nodes, D) what derivatives by the products give by the nodes."""
    given = hidden_ND, *paths, dscores_NL, tf.shape(node_weight)[0]
    return tf.ensure_shape(_operations().vocabench_path_gradients(*given, threads=threads()), node_weight.shape)


def likeliest_leaves(hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values and numbers (N, K) of a tree's k likeliest leaves, best first, equals by their numbers, and (N,) the share
    of the nodes that were looked at for them: 0 of a row that is no numbers."""
    given = node_weight, children, in_dtype(hidden_ND, tf.float32)
    found = _operations().vocabench_likeliest_leaves(*given, threads=threads(), k=k)
    return _found(found, hidden_ND, k)


def leaves_of_beam(
    hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As `likeliest_leaves`, of the leaves that the `width` likeliest ways of each level lead to."""
    given = node_weight, children, in_dtype(hidden_ND, tf.float32)
    found = _operations().vocabench_leaves_of_beam(*given, threads=threads(), k=k, width=width)
    return _found(found, hidden_ND, k)


def _found(outputs: tuple[Tensor, ...], hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    if not tf.executing_eagerly():
        rows = hidden_ND.shape[0]
        for output, shape in zip(outputs, ([rows, k], [rows, k], [rows]), strict=True):
            output.set_shape(shape)
    return tuple(outputs)


def fused_softmax(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, share_N: Tensor, most: int
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Total and gradients as `impls/cpp/fused_softmax.h` has them; targets in int32."""
    given = hidden_ND, weight_VD, bias_V, targets_N, share_N
    tokens = most if hidden_ND.shape[0] is None else hidden_ND.shape[0]
    sizes = {"most": most, "by_unit": int(cpp.fuses_by_unit(tokens, most, weight_VD.shape[1]))}
    found = _operations().vocabench_fused_softmax(*given, threads=threads(), **sizes)
    gradients = zip((found.dvectors, found.dwords, found.dbias), given[:3], strict=True)
    return tf.ensure_shape(found.total, []), tuple(tf.ensure_shape(array, like.shape) for array, like in gradients)


def _or_none(array: Tensor | None) -> Tensor:
    return _nothing() if array is None else array


@cache
def _nothing() -> Tensor:
    """What kernels are given for an array that a layer does not have; made once, as to make it takes an operation."""
    with tf.init_scope():  # else it would belong to the graph that asks first
        return tf.zeros([0])


@cache
def _operations() -> Any:
    headers = "-isystem", tf.sysconfig.get_include()
    links = tuple(tf.sysconfig.get_link_flags())
    return cpp.library("for_tensorflow", headers, links, _load, against=tf.version.GIT_VERSION)


def _load(path: str) -> Any:
    try:
        operations = tf.load_op_library(path)
    except tf.errors.OpError as error:
        raise OSError(error.message) from None
    refused = ctypes.CDLL(path).refused_by_tensorflow
    refused.restype = ctypes.c_char_p
    if why := refused():
        raise OSError(why.decode())
    return operations
