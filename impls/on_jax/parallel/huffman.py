"""Huffman hierarchical softmax with whole subtrees to a device, and the nodes nearest the root on all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from vocabench.impls.cpp import Paths
from vocabench.impls.on_jax import objectives
from vocabench.impls.on_jax.methods.huffman import HuffmanSoftmax
from vocabench.impls.on_jax.ops.arrays import Array, Tree, aligned, product
from vocabench.impls.on_jax.ops.topk import best_by_id, top_k
from vocabench.impls.on_jax.parallel.layer import ParallelLayer
from vocabench.impls.on_jax.parallel.split import EVERYWHERE, LOWEST, Split
from vocabench.impls.on_jax.trees import descend
from vocabench.impls.on_jax.trees.tree_layer import node_scores, sum_of_turns
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import huffman
from vocabench.impls.structures.padded_parts import PaddedParts

# The arrays of the structure of which each device has those of its part.
_BY_PART = ("word", "index", "sign", "place", "children", "level_node", "level_place", "leaf", "words_below")


class _OwnTree(NamedTuple):
    """The tree of one device: its own inner nodes, and then the shared ones.

    Attributes:
        node_RD: Vectors of the own nodes.
        shared_SD: Vectors of the shared nodes.
        children: Children (R + S, 2) of the inner nodes, as in `PaddedParts`.
    """

    node_RD: Array
    shared_SD: Array
    children: Array

    @property
    def vocab(self) -> int:
        """The number of leaves."""
        return len(self.children) + 1

    def scores(self, hidden_ND: Array, node_NB: Array) -> Array:
        """Return (N, B) r.h of B inner nodes of each row."""
        rows = len(self.node_RD)
        own_NBD = self.node_RD[jnp.minimum(node_NB, rows - 1)]
        shared_NBD = self.shared_SD[jnp.maximum(node_NB - rows, 0)]
        return descend.products(jnp.where((node_NB < rows)[:, :, None], own_NBD, shared_NBD), hidden_ND)


class ParallelTree(ParallelLayer):
    """Huffman hierarchical softmax over devices.

    How many targets a device holds is not known while a program is traced, so that every device gets all tokens. Below
    the shared nodes, it computes the paths of the tokens whose target it holds, and no path for the others. All devices
    compute all turns at shared nodes, and thus the same gradient of these, which is that of the whole batch.

    Decoding computes all turns of a device, an (R + S, 2, N) array, without the bounds that it has on one device.

    Parameters: `node_weight` (P R, D), R inner nodes on each of P devices, with zeros in unused rows, which have no
    probability and no gradient; and `shared_weight` (S, D), the nodes nearest the root, on every device.
    """

    def __init__(self, spec: LayerSpec, split: Split) -> None:
        super().__init__(spec, split)
        self._of_tree = HuffmanSoftmax(spec)  # whose functions take the nodes of one device
        self._parts = PaddedParts.of(spec.structure, spec.counts, split.parts)

    def placement(self) -> Tree:
        tree, parts = self.spec.structure, self._parts
        below_2M = huffman.words_below(tree["index"], tree["sign"], len(tree["children"]))
        by_word = {"part": parts.part_V, "number": parts.number_V, "exit": parts.exit_V, "turns": parts.turns_XA}
        by_word["shared_words_below"] = below_2M[:, len(parts.row_M) :]
        place_V = huffman.places(tree["children"])
        by_part = {
            "word": parts.word_PW,
            "index": parts.index_PWL,
            "sign": parts.sign_PWL,
            "place": place_V[np.minimum(parts.word_PW, self.spec.vocab - 1)],
            "children": parts.children_PJ2,
            "level_node": np.concatenate([level.node_PB for level in parts.levels], axis=1),
            "level_place": np.concatenate([level.place_PB for level in parts.levels], axis=1),
            "leaf": parts.leaf_PW,
            "words_below": np.where(parts.node_PR < 0, 0, below_2M[:, parts.node_PR]).transpose(1, 2, 0),
        }
        placed = {name: self.split.copied(array.astype(np.int32)) for name, array in by_word.items()}
        for name, array in by_part.items():
            placed[name] = self.split.placed(array.astype(np.int32).reshape(-1, *array.shape[2:]))
        return placed

    def to_canonical(self, structure: Tree, tree: Tree) -> Tree:
        return {"node_weight": jnp.concatenate([tree["node_weight"][self._parts.row_M], tree["shared_weight"]])}

    def from_canonical(self, structure: Tree, tree: Tree) -> Tree:
        whole: Any = tree["node_weight"]
        # On the host if it is there, so that no device holds all nodes.
        space: Any = np if isinstance(whole, np.ndarray) else jnp
        node_R = self._parts.node_PR.ravel()
        rows_RD = whole[np.maximum(node_R, 0)]
        own_RD = space.where((node_R < 0)[:, None], space.zeros_like(rows_RD), rows_RD)
        shared_SD = whole[len(self._parts.row_M) :]
        return {"node_weight": self.split.placed(own_RD), "shared_weight": self.split.copied(shared_SD)}

    def _over(
        self, compute: Callable[..., Any], params: Tree, structure: Tree, *by_token: Array, out: Any = EVERYWHERE
    ) -> Any:
        """Return `compute(params, own, *by_token)` on every device, where `own` is the structure of its part."""
        rows = P(self.split.axis)
        own = {name: structure[name] for name in _BY_PART}
        nodes = {"node_weight": rows, "shared_weight": EVERYWHERE}
        specs = nodes, dict.fromkeys(own, rows), *[EVERYWHERE] * len(by_token)
        return self.split.over(compute, specs, out)(params, own, *by_token)

    # Losses.
    def _nll(self, params: Tree, structure: Tree, hidden_ND: Array, targets_N: Array) -> Array:
        def compute(
            params: Tree, own: Tree, hidden_ND: Array, turns_NA: Array, part_N: Array, number_N: Array
        ) -> Array:
            shared_N = _shared_nll(params["shared_weight"], hidden_ND, turns_NA)
            given = params["node_weight"], own, hidden_ND, part_N, number_N
            node_RD, own, hidden_ND, part_N, number_N = aligned(given)
            index_NL, sign_NL, place_N = (own[name][number_N] for name in ("index", "sign", "place"))
            is_own_N1 = (part_N == lax.axis_index(self.split.axis))[:, None]
            paths = Paths(index_NL, jnp.where(is_own_N1, sign_NL, 0), place_N)
            return shared_N + lax.psum(self._of_tree.path_nll(hidden_ND, node_RD, paths), self.split.axis)

        turns_NA = structure["turns"][structure["exit"][targets_N]]
        where = turns_NA, structure["part"][targets_N], structure["number"][targets_N]
        return self._over(compute, params, structure, hidden_ND, *where)

    def _mean_log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        def compute(params: Tree, own: Tree, hidden_ND: Array, below_2S: Array) -> Array:
            shared_N = sum_of_turns(node_scores(params["shared_weight"], hidden_ND), below_2S)
            node_RD, below_R2, hidden_ND = aligned((params["node_weight"], own["words_below"], hidden_ND))
            own_N = sum_of_turns(node_scores(node_RD, hidden_ND), below_R2.T)
            return (shared_N + lax.psum(own_N, self.split.axis)) / self.spec.vocab

        def of_block(hidden_BD: Array) -> Array:
            return self._over(compute, params, structure, hidden_BD, structure["shared_words_below"])

        return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND)

    def _entropy(self, params: Tree, structure: Tree, hidden_ND: Array, softcap: float | None) -> Array:
        def compute(params: Tree, own: Tree, hidden_ND: Array) -> Array:
            log_probs_NW = self._own_log_probs(params, own, hidden_ND, LOWEST)
            return lax.psum(objectives.entropy(log_probs_NW), self.split.axis)

        return self._over(compute, params, structure, hidden_ND)

    # Decoding.
    def _own_log_probs(self, params: Tree, own: Tree, hidden_ND: Array, padding: float = -jnp.inf) -> Array:
        """Return the (N, W) log-probabilities of this device's words, level by level from the root."""
        params, own, hidden_ND = aligned((params, own, hidden_ND))
        scores = [node_scores(params[name], hidden_ND) for name in ("node_weight", "shared_weight")]
        scores_JN = jnp.concatenate(scores)
        # All turns before the first level, as XLA takes several times as long to compile sigmoids in each.
        turns_J2N = jnp.stack([jax.nn.log_sigmoid(scores_JN), jax.nn.log_sigmoid(-scores_JN)], axis=1)
        prefix_XN = aligned((jnp.zeros((1, hidden_ND.shape[0]), scores_JN.dtype), scores_JN))[0]
        made, begin = [], 0
        for level in self._parts.levels:
            end = begin + level.node_PB.shape[1]
            above_BN = prefix_XN[own["level_place"][begin:end]]
            prefix_B2N = above_BN[:, None] + turns_J2N[own["level_node"][begin:end]]
            prefix_XN = prefix_B2N.reshape(-1, hidden_ND.shape[0])
            made.append(prefix_XN)
            begin = end
        log_probs_NW = jnp.concatenate(made)[own["leaf"]].T
        return jnp.where(own["word"] < self.spec.vocab, log_probs_NW, padding)

    def _log_probs(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        log_probs_NX = self._over(self._own_log_probs, params, structure, hidden_ND, out=P(None, self.split.axis))
        return log_probs_NX[:, structure["part"] * self._parts.word_PW.shape[1] + structure["number"]]

    def _search(self, params: Tree, structure: Tree, hidden_ND: Array, k: int) -> tuple[Array, Array, Array]:
        def compute(params: Tree, own: Tree, hidden_ND: Array) -> tuple[Array, Array]:
            log_probs_NW = self._own_log_probs(params, own, hidden_ND)
            # The words of a device are ascending, so that ties go to the lower id.
            values_NJ, number_NJ = top_k(log_probs_NW, min(k, log_probs_NW.shape[1]))
            return best_by_id(self.split.gathered(values_NJ), self.split.gathered(own["word"][number_NJ]), k)

        found = self._over(compute, params, structure, hidden_ND, out=(EVERYWHERE, EVERYWHERE))
        return *found, jnp.ones(hidden_ND.shape[0], jnp.float32)

    def _sample(self, params: Tree, structure: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
        """Draw (N,) words: every device takes the turns at the shared nodes, and one takes those below."""

        def compute(params: Tree, own: Tree, hidden_ND: Array, uniforms_NU: Array) -> Array:
            params, own, hidden_ND, uniforms_NU = aligned((params, own, hidden_ND, uniforms_NU))
            node_RD, word_W = params["node_weight"], own["word"]
            tree = _OwnTree(node_RD, params["shared_weight"], own["children"])
            leaf_N = descend.sample(hidden_ND.astype(node_RD.dtype), tree, uniforms_NU)
            word_N = word_W[jnp.minimum(leaf_N, len(word_W) - 1)]
            is_own_N = (leaf_N < len(word_W)) & (word_N < self.spec.vocab)
            return lax.psum(jnp.where(is_own_N, word_N, 0), self.split.axis)

        return self._over(compute, params, structure, hidden_ND, uniforms_NU)


def _shared_nll(shared_SD: Array, hidden_ND: Array, turns_NA: Array) -> Array:
    """Return the (N,) sums of -log sigma(sign x r.h) over turns at shared nodes, as in `PaddedParts.turns_XA`.

    One dense product scores the nodes. Unlike sums over pairs of a token and a node, it has the same gradient on every
    device to the last bit, so that the nodes stay equal.
    """
    scores_NS = product(hidden_ND, shared_SD)
    scores_NA = jnp.take_along_axis(scores_NS, jnp.maximum(jnp.abs(turns_NA) - 1, 0), axis=1)
    log_turns_NA = jax.nn.log_sigmoid(jnp.where(turns_NA > 0, scores_NA, -scores_NA))
    return -jnp.where(turns_NA == 0, 0, log_turns_NA).sum(axis=1)


LAYER = ParallelTree
