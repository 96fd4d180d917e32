"""A native PyTorch layer behind the NumPy contract."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocabench.impls.calls import ALL_WORDS, NUCLEUS, PLAIN, Objective, Sampling
from vocabench.impls.contract import Job, Layer
from vocabench.impls.on_torch.device import Switched, extra_on, synchronize, to_numpy
from vocabench.impls.on_torch.layer import OutputLayer
from vocabench.impls.on_torch.native import native
from vocabench.impls.on_torch.tensors import TORCH_DTYPES, at_least_float32
from vocabench.impls.on_torch.training import cuda_graphs, optimizers
from vocabench.impls.on_torch.training.row_sparse import RowSparse
from vocabench.impls.spec import Arrays, LayerSpec


class TorchLayer(Switched, Layer):
    """Any native layer behind the NumPy contract.

    Args:
        layer: The native layer; None for that of `spec` with its initial parameters.
    """

    def __init__(self, spec: LayerSpec, device: torch.device, layer: OutputLayer | None = None) -> None:
        super().__init__(spec)
        self.device, self.dtype = device, TORCH_DTYPES[spec.dtype]
        self.native = (native(spec) if layer is None else layer).to(device)
        self._stepper: torch.optim.Optimizer | RowSparse | None = None
        self._captured = False  # whether the last prepared work became a CUDA graph

    def _catch_up(self) -> None:
        if isinstance(self._stepper, RowSparse):
            self._stepper.catch_up()

    def _on_device(self, hidden_ND: NDArray, targets_N: NDArray | None = None) -> tuple[Tensor, Tensor]:
        self._catch_up()  # the parameters are about to be read
        hidden = torch.tensor(hidden_ND, dtype=self.dtype, device=self.device)
        targets = torch.from_numpy(targets_N if targets_N is not None else np.empty(0, np.int64)).to(self.device)
        return hidden, targets

    def parameters(self) -> Arrays:
        self._catch_up()
        detached = {name: value.detach() for name, value in self.native.named_parameters()}
        return {name: np.array(to_numpy(value)) for name, value in self.native.to_canonical(detached).items()}

    def _load(self, params: Arrays) -> None:
        self._catch_up()  # otherwise missed steps would be applied to the new rows
        self.native.load_canonical({name: torch.from_numpy(np.array(value)) for name, value in params.items()})

    @torch.no_grad()
    def _loss(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> float:
        options = self._loss_options(objective, token_weight_N, extra)
        return float(self.native(*self._on_device(hidden_ND, targets_N), **options))

    def _loss_options(
        self, objective: Objective, token_weight_N: NDArray | None, extra: Arrays
    ) -> dict[str, float | Tensor | None]:
        """Return the keywords of the native loss."""
        weight = {} if token_weight_N is None else {"token_weight": token_weight_N}
        return {**objective._asdict(), **extra_on(self.device, {**extra, **weight})}

    def _loss_and_grads(
        self,
        hidden_ND: NDArray,
        targets_N: NDArray,
        objective: Objective = PLAIN,
        token_weight_N: NDArray | None = None,
        **extra: NDArray,
    ) -> tuple[float, NDArray, Arrays]:
        hidden, targets = self._on_device(hidden_ND, targets_N)
        hidden.requires_grad_()
        self.native.zero_grad(set_to_none=True)
        self.native.row_sparse = False
        loss = self.native(hidden, targets, **self._loss_options(objective, token_weight_N, extra))
        loss.backward()
        grads = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in self.native.named_parameters()}
        canonical = {name: to_numpy(grad) for name, grad in self.native.to_canonical(grads).items()}
        assert hidden.grad is not None
        self.native.zero_grad(set_to_none=True)
        return float(loss.detach()), to_numpy(hidden.grad), canonical

    @torch.no_grad()
    def _log_probs(self, hidden_ND: NDArray, softcap: float | None = None) -> NDArray:
        return to_numpy(self.native.log_probs(self._on_device(hidden_ND)[0], softcap=softcap))

    @torch.no_grad()
    def _entropy(self, hidden_ND: NDArray) -> NDArray:
        return to_numpy(self.native.entropy(self._on_device(hidden_ND)[0]))

    @torch.no_grad()
    def _target_log_probs(self, hidden_ND: NDArray, targets_N: NDArray) -> NDArray:
        return to_numpy(self.native.target_log_probs(*self._on_device(hidden_ND, targets_N)))

    @torch.no_grad()
    def _topk(self, hidden_ND: NDArray, k: int) -> tuple[NDArray, NDArray]:
        values, ids = self.native.topk(self._on_device(hidden_ND)[0], k)
        return to_numpy(values), to_numpy(ids)

    @torch.no_grad()
    def _expanded_share(self, hidden_ND: NDArray, k: int) -> NDArray:
        return to_numpy(self.native.search(self._on_device(hidden_ND)[0], k)[2])

    @torch.no_grad()
    def _beam(self, hidden_ND: NDArray, k: int, width: int) -> tuple[NDArray, NDArray]:
        return self._path_beam(hidden_ND, k, width, 1)

    def _path_beam(self, hidden_ND: NDArray, k: int, width: int, levels: int) -> tuple[NDArray, NDArray]:
        values, ids = self.native.beam(self._on_device(hidden_ND)[0], k, width, levels)
        return to_numpy(values), to_numpy(ids)

    @torch.no_grad()
    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray, sampling: Sampling = ALL_WORDS) -> NDArray:
        return to_numpy(self.native.sample(self._on_device(hidden_ND)[0], self._uniforms(uniforms_NU), *sampling))

    def _uniforms(self, uniforms_NU: NDArray) -> Tensor:
        return torch.from_numpy(uniforms_NU).to(self.device, at_least_float32(torch.empty(0, dtype=self.dtype)).dtype)

    def _prepare(self, job: Job) -> Callable[[], object]:
        hidden, targets = self._on_device(job.hidden_ND, job.targets_N)
        uniforms, extra = self._uniforms(job.uniforms_NU), extra_on(self.device, job.extra)
        decode: dict[str, Callable[[], object]] = {
            "score": lambda: self.native.target_log_probs(hidden, targets),
            "entropy": lambda: self.native.entropy(hidden),
            "topk": lambda: self.native.topk(hidden, job.k),
            "beam": lambda: self.native.beam(hidden, job.k, job.width),
            "sample": lambda: self.native.sample(hidden, uniforms),
            "nucleus_sample": lambda: self.native.sample(hidden, uniforms, *NUCLEUS),
            "log_probs": lambda: self.native.log_probs(hidden),
        }
        if job.work in decode:
            return self._decoder(decode[job.work])
        hidden.requires_grad_()
        optimizer = job.optimizer
        stepper = optimizers.build(optimizer, self.native.parameters()) if job.work == "layer_step" else None
        self._stepper = stepper or self._stepper
        replay: Callable[[], object] | None = None
        attempted = False  # to capture a graph

        def drop_gradients() -> None:
            hidden.grad = None
            self.native.zero_grad(set_to_none=True)

        def differentiate() -> None:
            drop_gradients()
            self.native(hidden, targets, **extra).backward()

        def descend() -> None:
            if stepper is not None:
                optimizers.finish_gradients(optimizer, self.native.parameters())
                stepper.step()

        drop_gradients()  # those of earlier work would count as memory of this work
        captures_all = stepper is None or optimizers.is_capturable(stepper)

        def step() -> None:
            differentiate()
            if captures_all:
                descend()

        def begin() -> None:
            nonlocal replay, attempted
            self.native.row_sparse = isinstance(stepper, RowSparse)
            with self.precision():
                if isinstance(stepper, RowSparse):
                    stepper.make_up_for(self.native, targets, **extra)
                (replay or step)()
                if not captures_all:
                    descend()
                if not attempted:
                    synchronize(self.device)
                    drop_gradients()
                    attempted, replay = True, cuda_graphs.captured(step, self.device)
                    self._captured = replay is not None
            if replay is None:
                drop_gradients()  # they are as large as the parameters; only a graph keeps writing to them

        return begin

    def _wait(self, made: object) -> None:
        synchronize(self.device)

    def _decoder(self, decode: Callable[[], object]) -> Callable[[], object]:
        """Return a function that decodes, from its second call on as a CUDA graph where that is possible."""
        replay: Callable[[], object] | None = None
        attempted = False

        @torch.inference_mode()
        def begin() -> None:
            nonlocal replay, attempted
            with self.precision():
                (replay or decode)()
                if not attempted:
                    synchronize(self.device)
                    attempted, replay = True, cuda_graphs.captured(decode, self.device)
                    self._captured = replay is not None

        return begin

    def reaches_few_rows(self) -> bool:
        extra = extra_on(self.device, self._check_extra({}, 1))
        return bool(self.native.rows_read(torch.zeros(1, dtype=torch.int64, device=self.device), **extra))

    def formulation(self) -> str:
        formulation = self.native.formulation()
        return ", ".join([*([formulation] if formulation else []), *(["as a CUDA graph"] if self._captured else [])])
