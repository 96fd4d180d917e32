"""NumPy as a framework of the harness: the float64 definitions on the CPU."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable

import numpy as np

from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.models.bag_model import BagModel, BagModelConfig
from vocabench.impls.models.language_model import LanguageModel, LanguageModelConfig
from vocabench.impls.models.recognizer import Recognizer, RecognizerConfig
from vocabench.impls.models.summarizer import Summarizer, SummarizerConfig
from vocabench.impls.spec import LayerSpec

DISTRIBUTION = "numpy"  # what pip calls it


def devices() -> list[str]:
    return ["cpu"]


def prepare_process() -> None:
    """Nothing to set before measuring."""


def describe(device: str, dtype: str = "float64") -> dict[str, str]:
    """Versions and settings that a row keeps as provenance."""
    return {"numpy": np.__version__, "device_name": platform.processor() or platform.machine()}


def compute_capability(device: str) -> tuple[int, int]:
    """(0, 0): no CUDA device."""
    return (0, 0)


def prepare_product(size: int, device: str, dtype: str) -> Callable[[], object]:
    """A function that multiplies two matrices (size, size) once."""
    left, right = np.random.default_rng(0).random((2, size, size)).astype(dtype)
    out = np.empty_like(left)
    return lambda: np.matmul(left, right, out=out)


def prepare_add(size: int, device: str) -> Callable[[], object]:
    """A function that adds one float32 array (size,) to another in place."""
    total, other = np.ones(size, np.float32), np.ones(size, np.float32)
    return lambda: np.add(total, other, out=total)


def counts_memory(device: str) -> bool:
    """No: the system does."""
    return False


def forms(spec: LayerSpec, device: str = "cpu") -> tuple[str, ...]:
    """None: the definition is written once."""
    return ()


def create_layer(spec: LayerSpec, device: str = "cpu") -> Layer:
    """The layer of `spec`, whose dtype must be float64, the oracle's only precision."""
    if device != "cpu":
        raise unknown("device of numpy", device, devices())
    if spec.dtype != "float64":
        raise BadInput(f"dtype={spec.dtype!r} on numpy: allowed: 'float64', the oracle's precision")
    return importlib.import_module(f"vocabench.impls.on_numpy.methods.{spec.method}").LAYER(spec)


def create_language_model(spec: LayerSpec, config: LanguageModelConfig, device: str = "cpu") -> LanguageModel:
    from vocabench.impls.on_numpy.models.language_model import NumpyLanguageModel

    layer = create_layer(spec, device)
    return NumpyLanguageModel(spec, config, layer)  # type: ignore[arg-type]


def create_bag_model(spec: LayerSpec, config: BagModelConfig, device: str = "cpu") -> BagModel:
    from vocabench.impls.on_numpy.models.bag_model import NumpyBagModel

    return NumpyBagModel(spec, config, create_layer(spec, device))  # type: ignore[arg-type]


def create_summarizer(spec: LayerSpec, config: SummarizerConfig, device: str = "cpu") -> Summarizer:
    from vocabench.impls.on_numpy.models.summarizer import NumpySummarizer

    return NumpySummarizer(spec, config, create_layer(spec, device))  # type: ignore[arg-type]


def create_recognizer(spec: LayerSpec, config: RecognizerConfig, device: str = "cpu") -> Recognizer:
    from vocabench.impls.on_numpy.models.recognizer import NumpyRecognizer

    return NumpyRecognizer(spec, config, create_layer(spec, device))  # type: ignore[arg-type]
