"""Self-organized hierarchical softmax in PyTorch. See `impls/on_numpy/methods/sohsm.py` for the definition."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from vocabench.impls import cpp
from vocabench.impls.cpp import CPP
from vocabench.impls.forms import Form
from vocabench.impls.on_numpy.methods import sohsm
from vocabench.impls.on_torch import inputs, objectives
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.losses import nll_of_products
from vocabench.impls.on_torch.ops import cpp_kernels, products
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, Tensors, at_least_float32, draw
from vocabench.impls.on_torch.tracing import is_tracing
from vocabench.impls.on_torch.two_level import cluster_softmax, decoding, statistics
from vocabench.impls.on_torch.two_level.words import WordRows, WordsByCluster, empty_slots
from vocabench.impls.spec import LayerSpec
from vocabench.impls.structures import clusters
from vocabench.impls.structures.statistics import statistics_dtype


class SelfOrganizedHierarchicalSoftmax(OutputLayer):
    """log P(w | h) = log softmax(U_c h_c)[c(w)] + log softmax over the words of c(w) of (U_w h_w)[w] (Shen et al.
    2017).

    Parameters: `cluster_projection` and `word_projection` (D, D), unless `projection` is "none"; `cluster_weight`
    (C, D); `word_weight` (C, S, D), words by cluster and slot with zeros in empty slots, or (V, D), words by cluster
    end to end if the requested form is one of `cluster_softmax.END_TO_END`; with `bias` also `cluster_bias` (C,) and
    `word_bias` (C, S) or (V,). Buffers: `cluster` and `slot` (V,) of each word; `word` (C, S) of each slot; and,
    derived from these, `size` (C,), the number of words of each cluster.

    A layer that reorganizes also has the buffers `statistics` (V, C), `seen` (V,), how often each word was a target,
    and `reorganizations` (). Training calls `training_loss` for each batch, or `observe` with the batch's cluster
    log-probabilities, and `reorganize` now and then: it gives each word a new cluster and moves the word's vector,
    bias and optimizer state.
    """

    cluster: Tensor
    slot: Tensor
    word: Tensor
    size: Tensor
    statistics: Tensor
    seen: Tensor
    reorganizations: Tensor
    _frequency_V: Tensor
    cluster_weight: Tensor
    word_weight: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        dtype = TORCH_DTYPES[spec.dtype]
        self.limits = sohsm.limits(spec.counts, spec.options)
        self.width = clusters.slab_width(self.limits.words)
        self._last_rows: WordRows | None = None
        self._in_slab = self._requested not in cluster_softmax.END_TO_END
        for name, shape in spec.parameter_shapes().items():
            size = self._shape(shape) if name in self._BY_ROW else shape
            self.register_parameter(name, nn.Parameter(torch.zeros(size, dtype=dtype)))
        self.register_buffer("cluster", torch.empty(spec.vocab, dtype=torch.int64))
        self.register_buffer("slot", torch.empty(spec.vocab, dtype=torch.int64), persistent=False)
        word_CS = torch.empty(self.limits.clusters, self.width, dtype=torch.int64)
        self.register_buffer("word", word_CS, persistent=False)
        self.register_buffer("size", torch.empty(self.limits.clusters, dtype=torch.int64), persistent=False)
        self.register_load_state_dict_post_hook(_after_loading)
        if self.reorganizes:
            kept_in = getattr(torch, statistics_dtype(spec.vocab, self.limits.clusters).name)
            self.register_buffer("statistics", torch.zeros(spec.vocab, self.limits.clusters, dtype=kept_in))
            self.register_buffer("seen", torch.zeros(spec.vocab, dtype=torch.int64))
            self.register_buffer("reorganizations", torch.zeros((), dtype=torch.int64))
            frequency_V = np.maximum(spec.counts, 1).astype(np.float32)
            self.register_buffer("_frequency_V", torch.from_numpy(frequency_V), persistent=False)
        self._smoothing = str(spec.options["smoothing"])
        self.process_group: distributed.ProcessGroup | None = None
        self._log_cluster_NC: Tensor | None = None  # of the batch that `training_loss` records
        self._place(spec.structure["cluster"])

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        slots = clusters.slab_width(sohsm.limits(spec.counts, spec.options).words)
        return cluster_softmax.forms(slots, spec.dim, TORCH_DTYPES[spec.dtype])

    @property
    def form(self) -> Form:
        return self._requested or cluster_softmax.preferred(self._forms, self.word_weight)

    @property
    def reorganizes(self) -> bool:
        return int(str(self.spec.options["interval"])) > 0

    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        cluster_nll_N, word_nll_N = self._nll_parts(hidden_ND, targets_N)
        return cluster_nll_N + word_nll_N

    def _nll_parts(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (N,) negative log-likelihoods of clusters, and of targets given their cluster (equations 5, 6)."""
        cluster_N, slot_N = self._places(targets_N)
        if self._log_cluster_NC is None:
            cluster_nll_N = nll_of_products(*self._cluster_factors(hidden_ND), cluster_N, kernels=self.form == CPP)
        else:  # both use the same log-probabilities of clusters
            log_cluster_NC = self.cluster_log_probs(hidden_ND)
            self._log_cluster_NC = log_cluster_NC.detach()
            cluster_nll_N = F.nll_loss(log_cluster_NC, cluster_N, reduction="none")
        return cluster_nll_N, self._in_cluster_nll(hidden_ND, cluster_N, slot_N)

    def training_loss(self, hidden: Tensor, targets: Tensor, **options: Any) -> Tensor:
        """Return the training loss, and `observe` its batch; padding changes no statistics."""
        if not self.reorganizes:
            return super().training_loss(hidden, targets, **options)
        self._log_cluster_NC = self.statistics.new_empty(0, self.limits.clusters, dtype=torch.float32)
        try:
            loss = self(hidden, targets, **options)
            targets_N = targets.reshape(-1).long()
            ignored = options.get("ignore_index", -100)
            self.observe(self._log_cluster_NC, targets_N.masked_fill(targets_N == ignored, -1))
        finally:
            self._log_cluster_NC = None
        return loss

    def _places(self, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        return cluster_softmax.places(self.cluster, self.slot, targets_N, self.form)

    def _in_cluster_nll(self, hidden_ND: Tensor, cluster_N: Tensor, slot_N: Tensor) -> Tensor:
        target = cluster_N, slot_N, self._rows
        (word_hidden_ND,) = self._projected(hidden_ND, "word_projection")
        return cluster_softmax.in_cluster_nll(word_hidden_ND, self.word_weight, self._word_bias, *target, self.form)

    def cluster_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return (N, C) log P(c | h)."""
        logits_NC = products.linear(*self._cluster_factors(hidden_ND), kernels=self.form == CPP)
        return F.log_softmax(at_least_float32(logits_NC), dim=1)

    def _scores(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N, C, S) scores of all words within their clusters, -inf in empty slots."""
        (word_hidden_ND,), rows = self._projected(hidden_ND, "word_projection"), self._rows
        scores_NF = at_least_float32(products.linear(word_hidden_ND, rows.flat(self.word_weight)))
        if self._word_bias is not None:
            scores_NF = scores_NF + rows.flat(self._word_bias)
        return rows.by_slot(scores_NF).masked_fill(rows.empty_CS, -torch.inf)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        log_cluster_NC, scores_NCS = self.cluster_log_probs(hidden_ND), self._scores(hidden_ND)
        log_sum_NC = torch.logsumexp(scores_NCS, dim=2)
        # The sum of an empty cluster is -inf, and no word reads it.
        joint_NCS = scores_NCS + (log_cluster_NC - log_sum_NC)[:, :, None]
        return joint_NCS.flatten(1)[:, self.cluster * self.width + self.slot]

    def _entropy(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        """Return the (N,) entropies: that of the clusters, and the mean of those of the words within a cluster."""
        log_cluster_NC = self.cluster_log_probs(hidden_ND)
        within_NC = objectives.entropy_within(self._scores(hidden_ND))
        return (log_cluster_NC.exp() * (within_NC - log_cluster_NC)).sum(dim=1)

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words, and the (N,) share of clusters expanded."""
        words = self._words
        if words.form != CPP or is_tracing() or not cpp.projects_fastest(len(hidden_ND)):
            word_hidden_ND, log_cluster_NC = self._levels(hidden_ND)
            return decoding.search(word_hidden_ND, log_cluster_NC, words, k)
        upper = [getattr(self, name, None) for name in sohsm.UPPER_LEVEL]
        projected = sohsm.projected(str(self.spec.options["projection"]))
        lower = words.vectors, words.bias, words.word_CS, words.rows
        return cpp_kernels.likeliest_of_hidden(hidden_ND.to(words.vectors.dtype), projected, upper, *lower, k)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values and ids (N, K) of the k likeliest words of the `width` likeliest clusters."""
        return decoding.beam(*self._levels(hidden_ND), self._words, k, width)

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        """Return (N,) words: the first uniform draws a cluster, the second one of its words."""
        word_hidden_ND, log_cluster_NC = self._levels(hidden_ND)
        cluster_N = draw(log_cluster_NC.exp(), uniforms_NU[:, 0])
        return decoding.sample(word_hidden_ND, cluster_N, self._words, uniforms_NU[:, 1])

    @property
    def _rows(self) -> WordRows:
        if is_tracing():
            return WordRows.of(self.size, self.width, in_slab=self._in_slab)
        if self._last_rows is None or self._last_rows.size_C is not self.size:  # also after the layer has moved
            self._last_rows = WordRows.of(self.size, self.width, in_slab=self._in_slab)
        return self._last_rows

    @property
    def _words(self) -> WordsByCluster:
        form = cluster_softmax.form_to_decode(self.form, self.word_weight)
        return WordsByCluster(self.word_weight, self._word_bias, self.word, self._rows, form)

    def _levels(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (N, D) factors of the products with words, and (N, C) log P(c | h)."""
        cluster_hidden_ND, word_hidden_ND = self._projected(hidden_ND, "cluster_projection", "word_projection")
        bias_C = getattr(self, "cluster_bias", None)
        logits_NC = products.linear(cluster_hidden_ND, self.cluster_weight, bias_C, kernels=self.form == CPP)
        return word_hidden_ND.to(self.word_weight.dtype), F.log_softmax(at_least_float32(logits_NC), dim=1)

    def _projected(self, hidden_ND: Tensor, *names: str) -> list[Tensor]:
        """Return the hidden vectors as each of the named projections maps them."""
        kind, projected = self.spec.options["projection"], []
        for name in names:
            weight_DD = self._projection(name)
            mapped_ND = hidden_ND
            if weight_DD is not None:
                mapped_ND = products.linear(hidden_ND, weight_DD, kernels=self.form == CPP)
                mapped_ND = mapped_ND if kind == "linear" else F.relu(mapped_ND)
                if kind not in ("linear", "relu"):
                    mapped_ND = torch.add(hidden_ND, mapped_ND, alpha=sohsm.RECTIFIED)
            projected.append(mapped_ND)
        return projected

    def _projection(self, name: str) -> Tensor | None:
        """Return the weight of a projection, or None where the layer has none of this name."""
        return getattr(self, name, None)

    def _cluster_factors(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the hidden vectors, the weight and the bias that the logits of clusters are computed from."""
        (projected_ND,) = self._projected(hidden_ND, "cluster_projection")
        return projected_ND, self.cluster_weight, getattr(self, "cluster_bias", None)

    @property
    def _word_bias(self) -> Tensor | None:
        return getattr(self, "word_bias", None)

    # Stored by cluster here, and in vocabulary order in the canonical form.
    _BY_ROW = frozenset({"word_weight", "word_bias"})

    @property
    def _row_V(self) -> Tensor:
        """Row of each word."""
        return self._rows.start_C[self.cluster] + self.slot

    def word_vectors(self, ids: Tensor) -> Tensor:
        rows, ids_N = self._rows, ids.flatten()
        cluster_N, slot_N = (array_V.index_select(0, ids_N) for array_V in (self.cluster, self.slot))
        return F.embedding((rows.start_C[cluster_N] + slot_N).view(ids.shape), rows.flat(self.word_weight))

    def to_canonical(self, tensors: Tensors) -> Tensors:
        rows, row_V = self._rows, self._row_V
        return {name: rows.flat(value)[row_V] if name in self._BY_ROW else value for name, value in tensors.items()}

    def from_canonical(self, tensors: Tensors) -> Tensors:
        return {name: self._to_rows(value) if name in self._BY_ROW else value for name, value in tensors.items()}

    def _to_rows(self, by_word_V: Tensor) -> Tensor:
        by_row = by_word_V.new_zeros(self._shape(by_word_V.shape))
        self._rows.flat(by_row)[self._row_V] = by_word_V
        return by_row

    def _shape(self, shape: Sequence[int]) -> Sequence[int]:
        """Return the shape by row of an array (V, ...) by word."""
        return (self.limits.clusters, self.width, *shape[1:]) if self._in_slab else shape

    def _place(self, cluster_V: NDArray[np.int64]) -> None:
        slot_V = clusters.slots(cluster_V, self.limits.clusters)
        word_CS = clusters.words_by_slot(cluster_V, slot_V, self.limits.clusters, self.width, empty=self.spec.vocab)
        for buffer, array in ((self.cluster, cluster_V), (self.slot, slot_V), (self.word, word_CS)):
            buffer.copy_(torch.from_numpy(array))
        self._count_words()

    def _count_words(self) -> None:
        self.size.copy_((self.word < self.spec.vocab).sum(dim=1))
        self._last_rows = None

    @torch.no_grad()
    def observe(self, log_cluster_NC: Tensor, targets_N: Tensor) -> None:
        """Update the statistics (equation 9) with one batch; with those of all processes in `torch.distributed`.

        Args:
            log_cluster_NC: The result of `cluster_log_probs` for the batch's hidden vectors.
            targets_N: The targets; those outside the vocabulary change nothing.
        """
        if distributed.is_available() and distributed.is_initialized():
            log_cluster_NC, targets_N = statistics.joined(log_cluster_NC, targets_N, self.process_group)
        if len(targets_N):
            statistics.update(self.statistics, self.seen, log_cluster_NC, targets_N, self._frequency_V, self._smoothing)

    @torch.no_grad()
    def reorganize(
        self, optimizer: torch.optim.Optimizer | None = None, *, seed: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Organize the words into new clusters by algorithm 1, from the statistics.

        Word vectors and biases move with their words, and so does their state in `optimizer`. Processes of
        `torch.distributed` take over the clusters of the first, and all have to call.
        """
        if not self.reorganizes:
            return super().reorganize(optimizer, seed=seed)
        inputs.check_local(self.word_weight, self.spec.method)
        arrays = self._moving(optimizer)
        before_V = self.cluster.cpu().numpy().copy()
        self.reorganizations += 1
        if not self.seen.any():
            return before_V, before_V
        rng = np.random.default_rng([self.spec.seed if seed is None else seed, 3, int(self.reorganizations)])
        after_V = clusters.organize(self.statistics.cpu().numpy(), self.spec.counts, self.limits, rng)
        if distributed.is_available() and distributed.is_initialized():
            shared_V = torch.from_numpy(after_V).to(self.cluster.device)
            distributed.broadcast(shared_V, group=self.process_group, group_src=0)
            after_V = shared_V.cpu().numpy()
        before, old_row_V = self._rows, self._row_V
        self._place(after_V)
        row_V = self._row_V
        for array in arrays:
            by_row = before.flat(array)
            by_word_V = by_row[old_row_V]
            by_row.zero_()[row_V] = by_word_V
        return before_V, after_V

    def _moving(self, optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
        """Return the arrays by row that move with their words: parameters and their state in the optimizer."""
        arrays = []
        for name in self._BY_ROW & self._parameters.keys():
            parameter = self.get_parameter(name)
            state = {} if optimizer is None else optimizer.state.get(parameter, {})
            slots = [value for value in state.values() if isinstance(value, Tensor)]
            moving = [value for value in slots if clusters.moves_along(name, value.shape, parameter.shape)]
            arrays += [parameter.detach(), *moving]
        return arrays

    def present_spec(self) -> LayerSpec:
        structure = {**self.spec.structure, "cluster": self.cluster.cpu().numpy()}
        return replace(self.spec, structure=structure)

    def resize(self, counts: ArrayLike, **options: object) -> Self:
        """Return a layer for another vocabulary, which starts from the present clusters without statistics."""
        return super().resize(counts, **{"interval": self.spec.options["interval"], **options})

    def restore_derived_buffers(self) -> None:
        if not self.cluster.is_meta:
            super().restore_derived_buffers()
            self._place(self.cluster.cpu().numpy())

    def _adopts_structure(self) -> bool:
        return True

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self._in_slab:  # a state does not depend on the form
            for name in self._BY_ROW & self._parameters.keys():
                by_row = destination[prefix + name]
                slab = by_row.new_zeros(self.limits.clusters, self.width, *by_row.shape[1:])
                slab[~self._rows.empty_CS] = by_row
                destination[prefix + name] = slab

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Take over the clusters, and words in the layout of this form."""
        if self.reorganizes:
            self._reset_missing(state_dict, prefix)
        if not self._in_slab and prefix + "cluster" in state_dict:
            cluster_V = state_dict[prefix + "cluster"]
            empty_CS = empty_slots(torch.bincount(cluster_V, minlength=self.limits.clusters), self.width)
            for name in self._BY_ROW & self._parameters.keys():
                slab = state_dict.get(prefix + name)
                if slab is not None and slab.shape[:2] == empty_CS.shape:
                    state_dict[prefix + name] = slab[~empty_CS.to(slab.device)]
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    @torch.no_grad()
    def _reset_missing(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Start statistics anew that a state does not hold. A strict load then fails, without saying what to do."""
        missing = [name for name in ("statistics", "seen", "reorganizations") if prefix + name not in state_dict]
        if missing:
            advice = "a load with strict=False starts them anew"
            warnings.warn(f"state of {self.spec.method} has no {', '.join(missing)}: {advice}", stacklevel=2)
        for name in missing:
            getattr(self, name).zero_()


def _after_loading(layer: SelfOrganizedHierarchicalSoftmax, incompatible_keys: object) -> None:
    """Derive from the loaded clusters what follows from them."""
    if not layer.cluster.is_meta:
        layer._place(layer.cluster.cpu().numpy())


LAYER = SelfOrganizedHierarchicalSoftmax
