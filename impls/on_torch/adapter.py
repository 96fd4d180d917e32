"""Binds PyTorch to the contract: devices, precision, synchronisation, memory, NumPy in and out."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocabench.impls import cpp
from vocabench.impls.contract import Job, Layer
from vocabench.impls.errors import unknown
from vocabench.impls.models.network import Config, Network, network_class
from vocabench.impls.on_torch.layer import TORCH_DTYPES, OutputLayer, Tensors, at_least_float32
from vocabench.impls.on_torch.ops import products
from vocabench.impls.on_torch.training import cuda_graphs, optimizers
from vocabench.impls.on_torch.training.row_sparse import RowSparse
from vocabench.impls.on_torch.trees import tree_layer
from vocabench.impls.on_torch.triton import availability
from vocabench.impls.on_torch.two_level import cluster_softmax
from vocabench.impls.precision import Precise
from vocabench.impls.spec import Arrays, LayerSpec
from vocabench.impls.structures import blocks

DISTRIBUTION = "torch"  # what pip calls it


def devices() -> list[str]:
    return ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]


def prepare_process() -> None:
    """Flush denormal numbers to zero, as XLA and TensorFlow do by themselves.

    Late in training most in-cluster probabilities are tiny; their products with small gradients are denormal, and a
    processor that computes with those takes four times as long for a step. Called before PyTorch has started its
    threads, which take the setting over.
    """
    torch.set_flush_denormal(True)


def describe(device: str, dtype: str = "float32") -> dict[str, str]:
    """Versions and settings that a row of that precision keeps as provenance."""
    facts = {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "flush_denormal": str(_flushes_denormals()),
    }
    if not device.startswith("cuda"):
        few = "words first" if products.words_first() else "vectors first"
        library = "oneDNN" if products.onednn_is_faster() else "MKL"
        name = platform.processor() or platform.machine()
        own = {"products_of_few": few, "products": library, "compiler": cpp.version()}
        return facts | {"device_name": name} | own
    with precision(dtype, check_device(device)):
        return facts | {
            "device_name": torch.cuda.get_device_name(device),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            "tf32": str(torch.backends.cuda.matmul.allow_tf32),
            "cudnn_tf32": str(torch.backends.cudnn.allow_tf32),
        }


def _flushes_denormals() -> bool:
    return float(torch.tensor(1e-30) * torch.tensor(1e-9)) == 0.0


def check_device(device: str) -> torch.device:
    if device == "cuda" and torch.cuda.is_available():
        return torch.device("cuda:0")
    if device not in devices():
        raise unknown("device of torch", device, devices())
    return torch.device(device)


def compute_capability(device: str) -> tuple[int, int]:
    """Of a CUDA device; (0, 0) of any other."""
    place = check_device(device)
    return torch.cuda.get_device_capability(place) if place.type == "cuda" else (0, 0)


@contextmanager
def precision(dtype: str, device: torch.device) -> Iterator[None]:
    """On a CUDA device, float32 products are TF32's in `tf32` and never else; by itself PyTorch takes TF32 in cuDNN.

    The older of PyTorch's two kinds of switch: torch.compile reads it, and fails where only the newer one was set.
    """
    if device.type != "cuda":
        yield
        return
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = dtype == "tf32"
        with torch.cuda.device(device):  # to which Triton sends kernels
            yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def blank(spec: LayerSpec) -> OutputLayer:
    """The method's `nn.Module`, whose parameters are still to be loaded."""
    return importlib.import_module(f"vocabench.impls.on_torch.methods.{spec.method}").LAYER(spec)


def native(spec: LayerSpec) -> OutputLayer:
    """The method's `nn.Module` with its initial parameters, for use in a model of one's own."""
    layer = blank(spec)
    layer.load_canonical({name: torch.from_numpy(value) for name, value in spec.initial_parameters().items()})
    return layer


def forms(spec: LayerSpec, device: str = "cpu") -> tuple[str, ...]:
    """What `spec.form` may be: the ways that there are to compute the layer there; none where there is but one."""
    fits = _fits_cpu if device == "cpu" else _fits_gpu
    every: tuple[str, ...] = importlib.import_module(f"vocabench.impls.on_torch.methods.{spec.method}").LAYER.forms(
        spec
    )
    return tuple(form for form in every if fits(form))


def _fits_cpu(form: str) -> bool:
    return not form.endswith(availability.KERNELS)


