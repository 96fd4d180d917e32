"""Our C++ kernels (`impls/cpp`), run by the threads of PyTorch's OpenMP.

They compute both levels of two-level layers, binary trees, fused softmax and matrix products, and draw from the
likeliest words.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from itertools import repeat
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP, Interface, Paths
from vocabench.impls.errors import BadInput, Unsupported
from vocabench.impls.models.decisions import Decisions, Squares
from vocabench.impls.on_numpy.methods.sohsm import Projected
from vocabench.impls.on_torch.inputs import is_readable
from vocabench.impls.on_torch.tracing import is_tracing

_NO_MEMORY, _BAD_ARGUMENT = -1, -3  # as in `impls/cpp/for_ctypes.cpp`
_IN_MEMORY = frozenset(
    (Tensor, Parameter)
)  # other kinds of tensors, such as sharded ones, need not have their elements
_FUSED = {torch.float32: "fused_softmax_of_ctypes", torch.bfloat16: "fused_bfloat16_of_ctypes"}
_EXACT = 0  # width of a search that is no beam search


def interface() -> Interface:
    """Return how PyTorch calls the kernels: by ctypes, so that they do not depend on the version of PyTorch."""
    return Interface("for_ctypes", threads="openmp_threads")


class Rows(Protocol):
    """Where the words of a two-level layer are stored, as described by `two_level.words.WordRows`."""

    @property
    def start_C(self) -> Tensor: ...

    @property
    def size_C(self) -> Tensor: ...

    @property
    def slots(self) -> int: ...

    @property
    def in_slab(self) -> bool: ...


def known(dtype: torch.dtype) -> bool:
    """Return whether there are kernels for vectors of `dtype` on this machine's CPU."""
    return dtype == torch.float32 and _library() is not None


def multiplies(dtype: torch.dtype) -> bool:
    """Return whether they multiply large matrices of `dtype` faster than PyTorch."""
    return cpp.multiplies_fastest() and known(dtype)


def runs_on(words: Tensor) -> bool:
    """Return whether the kernels can read these words."""
    return words.device.type == "cpu" and words.dtype == torch.float32 and words.is_contiguous()


def fuses(dtype: torch.dtype) -> bool:
    """Return whether there is a kernel of fused softmax for words of `dtype` on this machine's CPU."""
    return dtype in _FUSED and _library() is not None


def fuses_on(words: Tensor) -> bool:
    """Return whether the kernel of fused softmax can read these words."""
    return words.device.type == "cpu" and words.dtype in _FUSED and words.is_contiguous()


def scores(hidden_RD: Tensor, row_N: Tensor, words: Tensor, bias: Tensor | None, ends_C: Tensor, rows: Rows) -> Tensor:
    """Return the (N, S) scores of each token, sorted by cluster, with the words of its cluster; -inf in empty slots.

    Args:
        hidden_RD: Vectors in float32.
        row_N: The row of `hidden_RD` of each token.
        words: Word vectors (C, S, D) or (V, D), as described by `rows`.
        bias: Word biases (C, S) or (V,), or None.
        ends_C: (C,) int32, one past the last token of each cluster.
        rows: Where the words are stored.
    """
    scores_NS = hidden_RD.new_empty(row_N.size(0), rows.slots)
    tokens = _tokens(hidden_RD, row_N, ends_C)
    _run(
        "cluster_scores_of_ctypes",
        words,
        *tokens,
        *_clusters(words, rows),
        words,
        bias,
        scores_NS,
        results=(scores_NS,),
    )
    return scores_NS


