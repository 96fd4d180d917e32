"""One level of a class-based layer: a softmax within each group, for groups of very different sizes.

Groups of about the same size share a slab (`impls/structures/shelves.py`). Each slab is the lower level of a two-level
layer: `cluster_softmax.py` trains it, and `expand.py` decodes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from vocabench.impls.forms import Form
from vocabench.impls.on_tensorflow import objectives
from vocabench.impls.on_tensorflow.ops.tensors import Tensor, Tensors, best_by_id, draw
from vocabench.impls.on_tensorflow.two_level import cluster_softmax, expand
from vocabench.impls.spec import Shapes
from vocabench.impls.structures.shelves import Shelves


class Level:
    """log P(member | group, h) of M members.

    Weights for each shelf b: `{name}_weight{b}` (G, S, D) and, with biases, `{name}_bias{b}` (G, S), zero in empty
    slots.

    Args:
        name: Name of the level, the prefix of its weights.
        shelves: The members by shelf, group and slot.
        value_of: Returns the value of a weight by name.
        form: Returns the form of the products with the members, one of `cluster_softmax.forms`.
        kinds: "weight" and, with biases, "bias".
    """

    def __init__(
        self,
        name: str,
        shelves: Shelves,
        value_of: Callable[[str], Tensor],
        form: Callable[[], Form | None],
        kinds: Sequence[str],
    ) -> None:
        self._form_of, self._kinds = form, kinds
        self.name, self.shelves, self._value_of = name, shelves.shelves, value_of
        self.group, self._shelf, self._row, self._slot = (
            tf.constant(array, tf.int32) for array in (shelves.group_M, shelves.shelf_M, shelves.row_M, shelves.slot_M)
        )
        self._place_M = tf.constant(shelves.place_M, tf.int32)
        self._members = [tf.constant(shelf.member_GS, tf.int32) for shelf in self.shelves]

    def nll(self, hidden_ND: Tensor, member_N: Tensor) -> Tensor:
        """Return (N,) -log P(member | its group, h)."""
        shelf_N, row_N, slot_N = (tf.gather(array, member_N) for array in (self._shelf, self._row, self._slot))
        tokens, count = cluster_softmax.count(member_N), len(self.shelves)
        if count == 1:
            return self._nll_on_shelf(0, hidden_ND, row_N, slot_N, tokens)
        # Distribute the tokens over the shelves, and collect the results.
        hidden, row, slot = (tf.dynamic_partition(array, shelf_N, count) for array in (hidden_ND, row_N, slot_N))
        parts = []
        for number, shelf in enumerate(self.shelves):
            parts.append(self._nll_on_shelf(number, hidden[number], row[number], slot[number], shelf.share * tokens))
        return tf.dynamic_stitch(tf.dynamic_partition(tf.range(tf.size(shelf_N)), shelf_N, count), parts)

    def _nll_on_shelf(
        self, number: int, hidden_RD: Tensor, row_R: Tensor, slot_R: Tensor, tokens: float | Tensor
    ) -> Tensor:
        words = self._weight(number, "weight"), self._weight(number, "bias"), self._members[number]
        return cluster_softmax.in_cluster_nll(hidden_RD, *words, row_R, slot_R, self._form_of(), tokens)

    def log_within(self, hidden_ND: Tensor) -> Tensor:
        """Return (N, M) log P(member | its group, h)."""
        parts = []
        for number, shelf in enumerate(self.shelves):
            log_within_NGS = tf.nn.log_softmax(self._scores(hidden_ND, number))
            parts.append(tf.reshape(log_within_NGS, [-1, shelf.member_GS.size]))
        return tf.gather(tf.concat(parts, axis=1), self._place_M, axis=1)

    def mean_entropy(self, hidden_ND: Tensor, log_group_NC: Tensor) -> Tensor:
        """Return the (N,) means over groups of the entropies in nats of their members."""
        means = []
        for number, shelf in enumerate(self.shelves):
            group_NG = tf.exp(tf.gather(log_group_NC, shelf.groups_G, axis=1))
            within_NG = objectives.entropy_within(self._scores(hidden_ND, number))
            means.append(tf.reduce_sum(group_NG * within_NG, axis=1))
        return tf.add_n(means)

    def _scores(self, hidden_ND: Tensor, number: int) -> Tensor:
        """Return the (N, G, S) scores of the members of a shelf's groups, very low in empty slots."""
        return cluster_softmax.all_scores(hidden_ND, *self._words(number)[:3])

    def search(self, hidden_ND: Tensor, log_group_NC: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and members (N, K) of the k highest log P(group, member | h), and the (N,) share of groups
        expanded.
        """
        results, expanded_N = [], tf.zeros(tf.shape(hidden_ND)[:1])
        for number, shelf in enumerate(self.shelves):
            log_group_NG = tf.gather(log_group_NC, shelf.groups_G, axis=1)
            *best, share_N = expand.search(hidden_ND, log_group_NG, self._words(number), min(k, shelf.members))
            results.append(best)
            expanded_N += share_N * len(shelf.groups_G)
        return *_best_of(results, k), expanded_N / sum(len(shelf.groups_G) for shelf in self.shelves)

    def beam(self, hidden_ND: Tensor, log_group_NC: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and members (N, K) of the k likeliest members of the `width` likeliest groups."""
        log_group_NC = followed(log_group_NC, width)
        results = []
        for number, shelf in enumerate(self.shelves):
            log_group_NG = tf.gather(log_group_NC, shelf.groups_G, axis=1)
            results.append(expand.beam(hidden_ND, log_group_NG, self._words(number), min(k, shelf.members), width))
        return _best_of(results, k)

    def sample(self, hidden_ND: Tensor, group_N: Tensor, uniforms_N: Tensor) -> Tensor:
        """Return (N,) members drawn from each token's group."""
        member_N = tf.zeros_like(group_N)
        for number, shelf in enumerate(self.shelves):
            groups_G = tf.constant(shelf.groups_G, tf.int32)
            row_N = tf.minimum(tf.searchsorted(groups_G, group_N), len(shelf.groups_G) - 1)
            rows_R1 = tf.where(tf.equal(tf.gather(groups_G, row_N), group_N))
            rows_R = rows_R1[:, 0]
            row_R = tf.gather(row_N, rows_R)
            in_group_RS = self._words(number).in_cluster(hidden_ND, tf.cast(rows_R, tf.int32), row_R)
            slot_R = draw(tf.exp(in_group_RS), tf.gather(uniforms_N, rows_R))
            drawn_R = tf.gather_nd(self._members[number], tf.stack([row_R, slot_R], axis=1))
            member_N = tf.tensor_scatter_nd_update(member_N, rows_R1, drawn_R)
        return member_N

    def inner_shapes(self, dim: int) -> Shapes:
        """Return the shapes of the weights as they are stored."""
        shapes: Shapes = {}
        for number, shelf in enumerate(self.shelves):
            sizes = {"weight": (*shelf.member_GS.shape, dim), "bias": shelf.member_GS.shape}
            shapes |= {f"{self.name}_{kind}{number}": sizes[kind] for kind in self._kinds}
        return shapes

    def members_by_weight(self) -> Tensors:
        """Return the member (G, S) in each slot of each weight, negative where the slot is empty."""
        return {f"{self.name}_weight{number}": member_GS for number, member_GS in enumerate(self._members)}

    def to_canonical(self, tensors: Tensors) -> Tensors:
        """Return weights (M, D) and biases (M,), or their gradients or slots, in the order of the members."""
        canonical = {}
        for kind in self._kinds:
            slabs = [tensors[f"{self.name}_{kind}{number}"] for number in range(len(self.shelves))]
            flat = [tf.reshape(slab, [-1, *slab.shape[2:]]) for slab in slabs]
            canonical[f"{self.name}_{kind}"] = tf.gather(tf.concat(flat, axis=0), self._place_M)
        return canonical

    def from_canonical(self, tensors: Tensors) -> Tensors:
        """Return the slabs of all shelves, from arrays in the order of the members."""
        stored, sizes = {}, [shelf.member_GS.size for shelf in self.shelves]
        for kind in self._kinds:
            by_member = tensors[f"{self.name}_{kind}"]
            flat = tf.scatter_nd(self._place_M[:, None], by_member, [sum(sizes), *by_member.shape[1:]])
            parts = tf.split(flat, sizes)
            for number, (part, shelf) in enumerate(zip(parts, self.shelves, strict=True)):
                stored[f"{self.name}_{kind}{number}"] = tf.reshape(part, [*shelf.member_GS.shape, *by_member.shape[1:]])
        return stored

    def _weight(self, number: int, kind: str) -> Tensor:
        return self._value_of(f"{self.name}_{kind}{number}")

    def _words(self, number: int) -> expand.WordsByCluster:
        weight_GSD, bias_GS = tf.convert_to_tensor(self._weight(number, "weight")), self._weight(number, "bias")
        bias_GS = None if bias_GS is None else tf.convert_to_tensor(bias_GS)
        return expand.WordsByCluster(weight_GSD, bias_GS, self._members[number], self._form_of())


def followed(log_group_NC: Tensor, width: int) -> Tensor:
    """Return `log_group_NC` with -inf for all but the `width` likeliest groups of each row."""
    groups = log_group_NC.shape[1]
    if width >= groups:
        return log_group_NC
    chosen_NW = tf.math.top_k(log_group_NC, width).indices
    is_chosen_NC = tf.reduce_any(tf.one_hot(chosen_NW, groups, True, False, dtype=tf.bool), axis=1)
    return tf.where(is_chosen_NC, log_group_NC, -tf.cast(float("inf"), log_group_NC.dtype))


def _best_of(results: list, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of the results of all shelves."""
    if len(results) == 1:
        return results[0][0], results[0][1]
    values_NX, ids_NX = (tf.concat(parts, axis=1) for parts in zip(*results, strict=True))
    return best_by_id(values_NX, ids_NX, k)