def _fits_gpu(form: str) -> bool:
    """Kernels in C++, blocks of tokens and pairs read in place are the CPU's, and a loop over clusters waits for the
    device to count the tokens of each."""
    return form not in (*cluster_softmax.END_TO_END, tree_layer.IN_PLACE, *blocks.TOKEN_FORMS)


def create_layer(spec: LayerSpec, device: str = "cpu") -> Layer:
    return TorchLayer(_settled(spec, device), check_device(device))


def _settled(spec: LayerSpec, device: str) -> LayerSpec:
    """`spec` with the form that it stands for on a CPU, where words may lie otherwise for it."""
    known = forms(spec, device) if device == "cpu" else ()
    return replace(spec, form=spec.form_of(known)) if known else spec


def create_network(spec: LayerSpec, config: Config, device: str = "cpu") -> Network[Any]:
    """Create the network of `config` with the output layer of `spec`."""
    return network_class("torch", config)(_settled(spec, device), config, check_device(device))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def prepare_product(size: int, device: str, dtype: str) -> Callable[[], object]:
    """A function that multiplies two matrices (size, size) once, as the fastest of the layers do, and waits until it is
    done."""
    place = check_device(device)
    left, right = torch.rand(2, size, size, device=place).to(TORCH_DTYPES[dtype])

    def run() -> None:
        with precision(dtype, place), torch.no_grad():
            products.linear(left, right, kernels=True)
        synchronize(place)

    return run


def prepare_add(size: int, device: str) -> Callable[[], object]:
    """A function that adds one float32 array (size,) to another in place and waits until it is done."""
    place = check_device(device)
    total, other = torch.ones(size, device=place), torch.ones(size, device=place)

    def run() -> None:
        total.add_(other)
        synchronize(place)

    return run


def counts_memory(device: str) -> bool:
    """Whether PyTorch counts the memory that it takes there: on a GPU."""
    return device != "cpu"


def peak_counted_bytes(device: str, run: Callable[[], object]) -> int:
    """Most memory of a device in use during `run` above what was in use before."""
    place = check_device(device)
    torch.cuda.synchronize(place)
    torch.cuda.reset_peak_memory_stats(place)
    before = torch.cuda.memory_allocated(place)
    run()
    torch.cuda.synchronize(place)
    return torch.cuda.max_memory_allocated(place) - before


def ids_on(device: torch.device, ids: NDArray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64)).to(device, non_blocking=True)


def extra_on(device: torch.device, extra: Arrays) -> Tensors:
    """The loss's random inputs."""
    return {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in extra.items()}


