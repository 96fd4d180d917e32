"""A binary tree over words as an output layer in PyTorch. See `impls/on_numpy/tree.py` for the definition."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabench.impls.cpp import CPP, Paths
from vocabench.impls.forms import CPU, GPU, Form
from vocabench.impls.on_torch import objectives
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.ops import cpp_kernels, pair_products, products
from vocabench.impls.on_torch.ops.once import once_differentiable
from vocabench.impls.on_torch.ops.topk import best_columns
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, Tensors, at_least_float32
from vocabench.impls.on_torch.tracing import is_tracing
from vocabench.impls.on_torch.trees import descend, path_losses
from vocabench.impls.on_torch.triton import availability
from vocabench.impls.on_torch.triton.availability import KERNELS
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import huffman, path_blocks, trees

# The inner nodes visited most, which most paths share, are scored for all tokens by one dense product. 128 nodes of a
# Huffman tree cover half of the expected path and are the fastest choice among 64 to 1024 on two CPU cores.
_SHARED_NODES = 128
# The rest of the paths are (token, node) pairs. Their vectors are read in place on a CPU, or a number of them is
# gathered at a time: few stay in a processor's cache, while a GPU needs many. The kernels do not form pairs: those of
# `path_losses.py` on a CPU, which treat all nodes alike, and those of `tree_kernels.py` on a GPU.
IN_PLACE = Form(
    "in_place", "pairs of a token and a node read in place", devices=(CPU,), dtypes=("float32", "tf32", "float64")
)


def _gathered(pairs: int, *devices: str) -> Form:
    return Form(f"pairs_{pairs}", f"{pairs:,} pairs of a token and a node at a time", devices=devices, size=pairs)


_FEW_PAIRS, _MANY_PAIRS = _gathered(512, CPU), _gathered(2**16, CPU, GPU)

_AT_ONCE_ON_GPU = 2**27  # leaves of all rows that a GPU scores in the time it takes to launch anything finer


class _PathNll(torch.autograd.Function):
    """Sum over each token's path of -log sigma(sign x r.h), with the gradient written out.

    Gathering the vectors of every path would copy the vectors near the root for each token, and their gradients would
    collide. Here the shared nodes are a dense product, and the remaining pairs are summed by token and by node.
    """

    @staticmethod
    def forward(ctx, hidden_ND, node_weight, index_NL, sign_NL, shared: int, form: Form, row_sparse: bool) -> Tensor:  # type: ignore[override]
        first = len(node_weight) - shared  # the root is last, and so are the most visited nodes
        hidden_ND_cast = hidden_ND.to(node_weight.dtype)
        on_path_NL, near_NL = sign_NL != 0, index_NL >= first
        near_scores_NH = products.linear(hidden_ND_cast, node_weight[first:])
        near_place_NL = (index_NL - first).clamp_(min=0)
        scores_NL = at_least_float32(near_scores_NH).gather(1, near_place_NL)

        token_P, step_P = (on_path_NL & ~near_NL).nonzero(as_tuple=True)
        node_P = index_NL[token_P, step_P]
        scores_NL[token_P, step_P] = pair_products.products(hidden_ND_cast, node_weight, token_P, node_P, form.size)

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
        dhidden_ND = products.product(dnear_NH, node_weight[first:])
        dnear_HD = products.weight_gradient(dnear_NH, hidden_cast_ND)
        nodes_U, dnode_UD = node_P, node_weight[:0]

        if len(node_P):
            dscores_P = dscores_NL[token_P, step_P].to(node_weight.dtype)
            # Pairs are in the order of tokens. Sorting them by node avoids concurrent writes.
            begins_N = torch.searchsorted(token_P, torch.arange(len(hidden_ND), device=token_P.device))
            dhidden_ND += _weighted_sums(node_weight, node_P, begins_N, dscores_P)
            by_node_P = torch.argsort(node_P)
            nodes_U, counts_U = torch.unique_consecutive(node_P[by_node_P], return_counts=True)
            begins_U = counts_U.cumsum(0) - counts_U
            dnode_UD = _weighted_sums(hidden_cast_ND, token_P[by_node_P], begins_U, dscores_P[by_node_P])
        dnode = (_sparse if ctx.row_sparse else _dense)(node_weight, nodes_U, dnode_UD, dnear_HD)
        return dhidden_ND.to(hidden_ND.dtype), dnode, None, None, None, None, None


class _LeafLogProbs(torch.autograd.Function):
    """(leaves, N) log-probabilities from the scores of the inner nodes (M, N), level by level.

    Nodes are rows, so that whole rows are read and written. The backward pass sums gradients up the levels.
    """

    @staticmethod
    def forward(ctx, scores_MN, levels: list[Tensor]) -> Tensor:  # type: ignore[override]
        leaves = len(scores_MN) + 1
        prefix = scores_MN.new_zeros(2 * leaves - 1, scores_MN.shape[1])  # leaves, then inner nodes
        for nodes, left, right in levels:
            here, scores = prefix[leaves + nodes], scores_MN[nodes]
            prefix[left] = here + F.logsigmoid(scores)
            prefix[right] = here + F.logsigmoid(-scores)
        ctx.save_for_backward(scores_MN)
        ctx.levels = levels
        return prefix[:leaves]

    @staticmethod
    @once_differentiable
    def backward(ctx, dleaf):  # type: ignore[override]
        (scores_MN,) = ctx.saved_tensors
        below = torch.cat([dleaf, torch.empty_like(scores_MN)])
        dscores_MN = torch.empty_like(scores_MN)
        for nodes, left, right in reversed(ctx.levels):
            dleft, dright = below[left], below[right]
            below[len(dleaf) + nodes] = dboth = dleft + dright
            # dleft sigma(-x) - dright sigma(x)
            dscores_MN[nodes] = torch.addcmul(dleft, dboth, torch.sigmoid(scores_MN[nodes]), value=-1)
        return dscores_MN, None


def _dense(node_weight: Tensor, nodes_U: Tensor, dnode_UD: Tensor, dnear_HD: Tensor) -> Tensor:
    """Return the gradient of all nodes from those of the nodes reached and the nodes nearest the root."""
    dnode = torch.zeros_like(node_weight)
    dnode[nodes_U] = dnode_UD
    dnode[len(dnode) - len(dnear_HD) :] = dnear_HD
    return dnode


def _sparse(node_weight: Tensor, nodes_U: Tensor, dnode_UD: Tensor, dnear_HD: Tensor) -> Tensor:
    near_H = torch.arange(len(node_weight) - len(dnear_HD), len(node_weight), device=nodes_U.device)
    rows, values = torch.cat([nodes_U, near_H]), torch.cat([dnode_UD, dnear_HD])
    return torch.sparse_coo_tensor(rows[None], values, node_weight.shape, is_coalesced=True, check_invariants=False)


def _weighted_sums(rows_RD: Tensor, picked_P: Tensor, begins_B: Tensor, weight_P: Tensor) -> Tensor:
    """Return (B, D) weighted sums of the rows picked by each bag of consecutive picks, without a (P, D) array."""
    return F.embedding_bag(picked_P, rows_RD, begins_B, mode="sum", per_sample_weights=weight_P)


def _traced_path_nll(hidden_ND: Tensor, node_weight: Tensor, index_NL: Tensor, sign_NL: Tensor) -> Tensor:
    """Return the same as `_PathNll`, without selecting pairs of a token and a node."""
    nodes_NLD = F.embedding(index_NL, at_least_float32(node_weight))
    scores_NL = (nodes_NLD * hidden_ND.to(node_weight.dtype)[:, None]).sum(dim=2)
    return -(F.logsigmoid(sign_NL * scores_NL) * (sign_NL != 0)).sum(dim=1)


def _shared(nodes: int) -> int:
    return min(_SHARED_NODES, nodes)


class TreeSoftmax(OutputLayer):
    """log P(w | h) = logsumexp over w's codes of the sum over the code's inner nodes of log sigma(sign . (r.h + b)).

    Parameters: `node_weight` (nodes, D), or (nodes, D + 1) with biases in the last column, which is multiplied with a 1
    appended to each hidden vector. Buffers: `structure_index` and `structure_sign` (leaves, L) of each leaf's path and
    `structure_children` (nodes, 2); `leaf_word` (leaves,),
    the word of each leaf; `leaf` (V, M), the leaves of each word, -1 beyond the last one; `level{i}` (3, nodes) of
    depth i: the nodes, their left and their right children; `words_below` (2, nodes), how many leaves are to their left
    and right. For the kernels also `length` and `place` (leaves,), the
    length of each path and the position of the leaf from left to right, and `leaf_at` (leaves,), the leaf at each
    position.
    """

    structure_index: Tensor
    structure_sign: Tensor
    structure_children: Tensor
    leaf: Tensor
    leaf_word: Tensor
    near_words: Tensor
    near_subtrees: Tensor
    near_turns: Tensor
    words_below: Tensor
    length: Tensor
    place: Tensor
    leaf_at: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        children = spec.structure["children"]
        self._biased = "node_bias" in spec.parameter_shapes()
        shape = len(children), spec.dim + int(self._biased)
        self.node_weight = nn.Parameter(torch.empty(shape, dtype=TORCH_DTYPES[spec.dtype]))
        leaf_word = trees.words_of_leaves(spec.structure, spec.vocab)
        leaf_VM = trees.leaves_of_words(leaf_word)
        self._single = leaf_VM.shape[1] == 1  # a word is a leaf with the same id
        self._blocks = path_blocks.Cuts(children)
        near = huffman.near_root(children, descend.NEAR_NODES)
        self.first_near = near.first
        for name, array in (
            ("leaf", leaf_VM),
            ("leaf_word", leaf_word),
            ("near_words", near.words),
            ("near_subtrees", near.subtrees),
            ("near_turns", near.turns),
            ("words_below", huffman.words_below(spec.structure["index"], spec.structure["sign"], len(children))),
        ):
            # Copied, because NumPy's strides of an empty array are 0, which torch.export cannot save.
            self.register_buffer(name, torch.tensor(array), persistent=False)
        self._depth = 0
        for nodes in huffman.levels(children):
            level = np.stack([nodes, *children[nodes].T])
            self.register_buffer(f"level{self._depth}", torch.from_numpy(level), persistent=False)
            self._depth += 1
        if KERNELS in self._forms or CPP in self._forms:
            length = np.count_nonzero(spec.structure["sign"], axis=1)
            place = huffman.places(children)
            for name, array in (("length", length), ("place", place), ("leaf_at", np.argsort(place))):
                self.register_buffer(name, torch.from_numpy(array.astype(np.int32)), persistent=False)

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        width, dtype = spec.dim + int("node_bias" in spec.parameter_shapes()), TORCH_DTYPES[spec.dtype]
        return (
            *([KERNELS] if availability.known(width, dtype) else []),
            *([CPP] if cpp_kernels.known(dtype) else []),
            *([IN_PLACE] if IN_PLACE.supports(spec.dtype, spec.dim) else []),
            _FEW_PAIRS,
            _MANY_PAIRS,
        )

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        if self._single:
            return self._leaf_nll(self._with_one(hidden_ND), targets_N)
        # Each code of a target is a separate path with the same hidden vector.
        leaf_NM = self.leaf[targets_N]
        if is_tracing():  # a trace cannot leave out the codes that a word does not have
            hidden_PD = self._with_one(hidden_ND).repeat_interleave(leaf_NM.shape[1], dim=0)
            nll_NM = self._leaf_nll(hidden_PD, leaf_NM.clamp(min=0).flatten()).view(leaf_NM.shape)
            return -torch.logsumexp((-nll_NM).masked_fill(leaf_NM < 0, -torch.inf), dim=1)
        token_P, code_P = (leaf_NM >= 0).nonzero(as_tuple=True)
        hidden_PD = self._with_one(hidden_ND).index_select(0, token_P)
        nll_P = self._leaf_nll(hidden_PD, leaf_NM[token_P, code_P])
        log_code_NM = nll_P.new_full(leaf_NM.shape, -torch.inf).index_put((token_P, code_P), -nll_P)
        return -torch.logsumexp(log_code_NM, dim=1)

    def _leaf_nll(self, hidden_ND: Tensor, leaf_N: Tensor) -> Tensor:
        shared, form, node_weight = _shared(len(self.node_weight)), self._form_taken, self._nodes()
        if form == KERNELS:
            from vocabench.impls.on_torch.triton import tree_kernels  # imports Triton, which may not be installed

            paths = leaf_N, self.structure_index, self.structure_sign, self.length, self.place
            return tree_kernels.path_nll(hidden_ND, node_weight, *paths, shared)
        if form == CPP:
            token_paths = Paths(
                *(buffer[leaf_N].int() for buffer in (self.structure_index, self.structure_sign, self.place))
            )
            return path_losses.path_nll(hidden_ND, node_weight, token_paths, self.row_sparse)
        path = self.structure_index[leaf_N], self.structure_sign[leaf_N]
        if is_tracing():
            return _traced_path_nll(hidden_ND, node_weight, *path)
        return _PathNll.apply(hidden_ND, node_weight, *path, shared, form, self.row_sparse)  # type: ignore[return-value]

    def _nodes(self) -> Tensor:
        """Return the vectors of the inner nodes, for calls that are differentiated."""
        return self.node_weight

    @property
    def _form_taken(self) -> Form:
        """The form that computes the layer, which may have been moved or cast since its form was requested.

        Triton's kernels write dense gradients only: a sparse gradient needs its row count on the host. Only a CPU reads
        pairs in place, and the C++ kernels take float32 only.
        """
        form, on_gpu = self.form, self.node_weight.is_cuda
        assert form is not None
        if form == CPP and not cpp_kernels.runs_on(self.node_weight):
            form = IN_PLACE
        unavailable = self.row_sparse if form == KERNELS else form == IN_PLACE and on_gpu
        return _MANY_PAIRS if unavailable else form

    def rows_read(self, targets_N: Tensor, **extra: Tensor) -> dict[str, Tensor]:
        nodes = len(self.node_weight)
        near_H = torch.arange(nodes - _shared(nodes), nodes, device=targets_N.device)
        leaf_NM = self.leaf[targets_N]
        leaf_P = leaf_NM[leaf_NM >= 0]
        on_path_P = self.structure_index[leaf_P][self.structure_sign[leaf_P] != 0]
        return {"node_weight": torch.cat([on_path_P, near_H])}

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        log_leaf_NF = self._leaf_log_probs(self._with_one(hidden_ND))
        if self._single:
            return log_leaf_NF
        log_code_NVM = log_leaf_NF[:, self.leaf.clamp(min=0)].masked_fill_(self.leaf < 0, -torch.inf)
        return torch.logsumexp(log_code_NVM, dim=2)

    def _mean_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N,) means of log p: each turn of a node counts for the words below it, so no path is walked."""
        if not self._single:
            return super()._mean_log_probs(hidden_ND)

        def of_block(hidden_BD: Tensor) -> Tensor:
            scores_BM = at_least_float32(products.linear(hidden_BD, self.node_weight))
            left_BM = F.logsigmoid(scores_BM)
            below_2M = self.words_below.to(left_BM.dtype) / self.spec.vocab
            return left_BM @ below_2M.sum(dim=0) - scores_BM @ below_2M[1]

        return objectives.in_blocks(of_block, self.spec.vocab, self._cast(hidden_ND))

    def _leaf_log_probs(self, hidden_ND: Tensor) -> Tensor:
        scores_MN = at_least_float32(products.linear(self._nodes(), hidden_ND.to(self.node_weight.dtype)))
        levels = [self.get_buffer(f"level{number}") for number in range(self._depth)]
        return _LeafLogProbs.apply(scores_MN, levels).T  # type: ignore[union-attr]

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of inner nodes scored.

        All nodes are scored if words have several codes: then no prefix bounds a word.
        """
        near = (self.first_near, self.near_words, self.near_subtrees, self.near_turns)
        try:
            if self._single and self._form_taken == CPP:
                return cpp_kernels.likeliest_leaves(self._cast(hidden_ND), self.node_weight, self.structure_children, k)
            if self._single and not is_tracing():
                if self._at_once(len(hidden_ND)):
                    return self._best_of_all(hidden_ND, k)
                return descend.search(self._cast(hidden_ND), self.node_weight, self.structure_children, *near, k)
        except descend.TooMany:
            pass
        return super()._search(hidden_ND, k)

    def _at_once(self, rows: int) -> bool:
        """Return whether a GPU scores all leaves in less time than it takes to launch a search by bounds."""
        return (
            KERNELS in self._forms
            and availability.runs_on(self.node_weight)
            and rows * len(self.length) <= _AT_ONCE_ON_GPU
        )

    def _best_of_all(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        from vocabench.impls.on_torch.triton import tree_kernels  # imports Triton, which may not be installed

        scores_MN = products.linear(self.node_weight, self._cast(hidden_ND))
        paths = self.structure_index, self.structure_sign, self.length, self.leaf_at
        best = best_columns(tree_kernels.log_leaves(scores_MN, *paths), self.leaf_at, k)
        return *best, torch.ones(len(hidden_ND), device=hidden_ND.device)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of k likely words, keeping the `width` likeliest prefixes of each level.

        The result is exact if words have several codes.
        """
        if not self._single:
            return self._search(hidden_ND, k)[:2]
        if self._form_taken == CPP:
            return cpp_kernels.leaves_of_beam(
                self._cast(hidden_ND), self.node_weight, self.structure_children, k, width
            )[:2]
        return descend.beam(self._cast(hidden_ND), self.node_weight, self.structure_children, k, width)

    def _path_beam(self, hidden_ND: Tensor, k: int, width: int, levels: int) -> tuple[Tensor, Tensor]:
        if levels == 1 or not self._single:
            return self._beam(hidden_ND, k, width)
        blocks = self._blocks.of(levels)
        node_BJ, exit_BP = (
            torch.from_numpy(array).to(self.node_weight.device) for array in (blocks.node_BJ, blocks.exit_BP)
        )
        return descend.path_beam(self._cast(hidden_ND), self.node_weight, node_BJ, exit_BP, k, width)

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words, drawn with one uniform for each turn."""
        return self.leaf_word[
            descend.sample(self._cast(hidden_ND), self.node_weight, self.structure_children, uniforms_NU)
        ]

    def _with_one(self, hidden_ND: Tensor) -> Tensor:
        return F.pad(hidden_ND, (0, 1), value=1.0) if self._biased else hidden_ND

    def _cast(self, hidden_ND: Tensor) -> Tensor:
        return self._with_one(hidden_ND).to(self.node_weight.dtype)

    def to_canonical(self, tensors: Tensors) -> Tensors:
        if not self._biased:
            return dict(tensors)
        node = tensors["node_weight"]
        return {"node_weight": node[:, :-1], "node_bias": node[:, -1]}

    def from_canonical(self, tensors: Tensors) -> Tensors:
        if not self._biased:
            return dict(tensors)
        return {"node_weight": torch.cat([tensors["node_weight"], tensors["node_bias"][:, None]], dim=1)}

    def formulation(self) -> str:
        shared, form = _shared(len(self.node_weight)), self._form_taken
        if form == CPP:
            return form.label
        if form == KERNELS:
            return f"{form.label}, dense product for the gradient of the {shared} nodes visited most"
        return f"dense product of the {shared} nodes visited most, {form.label} for the rest"
