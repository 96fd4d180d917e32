"""Huffman hierarchical softmax in PyTorch. See `impls/on_numpy/huffman.py` for the definition."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from impls.on_torch import _descend
from impls.on_torch._layer import TORCH_DTYPES, OutputLayer, at_least_float32
from impls.spec import LayerSpec
from impls.structures import huffman

# The inner nodes nearest the root, which most paths share, are scored for all tokens by one dense product; 128 of them
# hold half of the expected path, and measured fastest among 64 to 1024 on two CPU cores at 10k and 44k words.
_SHARED_NODES = 128
# The rest of the paths are (token, node) pairs, taken so many at a time that their vectors stay in cache.
_PAIRS_AT_ONCE = 512


class _PathNll(torch.autograd.Function):
    """Sum over each token's path of -log sigma(sign x r.h), with the gradient written out.

    A gather of every path's vectors would copy each near-root vector once a token and let their gradients collide;
    here the shared nodes are a dense product, and the remaining pairs are summed by token and by node.
    """

    @staticmethod
    def forward(ctx, hidden_ND, node_weight, index_NL, sign_NL, shared: int, row_sparse: bool) -> Tensor:  # type: ignore[override]
        first = len(node_weight) - shared  # nodes are in order of creation, so the last ones are nearest the root
        hidden_ND_cast = hidden_ND.to(node_weight.dtype)
        on_path_NL, near_NL = sign_NL != 0, index_NL >= first
        near_scores_NH = hidden_ND_cast @ node_weight[first:].T
        near_place_NL = (index_NL - first).clamp_(min=0)
        scores_NL = at_least_float32(near_scores_NH).gather(1, near_place_NL)

        token_P, step_P = (on_path_NL & ~near_NL).nonzero(as_tuple=True)
        node_P = index_NL[token_P, step_P]
        scores_P = scores_NL.new_empty(len(node_P))
        for start in range(0, len(node_P), _PAIRS_AT_ONCE):
            piece = slice(start, start + _PAIRS_AT_ONCE)
            products = node_weight[node_P[piece]] * hidden_ND_cast[token_P[piece]]
            scores_P[piece] = products.sum(dim=1, dtype=scores_P.dtype)
        scores_NL[token_P, step_P] = scores_P

        sign_NL = sign_NL.to(scores_NL.dtype)
        turns_NL = sign_NL * scores_NL
        nll_N = -(F.logsigmoid(turns_NL) * on_path_NL).sum(dim=1)
        # d/dx of -log sigma(s x) is -s sigma(-s x); the sign is 0 beyond the path's end.
        dscores_NL = -sign_NL * torch.sigmoid(-turns_NL)
        near_NL &= on_path_NL
        ctx.row_sparse = row_sparse
        ctx.save_for_backward(hidden_ND, node_weight, dscores_NL, near_NL, near_place_NL, token_P, step_P, node_P)
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx, dnll_N):  # type: ignore[override]
        hidden_ND, node_weight, dscores_NL, near_NL, near_place_NL, token_P, step_P, node_P = ctx.saved_tensors
        hidden_cast_ND = hidden_ND.to(node_weight.dtype)
        dscores_NL = dscores_NL * dnll_N[:, None]
        near_count = _shared(len(node_weight))
        first = len(node_weight) - near_count

        dnear_NH = dscores_NL.new_zeros(len(hidden_ND), near_count)
        dnear_NH.scatter_add_(1, near_place_NL, dscores_NL * near_NL)
        dnear_NH = dnear_NH.to(node_weight.dtype)
        dhidden_ND = dnear_NH @ node_weight[first:]
        dnear_HD = dnear_NH.T @ hidden_cast_ND
        nodes_U, dnode_UD = node_P, node_weight[:0]

        if len(node_P):
            dscores_P = dscores_NL[token_P, step_P].to(node_weight.dtype)
            # Pairs come in order of tokens; by node they are sorted, so that no two writes meet.
            every = torch.arange(len(hidden_ND), device=token_P.device)
            begins_N = torch.searchsorted(token_P, every)
            dhidden_ND += _weighted_sums(node_weight, node_P, begins_N, dscores_P)
            by_node_P = torch.argsort(node_P)
            nodes_U, counts_U = torch.unique_consecutive(node_P[by_node_P], return_counts=True)
            begins_U = counts_U.cumsum(0) - counts_U
            dnode_UD = _weighted_sums(hidden_cast_ND, token_P[by_node_P], begins_U, dscores_P[by_node_P])
        dnode = (_sparse if ctx.row_sparse else _dense)(node_weight, nodes_U, dnode_UD, dnear_HD)
        return dhidden_ND.to(hidden_ND.dtype), dnode, None, None, None, None


def _dense(node_weight: Tensor, nodes_U: Tensor, dnode_UD: Tensor, dnear_HD: Tensor) -> Tensor:
    """The gradient of all nodes from that of the nodes reached and of those nearest the root."""
    dnode = torch.zeros_like(node_weight)
    dnode[nodes_U] = dnode_UD
    dnode[len(dnode) - len(dnear_HD) :] = dnear_HD
    return dnode


def _sparse(node_weight: Tensor, nodes_U: Tensor, dnode_UD: Tensor, dnear_HD: Tensor) -> Tensor:
    near_H = torch.arange(len(node_weight) - len(dnear_HD), len(node_weight), device=nodes_U.device)
    rows, values = torch.cat([nodes_U, near_H]), torch.cat([dnode_UD, dnear_HD])
    return torch.sparse_coo_tensor(rows[None], values, node_weight.shape, is_coalesced=True, check_invariants=False)


def _weighted_sums(rows_RD: Tensor, picked_P: Tensor, begins_B: Tensor, weight_P: Tensor) -> Tensor:
    """(B, D): for each bag of consecutive picks, the weighted sum of the rows picked, without a (P, D) array."""
    return F.embedding_bag(picked_P, rows_RD, begins_B, mode="sum", per_sample_weights=weight_P)


def _shared(nodes: int) -> int:
    return min(_SHARED_NODES, nodes)


class HuffmanSoftmax(OutputLayer):
    """log P(w | h) = sum over the inner nodes of w's path of log sigma(sign . r.h) (Mikolov et al. 2013; Liu et al.
    2022).

    Parameters: `node_weight` (V-1, D), inner nodes in order of creation. Buffers: `index`, `sign` (V, L) of each
    word's path.
    """

    index: Tensor
    sign: Tensor
    tree: Tensor
    near_words: Tensor
    near_subtrees: Tensor
    near_turns: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.node_weight = nn.Parameter(torch.empty(spec.vocab - 1, spec.dim, dtype=TORCH_DTYPES[spec.dtype]))
        self.register_buffer("index", torch.from_numpy(spec.structure["index"]))
        self.register_buffer("sign", torch.from_numpy(spec.structure["sign"]))
        children = spec.structure["children"]
        near = huffman.near_root(children, _descend.NEAR_NODES)
        self.first_near = near.first
        for name, array in (
            ("tree", children),
            ("near_words", near.words),
            ("near_subtrees", near.subtrees),
            ("near_turns", near.turns),
        ):
            self.register_buffer(name, torch.from_numpy(array), persistent=False)
        self._levels = [
            (torch.from_numpy(nodes), *torch.from_numpy(children[nodes].T.copy())) for nodes in huffman.levels(children)
        ]

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        shared = _shared(len(self.node_weight))
        index_NL, sign_NL = self.index[targets_N], self.sign[targets_N]
        return _PathNll.apply(hidden_ND, self.node_weight, index_NL, sign_NL, shared, self.row_sparse)  # type: ignore[return-value]

    def rows_read(self, targets_N: Tensor) -> dict[str, Tensor]:
        nodes = len(self.node_weight)
        near_H = torch.arange(nodes - _shared(nodes), nodes, device=targets_N.device)
        on_path_P = self.index[targets_N][self.sign[targets_N] != 0]
        return {"node_weight": torch.cat([on_path_P, near_H])}

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        # Level by level, nodes as rows so that a level is read and written in whole rows: O(V D + V) a token.
        scores_MN = at_least_float32(F.linear(self.node_weight, hidden_ND.to(self.node_weight.dtype)))
        prefix = scores_MN.new_zeros(2 * self.spec.vocab - 1, len(hidden_ND))  # words, then inner nodes
        for nodes, left, right in self._levels:
            nodes, left, right = (ids.to(scores_MN.device) for ids in (nodes, left, right))
            here, scores = prefix[self.spec.vocab + nodes], scores_MN[nodes]
            prefix[left] = here + F.logsigmoid(scores)
            prefix[right] = here + F.logsigmoid(-scores)
        return prefix[: self.spec.vocab].T

    @torch.no_grad()
    def search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Values and ids (N, K) of the k likeliest words by bounds, and (N,) the share of the inner nodes scored."""
        cast_ND = hidden_ND.to(self.node_weight.dtype)
        near = (self.first_near, self.near_words, self.near_subtrees, self.near_turns)
        try:
            return _descend.search(cast_ND, self.node_weight, self.tree, *near, k)
        except _descend.TooMany:
            return super().search(hidden_ND, k)

    @torch.no_grad()
    def beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Values and ids (N, K) of k likely words, keeping the `width` likeliest prefixes of each level."""
        return _descend.beam(hidden_ND.to(self.node_weight.dtype), self.node_weight, self.tree, k, width)

    @torch.no_grad()
    def sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """(N,) words, one number for each turn."""
        return _descend.sample(hidden_ND.to(self.node_weight.dtype), self.node_weight, self.tree, uniforms_NU)

    def formulation(self) -> str:
        return f"dense product of the {_shared(len(self.node_weight))} nodes nearest the root, pairs for the rest"


LAYER = HuffmanSoftmax
