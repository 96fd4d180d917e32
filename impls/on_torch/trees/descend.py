"""Decoding of a binary tree without the whole vocabulary: exact top-k, beam and sample.

A prefix of a word's path is at least as likely as the word. For top-k, one dense product scores the nodes nearest the
root. It gives the words directly below them, whose k-th best is a threshold, and a bound for each subtree. All subtrees
that reach the threshold are descended level by level, for all rows at once, without the prefixes that fall below it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabench.impls.on_torch.ops import pair_products, products
from vocabench.impls.on_torch.ops.topk import best, best_of_pairs
from vocabench.impls.on_torch.tensors import at_least_float32

NEAR_NODES = 512


class TooMany(Exception):
    """Scoring the whole vocabulary is cheaper than visiting all nodes that this search needs."""


def search(
    hidden_ND: Tensor, node_weight: Tensor, children: Tensor, first: int, words_A: Tensor, subtrees_B: Tensor,
    turns_2MF: Tensor, k: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return values and ids (N, K) of the k likeliest words, and the (N,) share of inner nodes scored.

    Args:
        hidden_ND: Hidden vectors in the dtype of the weights.
        node_weight: (V-1, D) inner nodes in order of creation.
        children: (V-1, 2) children of each inner node: a word is its id, inner node j is V + j.
        first: First of the nodes nearest the root, as in `vocabench.impls.structures.huffman.NearRoot`.
        words_A: Words directly below these nodes.
        subtrees_B: Roots of the subtrees below these nodes.
        turns_2MF: The turns from the root to these words and subtrees.
        k: From 1 to V.

    Raises:
        TooMany: The distribution is so near to uniform that most of the tree would be visited.
    """
    rows, nodes = len(hidden_ND), len(node_weight)
    vocab = nodes + 1
    scores_NM = at_least_float32(products.linear(hidden_ND, node_weight[first:]))
    left_NM = F.logsigmoid(scores_NM)
    prefix_NF = products.product(torch.cat([left_NM, left_NM - scores_NM], dim=1), turns_2MF.to(left_NM.dtype))
    word_NA, bound_NB = prefix_NF[:, : len(words_A)], prefix_NF[:, len(words_A) :]
    values_NK, ids_NK = best(word_NA, min(k, len(words_A)), lambda rows_R, column_RM: words_A[column_RM])
    if len(subtrees_B) == 0:
        return values_NK, ids_NK, torch.ones(rows, device=hidden_ND.device)
    if len(words_A) < k:
        raise TooMany

    threshold_N = values_NK[:, -1]
    row_P, tree_P = (bound_NB >= threshold_N[:, None]).nonzero(as_tuple=True)
    value_P, node_P = bound_NB[row_P, tree_P], subtrees_B[tree_P]
    visited_N = torch.bincount(row_P, minlength=rows) + (nodes - first)
    row_NK = torch.arange(rows, device=row_P.device).repeat_interleave(k)
    words = [(row_NK, values_NK.flatten(), ids_NK.flatten())]  # rows, values and ids found so far
    while len(row_P):
        if len(row_P) > rows * vocab / 16 + 64:
            raise TooMany
        score_P = pair_products.products(hidden_ND, node_weight, row_P, node_P)
        left_P = F.logsigmoid(score_P)
        # The two children of a node are adjacent, so that rows stay in order.
        value_Q = (value_P + torch.stack([left_P, left_P - score_P])).T.flatten()
        row_Q, child_Q = row_P.repeat_interleave(2), children[node_P].flatten()
        reaching = value_Q >= threshold_N[row_Q]
        is_word = child_Q < vocab
        kept = (reaching & is_word).nonzero()[:, 0]
        words.append((row_Q[kept], value_Q[kept], child_Q[kept]))
        deeper = (reaching & ~is_word).nonzero()[:, 0]
        row_P, value_P, node_P = row_Q[deeper], value_Q[deeper], child_Q[deeper] - vocab
        visited_N += torch.bincount(row_P, minlength=rows)
    if len(words) > 1:
        row_P, value_P, word_P = (torch.cat(parts) for parts in zip(*words, strict=True))
        values_NK, ids_NK = best_of_pairs(row_P, value_P, word_P, rows, k)
    return values_NK, ids_NK, visited_N / nodes


