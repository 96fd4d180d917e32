"""Huffman hierarchical softmax with whole subtrees to a rank, and the nodes nearest the root on all ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocabench.impls.forms import Form
from vocabench.impls.on_torch.ops.once import once_differentiable
from vocabench.impls.on_torch.ops.topk import exact_topk
from vocabench.impls.on_torch.parallel.layer import ParallelLayer
from vocabench.impls.on_torch.parallel.ranks import Ranks, copied, summed
from vocabench.impls.on_torch.tensors import at_least_float32
from vocabench.impls.on_torch.trees import descend
from vocabench.impls.on_torch.trees.tree_layer import TreeSoftmax
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import huffman, parts


class _SharedRows(torch.autograd.Function):
    """The vectors of nodes, of which the last rows are on all ranks: their gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx, node_weight, shared: int, ranks: Ranks) -> Tensor:  # type: ignore[override]
        ctx.shared, ctx.ranks = shared, ranks
        return node_weight.view_as(node_weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, dnode):  # type: ignore[override]
        first = len(dnode) - ctx.shared
        total_SD = at_least_float32(dnode[first:]).clone(memory_format=torch.contiguous_format)
        # In place: only this layer's own backward pass has made the gradient, and a copy would be as large as the part.
        dnode[first:] = ctx.ranks.add_up(total_SD)
        return dnode, None, None


class _OwnTree(TreeSoftmax):
    """The subtrees of one rank below the shared nodes.

    Its first leaves are the words of the rank; each of the other leaves stands for a word or a subtree of another rank.
    """

    def __init__(self, spec: LayerSpec, part: parts.TreePart, ranks: Ranks) -> None:
        super().__init__(spec)
        self.tree_part, self.ranks = part, ranks

    def _blank(self) -> _OwnTree:
        return _OwnTree(self.spec, self.tree_part, self.ranks)

    def _nodes(self) -> Tensor:
        return _SharedRows.apply(self.node_weight, self.tree_part.shared, self.ranks)  # type: ignore[return-value]

    def nothing(self) -> Tensor:
        """Return 0, whose gradient with respect to the nodes is 0."""
        return at_least_float32(self._nodes()[:0].sum())

    def best_words(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities and words of the rank (N, K), and the (N,) share of its inner nodes scored."""
        words = len(self.tree_part.words_R)
        # The leaves of other ranks are directly below shared nodes, which are among the near ones.
        own = self.near_words < words
        columns = torch.cat([own, torch.ones_like(self.near_subtrees, dtype=torch.bool)])
        near = self.first_near, self.near_words[own], self.near_subtrees, self.near_turns[:, columns]
        try:
            if len(near[1]) >= k:
                return descend.search(self._cast(hidden_ND), self.node_weight, self.structure_children, *near, k)
        except descend.TooMany:
            pass
        best = exact_topk(self._log_probs(hidden_ND)[:, :words], k)
        return *best, torch.ones(len(hidden_ND), device=hidden_ND.device)


class ParallelTree(ParallelLayer):
    """Huffman hierarchical softmax over ranks. A token is work for the rank that holds its target.

    Parameters: `own.node_weight` (J, D), the nodes of this rank's subtrees and then those that all ranks hold.
    """

    own: _OwnTree

    def __init__(self, spec: LayerSpec, ranks: Ranks) -> None:
        self._parts = parts.tree_parts(spec.structure["children"], spec.counts, ranks.size)
        super().__init__(spec, ranks)

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        return TreeSoftmax.forms(spec)

    def _words_of(self, rank: int) -> NDArray[np.int64]:
        return self._parts[rank].words_R

    def _layer_of(self, words_R: NDArray[np.int64]) -> _OwnTree:
        part = self._parts[self.ranks.rank]
        tree = huffman.from_children(part.children)
        structure = {
            "code_length": tree.code_length,
            "index": tree.index,
            "sign": tree.sign,
            "children": tree.children,
        }
        counts = np.ones(len(part.children) + 1, dtype=np.int64)
        return _OwnTree(replace(self.spec, counts=counts, structure=structure), part, self.ranks)

    def _of_all(self, name: str, own: Tensor) -> Tensor:
        sizes = [len(part.nodes_J) - part.shared for part in self._parts]
        by_rank = self.ranks.concatenated(own[: sizes[self.ranks.rank]], sizes)
        nodes = [part.nodes_J[:size] for part, size in zip(self._parts, sizes, strict=True)]
        nodes.append(self._parts[0].nodes_J[sizes[0] :])
        place = torch.from_numpy(np.concatenate(nodes)).to(own.device)
        rows = torch.cat([by_rank, own[sizes[self.ranks.rank] :]])
        return torch.empty_like(rows).index_copy_(0, place, rows)

    def _of_own(self, name: str, whole: Tensor) -> Tensor:
        nodes_J = torch.from_numpy(self._parts[self.ranks.rank].nodes_J)
        return whole[nodes_J.to(whole.device)].to(self.words.device)

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) losses, each computed by the rank that holds the target. One number crosses the wire."""
        number_N = self.number[targets_N]
        rows_R = (number_N >= 0).nonzero()[:, 0]
        own_RD = copied(hidden_ND, self.ranks).index_select(0, rows_R)
        if len(rows_R):
            nll_R = self.own._nll(own_RD, number_N[rows_R])
        else:  # gradients of zeros, as every rank takes part in their sums
            nll_R = at_least_float32(own_RD.sum(dim=1)) + self.own.nothing()
        return summed(nll_R.new_zeros(len(number_N)).index_copy(0, rows_R, nll_R), self.ranks)

    def _own_log_probs(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        return self.own._log_probs(hidden_ND)[:, : len(self.words)]

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        values_NJ, number_NJ, share_N = self.own.best_words(hidden_ND, min(k, len(self.words)))
        scored_N = self.ranks.add_up(share_N * len(self.own.node_weight))
        held = sum(len(part.nodes_J) for part in self._parts)
        return *self._merged(values_NJ, number_NJ, k), scored_N / held

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words: every rank takes the turns at the shared nodes, and one takes those below."""
        depth = self.own.spec.draws
        number_N = self.own._sample(hidden_ND, uniforms_NU[:, :depth])
        inside_N = number_N < len(self.words)
        word_N = self.words[number_N.where(inside_N, 0)].where(inside_N, -1)
        return self.ranks.highest(word_N)


LAYER = ParallelTree
