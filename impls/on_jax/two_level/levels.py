"""One level of a class-based layer: a softmax within each group, for groups of very different sizes.

Groups of similar size share a slab (`impls/structures/shelves.py`). Each slab is the lower level of a two-level layer:
`cluster_softmax.py` computes it in training, `expand.py` in decoding.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from vocabench.impls.forms import Form
from vocabench.impls.on_jax import objectives
from vocabench.impls.on_jax.device import put
from vocabench.impls.on_jax.ops.arrays import Array, Tree, draw
from vocabench.impls.on_jax.ops.topk import best_by_id, top_k
from vocabench.impls.on_jax.two_level import cluster_softmax, expand
from vocabench.impls.structures.shelves import Shelves


class Level:
    """log P(member | group, h) of M members.

    Parameters, for each shelf b: `{name}_weight{b}` (G, S, D) and, with biases, `{name}_bias{b}` (G, S), zero in empty
    slots.

    Structure: `{name}_group`, `_shelf`, `_row`, `_slot` and `_place` (M,) of each member; for each shelf b
    `{name}_member{b}` (G, S), -1 in empty slots, and `{name}_groups{b}` (G,).

    Args:
        name: Prefix of the names of parameters and structure.
        shelves: Where each member is stored.
        form: One of `cluster_softmax.forms`.
    """

    def __init__(self, name: str, shelves: Shelves, form: Form | None) -> None:
        self.form = form
        self.name, self._shelves, self.shelves = name, shelves, shelves.shelves

    def structure(self) -> Tree:
        """Return the arrays that the functions read besides the parameters."""
        whole: dict[str, np.ndarray] = {
            "group": self._shelves.group_M,
            "shelf": self._shelves.shelf_M,
            "row": self._shelves.row_M,
            "slot": self._shelves.slot_M,
            "place": self._shelves.place_M,
        }
        for number, shelf in enumerate(self.shelves):
            whole |= {f"member{number}": shelf.member_GS, f"groups{number}": shelf.groups_G}
        return {f"{self.name}_{key}": put(array, jnp.int32) for key, array in whole.items()}

    def group(self, structure: Tree) -> Array:
        """Return the group (M,) of each member."""
        return structure[f"{self.name}_group"]

    def nll(
        self, params: Tree, structure: Tree, hidden_ND: Array, member_N: Array, inside_N: Array | bool = True
    ) -> Array:
        """Return (N,) -log P(member | its group, h), and 0 for tokens that are not `inside_N`."""
        shelf_N, row_N, slot_N = (structure[f"{self.name}_{key}"][member_N] for key in ("shelf", "row", "slot"))
        total_N = None
        for number, shelf in enumerate(self.shelves):
            nll_N = cluster_softmax.in_cluster_nll(
                hidden_ND,
                params[f"{self.name}_weight{number}"],
                params.get(f"{self.name}_bias{number}"),
                structure[f"{self.name}_member{number}"],
                jnp.where((shelf_N == number) & inside_N, row_N, len(shelf.groups_G)),
                slot_N,
                self.form,
                shelf.share,
            )
            total_N = nll_N if total_N is None else total_N + nll_N
        assert total_N is not None
        return total_N

    def log_within(self, params: Tree, structure: Tree, hidden_ND: Array) -> Array:
        """Return (N, M) log P(member | its group, h)."""
        scores = (self._words(params, structure, number).scores(hidden_ND) for number in range(len(self.shelves)))
        parts = [jax.nn.log_softmax(scores_NGS, axis=2).reshape(hidden_ND.shape[0], -1) for scores_NGS in scores]
        return jnp.concatenate(parts, axis=1)[:, structure[f"{self.name}_place"]]

    def mean_entropy(self, params: Tree, structure: Tree, hidden_ND: Array, log_group_NC: Array) -> Array:
        """Return the (N,) means over groups of the entropies in nats of their members."""
        mean_N = jnp.zeros(hidden_ND.shape[0], log_group_NC.dtype)
        for number in range(len(self.shelves)):
            group_NG = jnp.exp(log_group_NC[:, structure[f"{self.name}_groups{number}"]])
            within_NG = objectives.entropy_within(self._words(params, structure, number).scores(hidden_ND))
            mean_N += (group_NG * within_NG).sum(axis=1)
        return mean_N

    def search(
        self, params: Tree, structure: Tree, hidden_ND: Array, log_group_NC: Array, k: int
    ) -> tuple[Array, Array, Array]:
        """Return values and members (N, K) of the likeliest members, and the (N,) share of groups expanded."""
        best, expanded = [], jnp.zeros(hidden_ND.shape[0], jnp.float32)
        for number, shelf in enumerate(self.shelves):
            log_group_NG = log_group_NC[:, structure[f"{self.name}_groups{number}"]]
            words = self._words(params, structure, number)
            *best_of_shelf, share_N = expand.search(hidden_ND, log_group_NG, words, min(k, shelf.members))
            best.append(best_of_shelf)
            expanded += share_N * len(shelf.groups_G)
        return *_best_of(best, k), expanded / log_group_NC.shape[1]

    def beam(
        self, params: Tree, structure: Tree, hidden_ND: Array, log_group_NC: Array, k: int, width: int
    ) -> tuple[Array, Array]:
        """Return values and members (N, K) of the k likeliest members of the `width` likeliest groups."""
        log_group_NC = followed(log_group_NC, width)
        best = []
        for number, shelf in enumerate(self.shelves):
            log_group_NG = log_group_NC[:, structure[f"{self.name}_groups{number}"]]
            words, most = self._words(params, structure, number), min(k, shelf.members)
            best.append(list(expand.beam(hidden_ND, log_group_NG, words, most, width)))
        return _best_of(best, k)

    def sample(self, params: Tree, structure: Tree, hidden_ND: Array, group_N: Array, uniforms_N: Array) -> Array:
        """Return (N,) members, each drawn from the token's group."""
        token_N, member_N = jnp.arange(hidden_ND.shape[0]), jnp.zeros_like(group_N)
        for number, shelf in enumerate(self.shelves):
            groups_G = structure[f"{self.name}_groups{number}"]
            row_N = jnp.minimum(jnp.searchsorted(groups_G, group_N), len(shelf.groups_G) - 1)
            here_N = groups_G[row_N] == group_N
            words = self._words(params, structure, number)
            in_group_NS = words.in_cluster(hidden_ND, token_N, jnp.where(here_N, row_N, len(shelf.groups_G)))
            drawn_N = words.word_CS[row_N, draw(jnp.exp(in_group_NS), uniforms_N)]
            member_N = jnp.where(here_N, drawn_N, member_N)
        return member_N

    def to_canonical(self, structure: Tree, tree: Tree, kind: str) -> Array:
        """Return (M, D) weights or (M,) biases, or their gradients or optimizer slots, in the order of the members."""
        slabs = [tree[f"{self.name}_{kind}{number}"] for number in range(len(self.shelves))]
        flat = jnp.concatenate([slab.reshape(-1, *slab.shape[2:]) for slab in slabs])
        return flat[structure[f"{self.name}_place"]]

    def from_canonical(self, structure: Tree, by_member: Array, kind: str) -> Tree:
        """Return weights or biases by shelf, or their gradients or optimizer slots, from those by member."""
        slabs, by_member = {}, jnp.asarray(by_member)
        for number in range(len(self.shelves)):
            member_GS = structure[f"{self.name}_member{number}"]
            place_GS = jnp.where(member_GS < 0, len(by_member), member_GS)
            slabs[f"{self.name}_{kind}{number}"] = by_member.at[place_GS].get(mode="fill", fill_value=0)
        return slabs

    def _words(self, params: Tree, structure: Tree, number: int) -> expand.WordsByCluster:
        slab_GSD, bias_GS = params[f"{self.name}_weight{number}"], params.get(f"{self.name}_bias{number}")
        member_GS = structure[f"{self.name}_member{number}"]
        return expand.WordsByCluster(slab_GSD, bias_GS, member_GS, self.form)


def followed(log_group_NC: Array, width: int) -> Array:
    """Return `log_group_NC` with -inf for all but the `width` likeliest groups of each row."""
    if width >= log_group_NC.shape[1]:
        return log_group_NC
    values_NW, chosen_NW = top_k(log_group_NC, width)
    row_N1 = jnp.arange(log_group_NC.shape[0])[:, None]
    return jnp.full_like(log_group_NC, -jnp.inf).at[row_N1, chosen_NW].set(values_NW)


def _best_of(best_of_shelves: list[list[Array]], k: int) -> tuple[Array, Array]:
    """Return the k best of the values and ids of all shelves."""
    if len(best_of_shelves) == 1:
        values_NK, ids_NK = best_of_shelves[0]
        return values_NK, ids_NK
    values_NX, ids_NX = (jnp.concatenate(parts, axis=1) for parts in zip(*best_of_shelves, strict=True))
    return best_by_id(values_NX, ids_NX, k)