def to_numpy(tensor: Tensor) -> NDArray:
    """On the host, with bfloat16 as float32."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


class Switched(Precise):
    """A layer or network of ours, under `precision` when it is called."""

    spec: LayerSpec
    device: torch.device

    def precision(self) -> AbstractContextManager[object]:
        return precision(self.spec.dtype, self.device)


class TorchLayer(Switched, Layer):
    """Any native layer behind the NumPy contract."""

    def __init__(self, spec: LayerSpec, device: torch.device) -> None:
        super().__init__(spec)
        self.device, self.dtype = device, TORCH_DTYPES[spec.dtype]
        self.native = native(spec).to(device)
        self._stepper: torch.optim.Optimizer | RowSparse | None = None
        self._captured = False  # whether the last work was

    def _catch_up(self) -> None:
        if isinstance(self._stepper, RowSparse):
            self._stepper.catch_up()

    def _on_device(self, hidden_ND: NDArray, targets_N: NDArray | None = None) -> tuple[Tensor, Tensor]:
        self._catch_up()  # what these are computed with
        hidden = torch.tensor(hidden_ND, dtype=self.dtype, device=self.device)
        targets = torch.from_numpy(targets_N if targets_N is not None else np.empty(0, np.int64)).to(self.device)
        return hidden, targets

    def parameters(self) -> Arrays:
        self._catch_up()
        own = {name: value.detach() for name, value in self.native.named_parameters()}
        return {name: np.array(to_numpy(value)) for name, value in self.native.to_canonical(own).items()}

    def _load(self, params: Arrays) -> None:
        self._catch_up()  # else the new rows would be taken for late ones
        self.native.load_canonical({name: torch.from_numpy(np.array(value)) for name, value in params.items()})

    @torch.no_grad()
    def _loss(self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray) -> float:
        return float(self.native(*self._on_device(hidden_ND, targets_N), **extra_on(self.device, extra)))

    def _loss_and_grads(
        self, hidden_ND: NDArray, targets_N: NDArray, **extra: NDArray
    ) -> tuple[float, NDArray, Arrays]:
        hidden, targets = self._on_device(hidden_ND, targets_N)
        hidden.requires_grad_()
        self.native.zero_grad(set_to_none=True)
        self.native.row_sparse = False
        loss = self.native(hidden, targets, **extra_on(self.device, extra))
        loss.backward()
        grads = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in self.native.named_parameters()}
        canonical = {name: to_numpy(grad) for name, grad in self.native.to_canonical(grads).items()}
        assert hidden.grad is not None
        self.native.zero_grad(set_to_none=True)
        return float(loss.detach()), to_numpy(hidden.grad), canonical

    @torch.no_grad()
    def _log_probs(self, hidden_ND: NDArray) -> NDArray:
        return to_numpy(self.native.log_probs(self._on_device(hidden_ND)[0]))

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
        values, ids = self.native.beam(self._on_device(hidden_ND)[0], k, width)
        return to_numpy(values), to_numpy(ids)

    @torch.no_grad()
    def _sample(self, hidden_ND: NDArray, uniforms_NU: NDArray) -> NDArray:
        return to_numpy(self.native.sample(self._on_device(hidden_ND)[0], self._uniforms(uniforms_NU)))

    def _uniforms(self, uniforms_NU: NDArray) -> Tensor:
        return torch.from_numpy(uniforms_NU).to(self.device, at_least_float32(torch.empty(0, dtype=self.dtype)).dtype)

    def _prepare(self, job: Job) -> Callable[[], object]:
        hidden, targets = self._on_device(job.hidden_ND, job.targets_N)
        uniforms, extra = self._uniforms(job.uniforms_NU), extra_on(self.device, job.extra)
        decode: dict[str, Callable[[], object]] = {
            "topk": lambda: self.native.topk(hidden, job.k),
            "beam": lambda: self.native.beam(hidden, job.k, job.width),
            "sample": lambda: self.native.sample(hidden, uniforms),
            "log_probs": lambda: self.native.log_probs(hidden),
        }
        if job.work in decode:
            return self._decoder(decode[job.work])
        hidden.requires_grad_()
        optimizer = job.optimizer
        stepper = optimizers.build(optimizer, self.native.parameters()) if job.work == "layer_step" else None
        self._stepper = stepper or self._stepper
        replay: Callable[[], object] | None = None
        tried = False

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

        drop_gradients()  # of what was prepared before, or they would seem in use where this one's memory is counted
        captures_all = stepper is None or optimizers.is_capturable(stepper)

        def step() -> None:
            differentiate()
            if captures_all:
                descend()

        def begin() -> None:
            nonlocal replay, tried
            self.native.row_sparse = isinstance(stepper, RowSparse)
            with self.precision():
                if isinstance(stepper, RowSparse):
                    stepper.make_up_for(self.native, targets, **extra)
                (replay or step)()
                if not captures_all:
                    descend()
                if not tried:
                    synchronize(self.device)
                    drop_gradients()
                    tried, replay = True, cuda_graphs.captured(step, self.device)
                    self._captured = replay is not None
            if replay is None:
                drop_gradients()  # as large as the parameters: gone between calls, where no graph writes them

        return begin

    def _wait(self, made: object) -> None:
        synchronize(self.device)

    def _decoder(self, decode: Callable[[], object]) -> Callable[[], object]:
        """`decode`; from the second call on as a CUDA graph, where it can be one."""
        replay: Callable[[], object] | None = None
        tried = False

        @torch.inference_mode()
        def begin() -> None:
            nonlocal replay, tried
            with self.precision():
                (replay or decode)()
                if not tried:
                    synchronize(self.device)
                    tried, replay = True, cuda_graphs.captured(decode, self.device)
                    self._captured = replay is not None

        return begin

    def reaches_few_rows(self) -> bool:
        extra = extra_on(self.device, self._check_extra({}))
        return bool(self.native.rows_read(torch.zeros(1, dtype=torch.int64, device=self.device), **extra))

    def formulation(self) -> str:
        own = self.native.formulation()
        return ", ".join([*([own] if own else []), *(["as a CUDA graph"] if self._captured else [])])