def losses(
    hidden_ND: Tensor, row_N: Tensor, slot_N: Tensor, words: Tensor, bias: Tensor | None, ends_C: Tensor,
    rows: Rows, *, differentiated: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the (N,) negative log-likelihoods of tokens sorted by cluster, and their gradients.

    The likelihood is that of the word in `slot_N` among those of its cluster. The gradients are those with respect to
    the scores (N, S) and the hidden vectors (N, D), one vector for each token. They have no rows unless
    `differentiated`.
    """
    losses_N = hidden_ND.new_empty(row_N.size(0))
    excess_NS = hidden_ND.new_empty(row_N.size(0) if differentiated else 0, rows.slots)
    dhidden_ND = hidden_ND.new_empty(hidden_ND.size(0) if differentiated else 0, hidden_ND.shape[1])
    tokens, slot_N = _tokens(hidden_ND, row_N, ends_C), slot_N.to(torch.int32).contiguous()
    results = (losses_N, excess_NS, dhidden_ND) if differentiated else (losses_N,)
    given = *tokens, *_clusters(words, rows), words, bias, slot_N, *results, *(None,) * (3 - len(results))
    _run("cluster_losses_of_ctypes", words, *given, results=results)
    return losses_N, excess_NS, dhidden_ND


def gradients(
    excess_NS: Tensor, weight_N: Tensor, hidden_ND: Tensor, row_N: Tensor, words: Tensor, bias: Tensor | None,
    ends_C: Tensor, rows: Rows,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the gradients of the weighted sum of `losses` with respect to the words and their biases."""
    allocate = torch.zeros_like if rows.in_slab else torch.empty_like
    dwords, dbias = allocate(words), None if bias is None else allocate(bias)
    given = *_tokens(hidden_ND, row_N, ends_C), *_clusters(words, rows), excess_NS, weight_N.contiguous()
    results = (dwords,) if dbias is None else (dwords, dbias)
    _run("cluster_gradients_of_ctypes", words, *given, dwords, dbias, results=results)
    return dwords, dbias


def likeliest(
    hidden_RD: Tensor, log_cluster_RC: Tensor, words: Tensor, bias: Tensor | None, word_CS: Tensor, rows: Rows,
    k: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return values and ids (R, K) of the k likeliest words, best first and ties by id, and the (R,) share of clusters
    searched: 0 for rows that contain NaN, whose words are meaningless.
    """
    result = _result(hidden_RD, k)
    queries = hidden_RD.contiguous(), log_cluster_RC.contiguous()
    lower = *_clusters(words, rows), words, bias, word_CS
    _run("likeliest_words_of_ctypes", words, *queries, *lower, *result, k, hidden_RD.size(0), results=result)
    return result


def likeliest_of_hidden(
    hidden_ND: Tensor, projected: Projected, upper: Sequence[Tensor | None], words: Tensor, bias: Tensor | None,
    word_CS: Tensor, rows: Rows, k: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the same as `likeliest`, but also compute the upper level with the kernel.

    Args:
        hidden_ND: Hidden vectors.
        projected: How projections transform vectors.
        upper: The parameters named by `vocabench.impls.on_numpy.methods.sohsm.UPPER_LEVEL`.
        words: Word vectors (C, S, D) or (V, D), as described by `rows`.
        bias: Word biases (C, S) or (V,), or None.
        word_CS: The word in each slot.
        rows: Where the words are stored.
        k: From 1 to V.
    """
    upper = [None if parameter is None else parameter.contiguous() for parameter in upper]
    result = _result(hidden_ND, k)
    given = hidden_ND.contiguous(), *upper, *_clusters(words, rows), words, bias, word_CS, *result, k, hidden_ND.size(0)
    factors = tuple(map(ctypes.c_float, projected))
    _run("likeliest_of_hidden_of_ctypes", words, *given, results=result, factors=factors)
    return result


def matrix_product(left_ND: Tensor, right_VD: Tensor) -> Tensor:
    """Return the (N, V) product of float32 matrices, with contiguous rows or contiguous columns."""
    left_ND, right_VD = (m if 1 in m.stride() else m.contiguous() for m in (left_ND, right_VD))
    product_NV = left_ND.new_empty(left_ND.size(0), right_VD.size(0))
    _run(
        "matrix_product_of_ctypes", product_NV, *_factor(left_ND), *_factor(right_VD), product_NV, results=(product_NV,)
    )
    return product_NV


def weight_gradient(dscores_NV: Tensor, hidden_ND: Tensor) -> Tensor:
    """Return the (V, D) gradient of h W^T with respect to W, in float32."""
    dweight_VD = hidden_ND.new_empty(dscores_NV.shape[1], hidden_ND.shape[1])
    inputs, sizes = (dscores_NV.contiguous(), hidden_ND.contiguous()), (dscores_NV.size(0), *dweight_VD.shape)
    _run("weight_gradient_of_ctypes", dweight_VD, *inputs, dweight_VD, *sizes, results=(dweight_VD,))
    return dweight_VD


def draws_from(log_probs_NV: Tensor) -> bool:
    """Return whether the kernels can draw from these log-probabilities. A trace keeps PyTorch's own operations."""
    return is_readable(log_probs_NV) and known(log_probs_NV.dtype)


def nucleus(log_probs_NV: Tensor, uniforms_N: Tensor, temperature: float, top_p: float) -> Tensor:
    """Return (N,) words drawn as described in `impls/cpp/nucleus.h`."""
    drawn_N = torch.empty(log_probs_NV.size(0), dtype=torch.int64)
    log_probs_NV, uniforms_N = log_probs_NV.detach().contiguous(), uniforms_N.to(torch.float32).contiguous()
    given = log_probs_NV, uniforms_N, drawn_N, *log_probs_NV.shape
    factors = ctypes.c_float(temperature), ctypes.c_float(top_p)
    _run("nucleus_words_of_ctypes", log_probs_NV, *given, results=(drawn_N,), factors=factors)
    return drawn_N


def path_losses(hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> tuple[Tensor, Tensor, Tensor]:
    """Return the (N,) sums over paths of -log sigma(sign x r.h), and their gradients with respect to the products r.h
    (N, L) and the hidden vectors (N, D).
    """
    hidden_ND = hidden_ND.contiguous()
    losses_N, dscores_NL = (
        hidden_ND.new_empty(hidden_ND.size(0)),
        torch.empty_like(paths.sign_NL, dtype=hidden_ND.dtype),
    )
    result = losses_N, dscores_NL, torch.empty_like(hidden_ND)
    given = _paths(hidden_ND, paths, node_weight.size(-1))
    _run("path_losses_of_ctypes", node_weight, *given, node_weight, *result, node_weight.size(0), results=result)
    return result


def path_gradients(dscores_NL: Tensor, hidden_ND: Tensor, node_weight: Tensor, paths: Paths) -> Tensor:
    """Return the (nodes, D) gradient with respect to the nodes, from that with respect to the products."""
    dnode = torch.empty_like(node_weight)
    given = *_paths(hidden_ND.contiguous(), paths, dnode.size(-1)), dscores_NL.contiguous()
    _run("path_gradients_of_ctypes", dnode, *given, dnode, node_weight.size(0), results=(dnode,))
    return dnode


def likeliest_leaves(hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return values and ids (N, K) of a tree's k likeliest leaves, best first and ties by id, and the (N,) share of
    nodes visited: 0 for rows that contain NaN.
    """
    return _leaves(hidden_ND, node_weight, children, k, _EXACT)


def leaves_of_beam(
    hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same as `likeliest_leaves`, for the leaves below the `width` likeliest prefixes of each level."""
    if width < 1:
        raise BadInput(f"width={width}: allowed: at least 1")
    return _leaves(hidden_ND, node_weight, children, k, width)


def _leaves(
    hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    result = _result(hidden_ND, k)
    sizes = k, hidden_ND.size(0), node_weight.size(0), node_weight.size(-1), width
    given = hidden_ND.contiguous(), node_weight, children, *result, *sizes
    _run("likeliest_leaves_of_ctypes", node_weight, *given, results=result)
    return result


def _result(hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate the values, ids and share of `Likeliest` in `impls/cpp/likeliest.h`."""
    if k < 1:
        raise BadInput(f"k={k}: allowed: at least 1")
    rows = hidden_ND.size(0)
    ids_NK = torch.empty(rows, k, dtype=torch.int64)
    return hidden_ND.new_empty(rows, k), ids_NK, hidden_ND.new_empty(rows)


def fused_softmax(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, share_N: Tensor, most: int
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return total and gradients as in `impls/cpp/fused_softmax.h`; targets are int64.

    The words are float32 or bfloat16. The total is float32, and each gradient has the dtype of its array.

    Raises:
        IndexError: A target is outside the vocabulary.
    """
    hidden, bias, share = (array.to(torch.float32).contiguous() for array in (hidden_ND, bias_V, share_N))
    inputs = hidden, weight_VD, bias, targets_N.contiguous(), share
    dhidden_ND, dweight_VD, dbias_V = map(torch.empty_like, (hidden, weight_VD, bias))
    by_unit = not is_tracing() and cpp.fuses_by_unit(hidden_ND.size(0), most, weight_VD.size(-1))
    total = hidden.new_empty(())
    sizes = hidden_ND.size(0), weight_VD.size(0), weight_VD.size(-1), most, by_unit
    results = total, dhidden_ND, dweight_VD, dbias_V
    if not _run(_FUSED[weight_VD.dtype], hidden, *inputs, *results, *sizes, results=results):
        raise IndexError(f"a target is none of the {weight_VD.size(0)} words")
    return total, (dhidden_ND.to(hidden_ND.dtype), dweight_VD, dbias_V.to(bias_V.dtype))


def _tokens(hidden_RD: Tensor, row_N: Tensor, ends_C: Tensor) -> tuple[Tensor | int, ...]:
    """Return the fields of `TokenMemory` in `impls/cpp/for_ctypes.cpp`."""
    return hidden_RD.contiguous(), row_N.contiguous(), ends_C, hidden_RD.size(0)


def _clusters(words: Tensor, rows: Rows) -> tuple[Tensor | int, ...]:
    """Return the fields of `ClusterMemory`."""
    places = words.size(0) * words.size(1) if rows.in_slab else words.size(0)
    return rows.start_C, rows.size_C, places, words.size(-1), rows.slots


def _paths(hidden_ND: Tensor, paths: Paths, dim: int) -> tuple[Tensor | int, ...]:
    """Return the fields of `PathArguments`."""
    return hidden_ND, *paths, hidden_ND.size(0), dim, paths.index_NL.size(-1)


def _factor(matrix: Tensor) -> tuple[int, ...]:
    """Return the fields of `FactorMemory`: a matrix need not be contiguous."""
    (rows, depth), strides = matrix.shape, matrix.stride()
    bytes_from_first = int(matrix.untyped_storage().nbytes() - matrix.storage_offset() * matrix.itemsize)
    return matrix.data_ptr(), bytes_from_first, rows, depth, *strides


def word_steps(
    input_ID: Tensor,
    output_RD: Tensor,
    bags_NJ: NDArray[np.int32],
    decisions: Decisions,
    rates: tuple[float, float],
    squares: Squares,
    threads: int,
) -> Tensor:
    """Take the steps that `impls/cpp/word_steps.h` describes, in place, and return the mean loss."""
    arrays = bags_NJ, decisions.list_N, decisions.row_ML, decisions.sign_ML, np.array(rates, np.float32)
    sums = torch.from_numpy(squares.input_I), torch.from_numpy(squares.output_R)
    loss = output_RD.new_empty(())
    sizes = *bags_NJ.shape, *decisions.row_ML.shape, input_ID.size(1), input_ID.size(0), output_RD.size(0)
    changed = input_ID, output_RD, *sums, loss
    arguments = *map(torch.from_numpy, arrays), *changed, *sizes
    _run("word_steps_of_ctypes", output_RD, *arguments, results=changed, threads=threads)
    return loss


def _run(
    name: str,
    words: Tensor,
    *arguments: Tensor | int | None,
    results: tuple[Tensor, ...],
    factors: tuple[ctypes.c_float, ...] = (),
    threads: int | None = None,
) -> bool:
    """Call a kernel and return whether it completed; it may refuse its targets. In a trace, the call is an operator.

    Args:
        name: Name of a function in `impls/cpp/for_ctypes.cpp`.
        words: The parameter whose device and dtype decide whether kernels can be used.
        arguments: The fields of the kernel's struct of arguments, in order; None for an absent array.
        results: Those of the arguments that the kernel writes.
        factors: Arguments after the struct.
        threads: Number of threads; by default those of PyTorch.

    Raises:
        BadInput: The arrays do not belong together, or an index or size is out of range.
        MemoryError: There is not enough memory for the kernel's arrays.
    """
    if is_tracing():
        _trace(name, arguments, results)
        return True
    library = _library()
    if library is None or not runs_on(words):
        raise Unsupported(f"{CPP} for {words.dtype} on {words.device}: allowed: torch.float32 {cpp.WHERE}")
    fields: list[int] = []
    for argument in arguments:
        if isinstance(argument, int):
            fields.append(argument)
        elif argument is None:
            fields += 0, 0
        elif type(argument) in _IN_MEMORY and argument.is_cpu and argument.is_contiguous():
            fields += argument.data_ptr(), argument.nbytes
        else:
            what = f"{type(argument).__name__} of shape {tuple(argument.shape)} on {argument.device}"
            raise BadInput(f"{what}: allowed: contiguous tensors on the CPU")
    packed = struct.pack(f"{len(fields)}q", *fields)
    done = getattr(library, name)(threads or torch.get_num_threads(), packed, len(packed), *factors)
    if done == _BAD_ARGUMENT:
        last_refusal = library.last_refusal
        last_refusal.restype = ctypes.c_char_p
        raise BadInput(last_refusal().decode())
    if done < 0:
        raise MemoryError(f"no memory for the {CPP}") if done == _NO_MEMORY else RuntimeError(f"{name} has failed")
    return bool(done)


def _trace(name: str, arguments: Sequence[Tensor | int | None], results: tuple[Tensor, ...]) -> None:
    """Call `_operator` with the arguments sorted by kind, which a trace needs to know."""
    inputs: list[Tensor] = []
    sizes: list[int] = []
    kinds = ""
    for argument in arguments:
        if argument is None:
            kinds += "-"
        elif not isinstance(argument, Tensor):
            kinds += "s"
            sizes.append(argument)
        elif any(argument is result for result in results):
            kinds += "r"
        else:
            kinds += "i"
            inputs.append(argument)
    _operator(name, kinds, inputs, list(results), sizes)


@torch.library.custom_op(
    "vocabench::cpp_kernel",
    mutates_args=("results",),
    schema="(str name, str kinds, Tensor[] inputs, Tensor(a!)[] results, SymInt[] sizes) -> ()",
)
def _operator(name: str, kinds: str, inputs: list[Tensor], results: list[Tensor], sizes: list[int]) -> None:
    """Call a kernel whose arguments are inputs ("i"), results ("r"), sizes ("s") or absent ("-"), as in `kinds`."""
    source = {"i": iter(inputs), "r": iter(results), "s": iter(sizes), "-": repeat(None)}
    _run(name, results[0], *(next(source[kind]) for kind in kinds), results=tuple(results))


def _library() -> ctypes.CDLL | None:
    return cpp.library(interface())
