"""The base of layers whose words are split over the ranks of a process group.

A layer of this kind holds an ordinary layer of its own words, and with it all forms and kernels that the method has. It
adds what the ranks exchange. All ranks make the same calls with the same arguments.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from vocabench.impls.errors import BadInput
from vocabench.impls.forms import Form
from vocabench.impls.on_torch import objectives
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.native import blank
from vocabench.impls.on_torch.ops.topk import best
from vocabench.impls.on_torch.parallel.ranks import Ranks, concatenated, copied, summed
from vocabench.impls.on_torch.tensors import Tensors
from vocabench.impls.spec import Arrays, LayerSpec, check_like


class ParallelLayer(OutputLayer):
    """A layer whose words are split over ranks.

    Parameters: those of `own`, the layer of this rank's words. Buffers: `structure_digest` and `part` (2,), the number
    of this rank and of all ranks; `words` (V_r,), the words of this rank by their number in `own`, ascending; `number`
    (V,), the number of each word of this rank in `own`, and -1 for the others.
    """

    part: Tensor
    words: Tensor
    number: Tensor

    def __init__(self, spec: LayerSpec, ranks: Ranks) -> None:
        super().__init__(spec)
        self.ranks = ranks
        if spec.vocab < ranks.size:
            raise BadInput(f"{spec.vocab} words over {ranks.size} ranks: allowed: at least one word for each rank")
        self._check_same(spec)
        words_V = self._words_of(ranks.rank)
        self._sizes = [len(self._words_of(rank)) for rank in range(ranks.size)]
        number_V = np.full(spec.vocab, -1, dtype=np.int64)
        number_V[words_V] = np.arange(len(words_V))
        self.register_buffer("part", torch.tensor([ranks.rank, ranks.size]))
        self.register_buffer("words", torch.from_numpy(words_V), persistent=False)
        self.register_buffer("number", torch.from_numpy(number_V), persistent=False)
        self.own = self._layer_of(words_V)

    @abstractmethod
    def _words_of(self, rank: int) -> NDArray[np.int64]:
        """Return the words of a rank, ascending."""

    @abstractmethod
    def _layer_of(self, words_R: NDArray[np.int64]) -> OutputLayer:
        """Return the layer of the words of this rank."""

    def _check_same(self, spec: LayerSpec) -> None:
        digests = self.ranks.objects(spec.digest)
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise BadInput(
                    f"the layer of rank {rank} is not that of rank 0: allowed: the same method, counts, dim, seed, "
                    "dtype and options on all ranks"
                )

    @property
    def form(self) -> Form | None:
        return self.own.form

    # State and parameters.
    def _kept_structure(self) -> Arrays:
        return {}  # what `own` needs of it, `own` holds

    def _blank(self) -> Self:
        return type(self)(self.spec, self.ranks)

    def _refusal(self, digest: Tensor | None) -> str | None:
        refusal = super()._refusal(digest)
        return refusal and refusal + ", split over the same number of ranks"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Load the state of the same rank of as many ranks."""
        part = state_dict.get(prefix + "part")
        if part is not None and not part.is_meta and part.tolist() != self.part.tolist():
            rank, size = part.tolist()
            raise BadInput(
                f"state of {self.spec.method} is of rank {rank} of {size}: allowed: that of rank {self.ranks.rank} of "
                f"{self.ranks.size}, or a state of the whole layer by load_whole_state_dict"
            )
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def to_canonical(self, tensors: Tensors) -> Tensors:
        """Return the parameters of all words, or what has their shapes, such as gradients. All ranks must call this."""
        own = self.own.to_canonical({name.removeprefix("own."): value for name, value in tensors.items()})
        return {name: self._of_all(name, value) for name, value in own.items()}

    def from_canonical(self, tensors: Tensors) -> Tensors:
        own = self.own.from_canonical({name: self._of_own(name, value) for name, value in tensors.items()})
        return {f"own.{name}": value for name, value in own.items()}

    def _of_all(self, name: str, own: Tensor) -> Tensor:
        """Return the canonical parameter of all words from those of this rank."""
        by_rank = self.ranks.concatenated(own, self._sizes)
        order = torch.cat([torch.from_numpy(self._words_of(rank)) for rank in range(self.ranks.size)]).to(own.device)
        return torch.empty_like(by_rank).index_copy_(0, order, by_rank)

    def _of_own(self, name: str, whole: Tensor) -> Tensor:
        """Return the part of a canonical parameter that this rank holds, on its device."""
        return whole[self.words.to(whole.device)].to(self.words.device)

    @torch.no_grad()
    def load_canonical(self, tensors: Tensors) -> None:
        """Assign this rank's part of parameters in canonical form. Only the part is copied to the device."""
        check_like(self.spec, {name: value.shape for name, value in tensors.items()})
        parameters = dict(self.named_parameters())
        for name, value in self.from_canonical(tensors).items():
            parameters[name].copy_(value)

    @torch.no_grad()
    def whole(self) -> OutputLayer:
        """Return the layer of all words on this device. All ranks must call this.

        Its `state_dict` is that of a layer that was never split.
        """
        like = next(self.parameters())
        made = blank(self.spec).to(like.device, like.dtype).train(self.training)
        made.load_canonical(self.to_canonical({name: value.detach() for name, value in self.named_parameters()}))
        return made

    @torch.no_grad()
    def load_whole_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this rank's part of the state of a layer that was not split, or was split over other ranks.

        Args:
            state_dict: What `state_dict` of `whole()`, or of the layer on one device, returns.

        Raises:
            BadInput: It is the state of another layer.
        """
        made = blank(self.spec)
        try:
            made.to(next(iter(state_dict.values())).device).load_state_dict(state_dict)
        except (RuntimeError, StopIteration) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise BadInput(f"state of the whole layer: {' '.join(lines[1:]) or 'empty'}") from None
        self._check_structure(made)
        self.load_canonical(made.to_canonical(dict(made.named_parameters())))

    def _check_structure(self, whole: OutputLayer) -> None:
        """Refuse a layer of all words whose structure has changed since it was created."""

    # Calls.
    def _check_k(self, k: int) -> int:
        """Return how many candidates each rank contributes to the k best words."""
        return min(k, max(self._sizes))

    def _merged(self, values_NJ: Tensor, number_NJ: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best words of all ranks (N, K) from the best of this rank, by their number in `own`."""
        ids_NJ = self.words[number_NJ]
        missing = self._check_k(k) - values_NJ.shape[1]
        if missing:
            values_NJ = nn.functional.pad(values_NJ, (0, missing), value=-torch.inf)
            ids_NJ = nn.functional.pad(ids_NJ, (0, missing), value=self.spec.vocab)
        values_NX = self.ranks.stacked(values_NJ).transpose(0, 1).flatten(1)
        ids_NX = self.ranks.stacked(ids_NJ).transpose(0, 1).flatten(1)
        return best(values_NX, k, lambda rows_R, column_RM: ids_NX[rows_R].gather(1, column_RM))

    def _own_log_probs(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        """Return the (N, V_r) log-probabilities of this rank's words. The gradient of `hidden_ND` is of this rank."""
        raise NotImplementedError

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return self._capped_log_probs(hidden_ND, None)

    def _capped_log_probs(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        own_VN = self._own_log_probs(copied(hidden_ND, self.ranks), softcap).T
        by_rank_VN = concatenated(own_VN, self._sizes, self.ranks)
        order_V = torch.cat([torch.from_numpy(self._words_of(rank)) for rank in range(self.ranks.size)])
        return by_rank_VN[order_V.argsort().to(by_rank_VN.device)].T

    def _beam(self, hidden_ND: Tensor, k: int, width: int) -> tuple[Tensor, Tensor]:
        self._refuse("beam")

    def _entropy(self, hidden_ND: Tensor, softcap: float | None) -> Tensor:
        own_NV = self._own_log_probs(copied(hidden_ND, self.ranks), softcap)
        return summed(objectives.entropy(own_NV), self.ranks)

    def _mean_log_probs(self, hidden_ND: Tensor) -> Tensor:
        def of_block(hidden_BD: Tensor) -> Tensor:
            return self._own_log_probs(copied(hidden_BD, self.ranks), None).sum(dim=1)

        return summed(objectives.in_blocks(of_block, self.spec.vocab, hidden_ND), self.ranks) / self.spec.vocab

    def resize(self, counts: ArrayLike, **options: object) -> Self:
        self._refuse("resize")

    def _tie(self, embedding: nn.Embedding, name: str) -> None:
        self._refuse("tie")

    def _refuse(self, call: str) -> NoReturn:
        raise BadInput(f"{call} of {self.spec.method} over {self.ranks.size} ranks: allowed: {call} of whole()")

    def extra_repr(self) -> str:
        return f"{self.spec.sizes()}, rank={self.ranks.rank} of {self.ranks.size}"

    def formulation(self) -> str:
        return f"{self.own.formulation()}, words over {self.ranks.size} ranks"
