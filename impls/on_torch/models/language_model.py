"""The LSTM language model of the SOHSM paper (section 4.2) in PyTorch; on a GPU the LSTM is cuDNN's."""

from __future__ import annotations

from typing import ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vocabench.impls.models.language_model import LanguageModel, LanguageModelConfig
from vocabench.impls.on_torch.device import Switched, extra_on, ids_on, synchronize, to_numpy
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.models import _lstm, _network
from vocabench.impls.on_torch.native import blank
from vocabench.impls.on_torch.tensors import TORCH_DTYPES
from vocabench.impls.on_torch.training import optimizers
from vocabench.impls.on_torch.training.row_sparse import RowSparse
from vocabench.impls.spec import Arrays, LayerSpec


class Network(_network.Network):
    """An embedding and an LSTM below any output layer."""

    NAMES: ClassVar = {"embedding": "embedding.weight", **_lstm.names("lstm", "lstm")}

    def __init__(self, vocab: int, config: LanguageModelConfig, output: OutputLayer, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, config.embedding, dtype=dtype, sparse=config.optimizer.row_sparse)
        self.lstm = _lstm.build(config.embedding, config.hidden, dtype)
        self.output = output

    def forward(self, inputs_BT: Tensor, state: _lstm.State | None) -> tuple[Tensor, _lstm.State]:
        """Return (B*T, D) hidden vectors, batch-major, and the final state."""
        outputs_BTD, final = self.lstm(self.embedding(inputs_BT), state)
        return outputs_BTD.flatten(0, 1), final


class TorchLanguageModel(Switched, LanguageModel):
    def __init__(self, spec: LayerSpec, config: LanguageModelConfig, device: torch.device) -> None:
        super().__init__(spec, config)
        self.device = device
        output = blank(spec)
        output.row_sparse = config.optimizer.row_sparse
        self.network = Network(spec.vocab, config, output, TORCH_DTYPES[spec.dtype]).to(device)
        self._load(self.initial_parameters())

    def _catch_up(self) -> None:
        if isinstance(self.optimizer, RowSparse):
            self.optimizer.catch_up()

    def parameters(self) -> Arrays:
        self._catch_up()
        return self.network.read()

    def _load(self, params: Arrays) -> None:
        self.network.write(params)
        trained, settings = self.network.trained(), self.config.optimizer
        undecayed = [parameter for name, parameter in trained.items() if not settings.decays(name)]
        self.optimizer = optimizers.build(settings, trained.values(), undecayed)
        self.train_state: _lstm.State | None = None
        self.eval_state: _lstm.State | None = None
        self.decode_state: _lstm.State | None = None

    def _ids(self, ids_BT: NDArray) -> Tensor:
        return ids_on(self.device, ids_BT)

    def step(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> Tensor:
        output, inputs, targets_N = self.network.output, self._ids(inputs_BT), self._ids(targets_BT).flatten()
        extra = extra_on(self.device, self.next_extra(inputs_BT.size, inputs_BT.ravel()))
        if isinstance(self.optimizer, RowSparse):
            self.optimizer.make_up(self.network.get_parameter("embedding.weight"), inputs)
            self.optimizer.make_up_for(output, targets_N, **extra)
        hidden_ND, state = self.network(inputs, self.train_state if carry else None)
        self.train_state = (state[0].detach(), state[1].detach())
        loss = output.training_loss(hidden_ND, targets_N, **extra)
        optimizers.descend(loss, self.config.optimizer, self.optimizer, self.network.trained().values())
        return loss.detach()

    @torch.no_grad()
    def nll_parts(self, inputs_BT: NDArray, targets_BT: NDArray, *, carry: bool) -> tuple[NDArray, ...]:
        self._catch_up()
        hidden_ND, self.eval_state = self.network(self._ids(inputs_BT), self.eval_state if carry else None)
        targets_N = self._ids(targets_BT).flatten()
        return tuple(to_numpy(part_N) for part_N in self.network.output.nll_parts(hidden_ND, targets_N))

    @torch.no_grad()
    def hidden(self, inputs_BT: NDArray) -> NDArray:
        self._catch_up()
        return to_numpy(self.network(self._ids(inputs_BT), None)[0])

    def prime(self, prompts_BT: NDArray, k: int) -> tuple[NDArray, NDArray]:
        self._catch_up()
        return self._next_words(prompts_BT, None, k)

    def extend(self, rows_R: NDArray, ids_R: NDArray, k: int) -> tuple[NDArray, NDArray]:
        assert self.decode_state is not None
        h_LBH, c_LBH = self.decode_state
        rows = self._ids(rows_R)
        return self._next_words(ids_R[:, None], (h_LBH[:, rows], c_LBH[:, rows]), k)

    @torch.no_grad()
    def _next_words(self, inputs_BT: NDArray, state: _lstm.State | None, k: int) -> tuple[NDArray, NDArray]:
        _, (h_LBH, c_LBH) = self.network(self._ids(inputs_BT), state)
        self.decode_state = h_LBH, c_LBH
        values, ids = self.network.output.topk(h_LBH[-1], k)  # the LSTM's output is its hidden state
        return to_numpy(values), to_numpy(ids)

    def reorganize(self) -> tuple[NDArray, NDArray] | None:
        output = self.network.output
        if not output.reorganizes:
            return None
        self._catch_up()
        optimizer = self.optimizer.dense if isinstance(self.optimizer, RowSparse) else self.optimizer
        return output.reorganize(optimizer, seed=self.config.seed)

    def synchronize(self) -> None:
        synchronize(self.device)


NETWORK = TorchLanguageModel
