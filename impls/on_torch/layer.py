"""The base of the native PyTorch output layers: an `nn.Module` from hidden vectors to losses and log-probabilities.

The public calls check their arguments, flatten leading axes, and leave the work to the underscored methods, which each
layer implements for (N, D) hidden vectors in the dtype of its parameters and (N,) int64 words of the vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from vocabench.impls import calls, cpp
from vocabench.impls.calls import ALL_WORDS, PLAIN, Objective, Sampling
from vocabench.impls.cpp import CPP
from vocabench.impls.errors import BadInput
from vocabench.impls.forms import CPU, GPU, Form, kind_of, on_device
from vocabench.impls.on_torch import inputs, objectives, sampling
from vocabench.impls.on_torch.canonical import Convertible
from vocabench.impls.on_torch.losses import reduced, weighted
from vocabench.impls.on_torch.ops import cpp_kernels
from vocabench.impls.on_torch.ops.topk import exact_topk
from vocabench.impls.on_torch.tensors import Tensors, at_least_float32, draw
from vocabench.impls.spec import LayerSpec

Reduction = Literal["mean", "sum", "none"]


class OutputLayer(Convertible):
    """Base of the native layers: `loss = layer(hidden, targets)` inside any model.

    `hidden` is (..., D) in any floating dtype and `targets` is (...) in any integer dtype. A layer may store its
    parameters in another layout than their canonical form (`impls/spec.py`). `to_canonical` and `from_canonical`
    convert whole dictionaries of parameters, gradients or optimizer slots.

    Attributes:
        FORMS: The forms that a layer of this class can have, in order of preference for each kind of device.
    """

    FORMS: ClassVar[tuple[Form, ...]] = ()

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self._forms = self.forms(spec)
        self._requested = spec.form_of(self._forms) if spec.form else None
        self._forms_on = {kind: on_device(self._forms, kind) for kind in (CPU, GPU)}

    @classmethod
    def forms(cls, spec: LayerSpec) -> tuple[Form, ...]:
        """Return the forms that a layer of this spec has, in order of preference for each kind of device."""
        return cls.FORMS

    @property
    def form(self) -> Form | None:
        """The requested form, or else the preferred one on the device where the parameters are now."""
        return self._requested if self._requested is not None or not self._forms else self._preferred_form()

    def _preferred_form(self) -> Form:
        """Return the preferred one of the layer's forms on the device where the parameters are now."""
        words = self._main_parameter()
        return next(form for form in self._forms_on[kind_of(words.device.type)] if self._runs(form, words))

    def _main_parameter(self) -> Tensor:
        """Return the parameter whose device and dtype decide on the form."""
        own = next(iter(self._parameters.values()), None)
        return next(self.parameters()) if own is None else own

    def _runs(self, form: Form, parameter: Tensor) -> bool:
        """Return whether the form can compute with this parameter, whose dtype may differ from the spec's by now."""
        return form != CPP or cpp_kernels.runs_on(parameter)

    @property
    def reorganizes(self) -> bool:
        """Whether training moves words to other clusters, as SOHSM's `reorganize` does."""
        return False

    # Public calls.
    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        token_weight: Tensor | None = None,
        z_loss: float = 0.0,
        softcap: float | None = None,
        generator: torch.Generator | None = None,
        **extra: Tensor,
    ) -> Tensor:
        """Compute the training loss: the negative log-likelihood in nats, or another loss of the method.

        A target outside the vocabulary is refused where the host can read it: in eager mode on a CPU. Elsewhere its
        loss is NaN.

        Args:
            hidden: (..., D), any floating dtype; logits and sums are at least float32.
            targets: (...) word ids, or `ignore_index` where a position is padding: it has no loss, no gradient
                and does not count in the mean, whatever `hidden` holds there. The mean over padding alone is 0.
            ignore_index: The target that marks padding.
            reduction: "mean" over the tokens, "sum", or "none" for (...).
            label_smoothing: Share of the uniform distribution in the target distribution (Szegedy et al. 2016).
            token_weight: (...) weights of the losses; the mean is divided by their sum, and is 0 if that is 0.
            z_loss: Coefficient of the squared log-sum-exp of the logits (de Brébisson and Vincent 2016).
            softcap: Replaces the logits by `softcap * tanh(logits / softcap)` (Gemma Team 2024).
            generator: Draws the random inputs that `extra` leaves out; PyTorch's default one of the CPU if None.
            **extra: Random inputs of the loss, as named by `Definition.extra`; most methods have none.

        Returns:
            At least float32.

        Raises:
            BadInput: An argument has the wrong shape, dtype or value, or the method does not define it.
            TypeError: `extra` has a name that the loss does not take.
        """
        hidden_ND, leading = self._flat(hidden)
        targets_N = self._flat_targets(targets, leading)
        if reduction not in calls.REDUCTIONS:
            calls.check_reduction(reduction)
        if type(ignore_index) is not int:
            calls.check_ignore_index(ignore_index)
        objective = PLAIN
        if softcap is not None or not (
            type(label_smoothing) is type(z_loss) is float and label_smoothing == z_loss == 0
        ):
            objective = calls.objective_of(self.spec.definition, label_smoothing, z_loss, softcap)
        weight_N = None if token_weight is None else inputs.check_token_weight(token_weight, leading)
        if extra or self.spec.definition.extra:
            extra = self._checked_extra(extra, leading, generator)
        if not targets_N.size(0):
            return self._loss_of_nothing(hidden, reduction)
        batch = inputs.read_targets(targets_N, self.spec.vocab, ignore_index)
        hidden_ND = inputs.without_padding(hidden_ND, batch.padding_N)
        if objective is PLAIN and weight_N is None and reduction != "none":
            total = self._reduced(hidden_ND, batch.words_N, batch.padding_N, mean=reduction == "mean", **extra)
            return total if batch.outside_N is None else total.masked_fill(batch.outside_N.any(), torch.nan)
        losses_N = inputs.masked(self._objective_losses(hidden_ND, batch.words_N, objective, **extra), batch)
        if weight_N is not None:
            losses_N = weighted(losses_N, weight_N, batch.padding_N, reduction)
        elif reduction != "none":
            losses_N = reduced(losses_N, batch.padding_N, mean=reduction == "mean")
        return losses_N.reshape(leading) if reduction == "none" else losses_N

    def training_loss(self, hidden: Tensor, targets: Tensor, **options: Any) -> Tensor:
        """Return the training loss, as `forward` does. A layer that reorganizes also records statistics of the batch.

        Where `torch.distributed` is initialized, these are the statistics of the batches of all processes.
        """
        return self(hidden, targets, **options)

    def log_probs(self, hidden: Tensor, *, softcap: float | None = None) -> Tensor:
        """Return the (..., V) normalized log-probabilities over the whole vocabulary, at least in float32."""
        hidden_ND, leading = self._flat(hidden)
        softcap = calls.check_softcap(self.spec.definition, softcap)
        if not hidden_ND.size(0):
            return at_least_float32(hidden_ND).new_zeros(*leading, self.spec.vocab)
        return self._capped_log_probs(hidden_ND, softcap).reshape(*leading, self.spec.vocab)

    def target_log_probs(self, hidden: Tensor, targets: Tensor, *, softcap: float | None = None) -> Tensor:
        """Return the (...) exact log-probabilities of the targets, which are words and not padding."""
        hidden_ND, leading = self._flat(hidden)
        targets_N = self._flat_targets(targets, leading)
        objective = Objective(softcap=calls.check_softcap(self.spec.definition, softcap))
        if not targets_N.size(0):
            return self._loss_of_nothing(hidden, "none")
        batch = inputs.read_targets(targets_N, self.spec.vocab, None)
        if objective.softcap is None:
            nll_N = self._nll(hidden_ND, batch.words_N)
        else:
            nll_N = self._objective_losses(hidden_ND, batch.words_N, objective)
        return -inputs.masked(nll_N, batch).reshape(leading)

    def nll_parts(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return (...) summands of the negative log-likelihood, which are reported on their own, the highest first."""
        hidden_ND, leading = self._flat(hidden)
        targets_N = self._flat_targets(targets, leading)
        if not targets_N.size(0):
            return (self._loss_of_nothing(hidden, "none"),)
        batch = inputs.read_targets(targets_N, self.spec.vocab, None)
        parts = self._nll_parts(hidden_ND, batch.words_N)
        return tuple(inputs.masked(part_N, batch).reshape(leading) for part_N in parts)

    def entropy(self, hidden: Tensor, *, softcap: float | None = None) -> Tensor:
        """Return the (...) entropies of the distributions in nats; differentiable, without an (N, V) array."""
        hidden_ND, leading = self._flat(hidden)
        softcap = calls.check_softcap(self.spec.definition, softcap)
        if not hidden_ND.size(0):
            return self._loss_of_nothing(hidden, "none")
        of_block = partial(self._entropy, softcap=softcap)
        return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND).reshape(leading)

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int, *, softcap: float | None = None) -> tuple[Tensor, Tensor]:
        """Return values and ids (..., K) of the k likeliest words: exact, best first, ties by lower id."""
        softcap = calls.check_softcap(self.spec.definition, softcap)
        values, ids, _ = self._found(hidden, k)
        if softcap is None or not ids.numel():
            return values, ids
        hidden_ND = self._flat(hidden)[0]

        def of_block(hidden_BD: Tensor, ids_BK: Tensor) -> Tensor:
            return self._capped_log_probs(hidden_BD, softcap).gather(1, ids_BK)

        return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND, ids.reshape(-1, k)).reshape(ids.shape), ids

    @torch.no_grad()
    def search(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `topk` returns, and the (...) share of clusters or nodes expanded: 1 without bounds."""
        return self._found(hidden, k)

    def _found(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        hidden_ND, leading = self._flat(hidden)
        k = calls.check_count("k", k, self.spec.vocab)
        if not hidden_ND.size(0):
            return *inputs.nothing_found(hidden_ND, leading, k), at_least_float32(hidden_ND).new_zeros(leading)
        values_NK, ids_NK, share_N = self._search(hidden_ND, k)
        if len(leading) == 1:
            return values_NK, ids_NK, share_N
        return values_NK.reshape(*leading, k), ids_NK.reshape(*leading, k), share_N.reshape(leading)

    @torch.no_grad()
    def beam(self, hidden: Tensor, k: int, width: int, levels: int = 1) -> tuple[Tensor, Tensor]:
        """Return values and ids (..., K) of k likely words from the likeliest clusters or prefixes of each level.

        The result is not exact where there are several levels.

        Args:
            hidden: (..., D).
            k: Number of words.
            width: Number of clusters or prefixes that are followed at each level, from k to V.
            levels: Levels of a binary tree that are searched at a time.
        """
        hidden_ND, leading = self._flat(hidden)
        k = calls.check_count("k", k, self.spec.vocab)
        width = calls.check_count("width", width, self.spec.vocab, lowest=k)
        levels = calls.check_levels(levels)
        if not hidden_ND.size(0):
            return inputs.nothing_found(hidden_ND, leading, k)
        values_NK, ids_NK = self._path_beam(hidden_ND, k, width, levels)
        return values_NK.reshape(*leading, k), ids_NK.reshape(*leading, k)

    @torch.no_grad()
    def sample(
        self,
        hidden: Tensor,
        uniforms: Tensor | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        *,
        generator: torch.Generator | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Return (...) words drawn exactly from the distribution, or from what the options leave of it.

        Args:
            hidden: (..., D).
            uniforms: (..., U) numbers in [0, 1), with U = `spec.draws`, as `Layer.sample` describes; drawn if None.
                With options, the first of them takes the first word whose cumulative probability exceeds it: in the
                order of ids, or from the likeliest word on with `top_k` or `top_p`.
            temperature: Divides the log-probabilities, which are then normalized again.
            top_k: Keeps this many of the likeliest words.
            top_p: Of these, keeps the fewest likeliest words whose probabilities sum to at least this (Holtzman et al.
                2020).
            generator: Draws the uniforms if they are left out; PyTorch's default one of the device if None.
            softcap: As in `forward`.
        """
        hidden_ND, leading = self._flat(hidden)
        options = calls.check_sampling(temperature, top_k, top_p, self.spec.vocab)
        softcap = calls.check_softcap(self.spec.definition, softcap)
        if uniforms is None:
            like = at_least_float32(hidden_ND[:0])
            size = (hidden_ND.size(0), self.spec.draws)
            uniforms_NU = torch.rand(size, generator=generator, dtype=like.dtype, device=like.device)
        else:
            uniforms_NU = inputs.check_uniforms(uniforms, leading, self.spec.draws)
        if not hidden_ND.size(0):
            return torch.zeros(leading, dtype=torch.int64, device=hidden_ND.device)
        if options is ALL_WORDS and softcap is None:
            return self._sample(hidden_ND, uniforms_NU).reshape(leading)
        return self._sample_with(hidden_ND, uniforms_NU[:, 0], options, softcap).reshape(leading)

    # Implemented by the layers.
    @abstractmethod
    def _nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) negative log-likelihoods, differentiable."""

    @abstractmethod
    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N, V) normalized log-probabilities over the whole vocabulary."""

    def _reduced(
        self, hidden_ND: Tensor, targets_N: Tensor, padding_N: Tensor | None, *, mean: bool, **extra: Tensor
    ) -> Tensor:
        """Return the sum or mean of the losses without padding. Layers override it where there is a shorter way."""
        return reduced(self._losses(hidden_ND, targets_N, **extra), padding_N, mean=mean)

    def _losses(self, hidden_ND: Tensor, targets_N: Tensor, **extra: Tensor) -> Tensor:
        """Return the (N,) losses that training minimizes."""
        return self._nll(hidden_ND, targets_N)

    def _nll_parts(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, ...]:
        """Return (N,) summands of `_nll`: one for each level that is reported on its own, the highest first."""
        return (self._nll(hidden_ND, targets_N),)

    def _mean_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N,) means over all words of their log-probabilities, differentiable."""
        return objectives.in_blocks(lambda hidden: self._log_probs(hidden).mean(dim=1), self.spec.vocab, hidden_ND)

    # Of layers with one softmax over the vocabulary.
    def _logits(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N, V) logits, words in order of their ids, at least in float32."""
        raise NotImplementedError(f"{self.spec.method} has no softmax over the whole vocabulary")

    def _target_logits(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Return the (N,) logits of the targets."""
        return self._logits(hidden_ND).gather(1, targets_N[:, None])[:, 0]

    def _mean_logits(self, hidden_ND: Tensor) -> Tensor:
        """Return the (N,) means over all words of their logits."""
        return self._logits(hidden_ND).mean(dim=1)

    def _search(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        return *exact_topk(self._log_probs(hidden_ND), k), torch.ones(hidden_ND.size(0), device=hidden_ND.device)

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        return self._search(hidden_ND, k)[:2]

    def _path_beam(self, hidden_ND: Tensor, k: int, width: int, levels: int) -> tuple[Tensor, Tensor]:
        return self._beam(hidden_ND, k, width)

    def _sample(self, hidden_ND: Tensor, uniforms_NU: Tensor) -> Tensor:
        return draw(self._log_probs(hidden_ND).exp_(), uniforms_NU[:, 0])

    # Shared by the public calls.
    def _flat(self, hidden: Tensor) -> tuple[Tensor, torch.Size]:
        """Return checked hidden vectors as (N, D), in the dtype of the parameters, and their leading axes."""
        dim = self.spec.dim
        if (
            not isinstance(hidden, Tensor)
            or not hidden.shape
            or hidden.shape[-1] != dim
            or not hidden.is_floating_point()
        ):
            inputs.check_hidden(hidden, dim)
        leading = hidden.shape[:-1]
        if len(leading) != 1:
            hidden = hidden.reshape(-1, dim)
        parameter = self._main_parameter()
        if type(parameter) is not Parameter:
            inputs.check_local(parameter, self.spec.method)
        dtype = parameter.dtype
        if hidden.dtype is dtype or (torch.is_autocast_enabled(hidden.device.type) and hidden.dtype.itemsize <= 4):
            return hidden, leading  # autocast rounds the factors of products itself
        return hidden.to(dtype), leading

    def _flat_targets(self, targets: Tensor, leading: torch.Size) -> Tensor:
        if not isinstance(targets, Tensor) or targets.shape != leading or targets.dtype is not torch.int64:
            inputs.check_targets(targets, leading)
        return targets if len(leading) == 1 else targets.reshape(-1)

    def _loss_of_nothing(self, hidden: Tensor, reduction: str) -> Tensor:
        """Return the loss of no tokens, with gradients of zeros for everything that a loss depends on."""
        losses = at_least_float32(hidden.to(self._main_parameter().dtype)).sum(dim=-1)
        if reduction != "none":
            losses = losses.sum()
        return losses + sum(at_least_float32(parameter[:0]).sum() for parameter in self.parameters())

    def _checked_extra(self, extra: Tensors, leading: torch.Size, generator: torch.Generator | None) -> Tensors:
        """Return the random inputs of the loss: the checked given ones, and the others drawn."""
        allowed, device = self.spec.definition.extra, self._main_parameter().device
        calls.check_extra(self.spec.definition, extra)
        if extra.keys() < allowed.keys() and "sampled_ids" not in extra:
            rng = np.random.default_rng(inputs.seed_from(generator))
            extra = inputs.on(device, self.spec.draw_extra(rng, tokens=leading.numel()).items()) | extra
        return {name: inputs.check_extra(name, value, self.spec, leading) for name, value in extra.items()}

    def _objective_losses(self, hidden_ND: Tensor, targets_N: Tensor, objective: Objective, **extra: Tensor) -> Tensor:
        """Return the (N,) losses of `Objective`, at padding too."""
        softcap = objective.softcap
        if softcap is not None:

            def of_block(hidden_BD: Tensor, targets_B: Tensor) -> Tensor:
                logits_BV = objectives.capped(self._logits(hidden_BD), softcap)
                return objectives.losses_of_logits(logits_BV, targets_B, objective)

            return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND, targets_N)
        return calls.objective_losses(
            self.spec.definition,
            objective,
            self._losses(hidden_ND, targets_N, **extra),
            mean_log_probs=lambda: self._mean_log_probs(hidden_ND),
            target_logits=lambda: self._target_logits(hidden_ND, targets_N),
            mean_logits=lambda: self._mean_logits(hidden_ND),
        )

    def _entropy(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        return objectives.entropy(self._capped_log_probs(hidden_ND, softcap))

    def _capped_log_probs(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        if softcap is None:
            return self._log_probs(hidden_ND)
        return objectives.capped(self._logits(hidden_ND), softcap).log_softmax(dim=1)

    def _sample_with(self, hidden_ND: Tensor, uniforms_N: Tensor, options: Sampling, softcap: float | None) -> Tensor:
        if options.top_k is not None:
            values_NK, ids_NK = self.topk(hidden_ND, options.top_k, softcap=softcap)
            return sampling.of_best(values_NK, ids_NK, uniforms_N, options)
        of_block = lambda h, u: sampling.of_all(self._capped_log_probs(h, softcap), u, options)  # noqa: E731
        return objectives.in_blocks(of_block, self.spec.vocab, hidden_ND, uniforms_N)

    # For training and conversion.
    def reorganize(
        self, optimizer: torch.optim.Optimizer | None = None, *, seed: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Move words to new clusters, and return the cluster of each word (V,) before and after.

        Args:
            optimizer: Its state moves along with the parameters.
            seed: Seed of the order in which words are placed, instead of the layer's.

        Raises:
            BadInput: The layer does not reorganize.
        """
        raise BadInput(f"reorganize of {self.spec.method}: allowed: layers of sohsm with an interval")

    def rows_read(self, targets_N: Tensor, **extra: Tensor) -> dict[str, Tensor]:
        """Return the rows that the loss reads, for each parameter with `row_sparse` gradients."""
        return {}

    def extra_repr(self) -> str:
        return self.spec.sizes()

    def formulation(self) -> str:
        """Return a description of how the layer is computed, for its row."""
        return cpp.formulation(self.form)