def beam(hidden_ND: Tensor, node_weight: Tensor, children: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
    """Return values and ids (N, K) of k likely words, keeping the `width` likeliest prefixes of each level."""
    rows, vocab = len(hidden_ND), len(node_weight) + 1
    row_N1 = torch.arange(rows, device=hidden_ND.device)[:, None]
    value_NW = at_least_float32(hidden_ND.new_zeros(rows, 1))
    node_NW = torch.full((rows, 1), 2 * vocab - 2, device=hidden_ND.device)  # the root
    while (inner_NW := (node_NW >= vocab) & value_NW.isfinite()).any():
        at_NW = (node_NW - vocab).masked_fill_(~inner_NW, 0)
        row_P = row_N1.expand_as(at_NW).flatten()
        score_NW = pair_products.products(hidden_ND, node_weight, row_P, at_NW.flatten()).view(rows, -1)
        left_NW = F.logsigmoid(score_NW).masked_fill_(~inner_NW, -torch.inf)
        stay_NW = value_NW.masked_fill(inner_NW, -torch.inf)
        value_NX = torch.cat([stay_NW, value_NW + left_NW, value_NW + (left_NW - score_NW)], dim=1)
        value_NW, place_NW = torch.topk(value_NX, min(width, value_NX.shape[1]), dim=1)
        node_NW = torch.cat([node_NW, children[at_NW, 0], children[at_NW, 1]], dim=1).gather(1, place_NW)
    return best(value_NW, k, lambda rows_R, column_RM: node_NW[rows_R].gather(1, column_RM))


def path_beam(
    hidden_ND: Tensor, node_weight: Tensor, node_BJ: Tensor, exit_BP: Tensor, k: int, width: int
) -> tuple[Tensor, Tensor]:
    """Like `beam`, with a selection after each block of the tree.

    Args:
        hidden_ND, node_weight, k, width: As for `beam`.
        node_BJ, exit_BP: The blocks, as in `vocabench.impls.structures.path_blocks.PathBlocks`.
    """
    rows, vocab = len(hidden_ND), len(node_weight) + 1
    row_N1 = torch.arange(rows, device=hidden_ND.device)[:, None]
    value_NW = at_least_float32(hidden_ND.new_zeros(rows, 1))
    at_NW = torch.full((rows, 1), vocab, device=hidden_ND.device)  # block 0
    while (open_NW := (at_NW >= vocab) & value_NW.isfinite()).any():
        block_NW = (at_NW - vocab).masked_fill_(~open_NW, 0)
        node_NWJ = node_BJ[block_NW]
        is_none_NWJ, node_NX = node_NWJ < 0, node_NWJ.clamp(min=0).flatten(1)
        row_P = row_N1.expand_as(node_NX).flatten()
        score_NWJ = pair_products.products(hidden_ND, node_weight, row_P, node_NX.flatten()).view(node_NWJ.shape)
        left_NWJ = F.logsigmoid(score_NWJ)
        right_NWJ = (left_NWJ - score_NWJ).masked_fill_(is_none_NWJ, -torch.inf)
        left_NWJ = left_NWJ.masked_fill(is_none_NWJ, 0)
        path_NWP = value_NW.masked_fill(~open_NW, -torch.inf)[:, :, None]
        first = 0
        while (end := 2 * first + 1) <= node_BJ.shape[1]:  # one level after the other
            sides = [path_NWP + turn_NWJ[:, :, first:end] for turn_NWJ in (left_NWJ, right_NWJ)]
            path_NWP, first = torch.stack(sides, dim=3).flatten(2), end
        value_NX = torch.cat([value_NW.masked_fill(open_NW, -torch.inf), path_NWP.flatten(1)], dim=1)
        value_NW, place_NW = torch.topk(value_NX, min(width, value_NX.shape[1]), dim=1)
        at_NW = torch.cat([at_NW, exit_BP[block_NW].flatten(1)], dim=1).gather(1, place_NW)
    return best(value_NW, k, lambda rows_R, column_RM: at_NW[rows_R].gather(1, column_RM))


def sample(hidden_ND: Tensor, node_weight: Tensor, children: Tensor, uniforms_NL: Tensor) -> Tensor:
    """Return (N,) words: from the root down, turn left if the uniform is below sigma(r.h)."""
    vocab, row_N = len(node_weight) + 1, torch.arange(len(hidden_ND), device=hidden_ND.device)
    node_N = torch.full_like(row_N, 2 * vocab - 2)
    for uniform_N in uniforms_NL.unbind(dim=1):
        inner_N = node_N >= vocab
        at_N = (node_N - vocab).clamp_(min=0)
        score_N = pair_products.products(hidden_ND, node_weight, row_N, at_N)
        right_N = (uniform_N >= torch.sigmoid(score_N)).to(torch.int64)
        node_N = torch.where(inner_N, children[at_N, right_N], node_N)
    return node_N
