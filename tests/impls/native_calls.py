"""A process that makes calls of native layers, and judges each result by the float64 definition.

`python -m tests.impls.native_calls FRAMEWORK` reads one call a line from standard input, as JSON (see `Call`), and
writes one line for each: "ok", "refused ERROR in 1 lines: MESSAGE",
"unsupported: REASON" for a method that this machine lacks, or what is wrong. A parent that waits for the line and sees
the end of the output instead knows that the process died.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocabench.harness import layers, registry
from vocabench.harness.measure.workload import zipf_counts
from vocabench.impls.contract import Layer
from vocabench.impls.errors import Unsupported
from vocabench.impls.spec import LayerSpec

VOCAB, DIM = 60, 16
BAD_TARGETS = (-1, VOCAB, 2**31 - 1)
PADDING = -100
NAMES = ("loss", "grad", "log_probs", "target_log_probs", "topk", "beam", "sample", "entropy")
# How much a result may differ, by the precision of the layer (sums of up to 60 products) and of the hidden vectors.
TOLERANCE = {"float64": 1e-8, "float32": 2e-4, "bfloat16": 0.1}
ROUNDING = {"float64": 0.0, "float32": 1e-6, "float16": 2e-3, "bfloat16": 0.02}
CALLS_BETWEEN_CLEARING = 100


@dataclass(frozen=True)
class Call:
    """One call of a native layer.

    Attributes:
        method: The method.
        name: One of `NAMES`.
        form: Number of the layer's form, counted from the preferred one, modulo their number.
        shape: Leading axes of the hidden vectors.
        dtype: Precision of the layer.
        hidden_dtype, target_dtype: Precisions of the arguments.
        padded: Whether a third of the targets is padding, whose hidden vectors are NaN.
        compiled: Whether the call is traced, as by `jax.jit` and `tf.function`.
        options: Keyword arguments, except for arrays.
        weighted: Whether `token_weight` is given.
        without_bias: Whether the layer has the option `bias=False`.
        fault: What is wrong with the call, if anything, as (argument, value).
        seed: Seed of the hidden vectors and targets.
    """

    method: str
    name: str
    form: int = 0
    shape: tuple[int, ...] = (5,)
    dtype: str = "float32"
    hidden_dtype: str = "float32"
    target_dtype: str = "int64"
    padded: bool = False
    compiled: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    weighted: bool = False
    without_bias: bool = False
    fault: tuple[str, Any] | None = None
    seed: int = 0


@dataclass
class Arrays:
    """Arguments of a call as NumPy arrays; hidden vectors hold values that their dtype can represent."""

    hidden: NDArray
    targets: NDArray
    token_weight: NDArray | None
    uniforms: NDArray
    extra: dict[str, Any]


class Native:
    """The native layer of a framework, called with NumPy arrays."""

    def __init__(self, framework: str, spec: LayerSpec) -> None:
        self.spec = spec
        self.native = registry.adapter(framework).native(spec)  # type: ignore[attr-defined]

    def call(self, call: Call, arrays: Arrays, options: dict[str, Any]) -> tuple[NDArray, ...]:
        raise NotImplementedError


class TorchNative(Native):
    def call(self, call: Call, arrays: Arrays, options: dict[str, Any]) -> tuple[NDArray, ...]:
        import torch

        def tensor(array: NDArray, dtype: str) -> Any:
            return torch.tensor(np.asarray(array)).to(getattr(torch, dtype))

        hidden, targets, named = _converted(tensor, call, arrays, options)
        layer = self.native
        if call.name in ("loss", "grad"):
            if hidden.is_floating_point():
                hidden.requires_grad_()
            loss = layer(hidden, targets, **named)
            if call.name == "loss":
                return (_numpy(loss.detach().float() if loss.dtype == torch.bfloat16 else loss.detach()),)
            layer.zero_grad()
            loss.sum().backward()
            return (_numpy(hidden.grad.to(torch.float64)),)
        made = getattr(layer, call.name)(hidden, *_positional(call, targets, named), **named)
        made = made if isinstance(made, tuple) else (made,)
        return tuple(_numpy(part.detach().double() if part.is_floating_point() else part) for part in made)


class TensorFlowNative(Native):
    def call(self, call: Call, arrays: Arrays, options: dict[str, Any]) -> tuple[NDArray, ...]:
        import tensorflow as tf

        hidden, targets, named = _converted(
            lambda array, dtype: tf.cast(tf.constant(array), dtype), call, arrays, options
        )
        layer = self.native

        def run(hidden: Any, targets: Any) -> Any:
            if call.name == "loss":
                return layer(hidden, targets, **named)
            if call.name == "grad":
                with tf.GradientTape() as tape:
                    tape.watch(hidden)
                    loss = tf.reduce_sum(layer(hidden, targets, **named))
                return tape.gradient(loss, hidden)
            return getattr(layer, call.name)(hidden, *_positional(call, targets, named), **named)

        made = (tf.function(run, autograph=False) if call.compiled else run)(hidden, targets)
        made = made if isinstance(made, tuple | list) else (made,)
        return tuple(_numpy(tf.cast(part, tf.float64) if part.dtype.is_floating else part) for part in made)


class JaxNative(Native):
    def __init__(self, framework: str, spec: LayerSpec) -> None:
        super().__init__(framework, spec)
        self.params, self.structure = self.native.init()

    def call(self, call: Call, arrays: Arrays, options: dict[str, Any]) -> tuple[NDArray, ...]:
        import jax
        import jax.numpy as jnp

        def tensor(array: NDArray, dtype: str) -> Any:
            return jnp.asarray(array).astype(dtype)

        hidden, targets, named = _converted(tensor, call, arrays, options)
        layer = self.native

        def run(params: Any, structure: Any, hidden: Any, targets: Any) -> Any:
            if call.name == "loss":
                return layer.loss(params, structure, hidden, targets, **named)
            if call.name == "grad":
                return jax.grad(lambda vectors: layer.loss(params, structure, vectors, targets, **named).sum())(hidden)
            make = getattr(layer, call.name)
            return make(params, structure, hidden, *_positional(call, targets, named), **named)

        made = (jax.jit(run) if call.compiled else run)(self.params, self.structure, hidden, targets)
        made = made if isinstance(made, tuple) else (made,)
        return tuple(
            np.asarray(part if jnp.issubdtype(part.dtype, jnp.integer) else part.astype(float)) for part in made
        )


NATIVES: dict[str, type[Native]] = {"torch": TorchNative, "tensorflow": TensorFlowNative, "jax": JaxNative}


def _numpy(tensor: Any) -> NDArray:
    return np.asarray(tensor.numpy())


def _converted(
    tensor: Callable[[NDArray, str], Any], call: Call, arrays: Arrays, options: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Return hidden vectors, targets and all keyword arguments as tensors of a framework."""
    named = dict(options)
    if call.name in ("loss", "grad"):
        named |= {name: tensor(array, str(array.dtype)) for name, array in arrays.extra.items()}
        if arrays.token_weight is not None:
            named["token_weight"] = tensor(arrays.token_weight, str(arrays.token_weight.dtype))
    if call.name == "sample":
        named["uniforms"] = tensor(arrays.uniforms, str(arrays.uniforms.dtype))
    hidden_dtype = str(arrays.hidden.dtype) if arrays.hidden.dtype.kind != "f" else call.hidden_dtype
    target_dtype = str(arrays.targets.dtype) if arrays.targets.dtype.kind != "i" else call.target_dtype
    return tensor(arrays.hidden, hidden_dtype), tensor(arrays.targets, target_dtype), named


def _positional(call: Call, targets: Any, named: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a call takes besides the hidden vectors, and remove it from its keyword arguments."""
    if call.name == "target_log_probs":
        return (targets,)
    names = {"topk": ("k",), "beam": ("k", "width"), "sample": ("uniforms",)}.get(call.name, ())
    return tuple(named.pop(name) for name in names)


@cache
def _spec(method: str, dtype: str, without_bias: bool) -> LayerSpec:
    options: dict[str, Any] = {"bias": False} if without_bias else {}
    return layers.spec(method, counts=zipf_counts(VOCAB), dim=DIM, dtype=dtype, **options)


@cache
def _native(framework: str, method: str, dtype: str, without_bias: bool, form: int) -> Native:
    spec = _spec(method, dtype, without_bias)
    forms = registry.adapter(framework).forms(spec)
    if forms:
        spec = dataclasses.replace(spec, form=forms[form % len(forms)].id)
    return NATIVES[framework](framework, spec)


@cache
def _oracle(method: str, dtype: str, without_bias: bool) -> Layer:
    return layers.from_spec("numpy", dataclasses.replace(_spec(method, dtype, without_bias), dtype="float64"))


def rounded(array: NDArray, dtype: str) -> NDArray:
    """Return float64 values rounded to a dtype that NumPy need not have."""
    if dtype != "bfloat16":
        return array.astype(dtype).astype(np.float64)
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def _arrays(call: Call, spec: LayerSpec) -> Arrays:
    """Draw the arguments of a call without its fault."""
    rng = np.random.default_rng(call.seed)
    hidden = rounded(rng.standard_normal((*call.shape, DIM)), call.hidden_dtype)
    targets = rng.integers(0, VOCAB, call.shape)
    if call.padded:
        padding = rng.random(call.shape) < 1 / 3
        targets = np.where(padding, call.options.get("ignore_index", PADDING), targets)
        hidden = np.where(padding[..., None], np.nan, hidden)
    return Arrays(
        hidden,
        targets,
        rng.random(call.shape).astype(np.float32) if call.weighted else None,
        rng.random((*call.shape, spec.draws)).astype(np.float32),
        spec.draw_extra(np.random.default_rng(call.seed)) if call.name in ("loss", "grad") else {},
    )


def _with_fault(call: Call, arrays: Arrays, options: dict[str, Any]) -> None:
    """Make the fault of a call, in its arrays or options."""
    if call.fault is None:
        return
    argument, value = call.fault
    if argument == "dim":
        arrays.hidden = np.ones((*call.shape, DIM + value))
    elif argument == "hidden":
        arrays.hidden = np.ones((*call.shape, DIM), value)
    elif argument == "targets":
        if value == "float":
            arrays.targets = arrays.targets.astype(np.float32)
        else:
            arrays.targets = arrays.targets.copy()
            arrays.targets.flat[0] = value
    elif argument == "number of targets":
        arrays.targets = np.zeros(value, np.int64)
    elif argument == "uniforms":
        arrays.uniforms = arrays.uniforms[..., :-1] if value == "fewer" else arrays.uniforms[0]
    elif argument == "token_weight":
        arrays.token_weight = np.ones(value, np.float32)
    else:
        options[argument] = value


def outcome(framework: str, call: Call) -> str:
    """Make a call and judge it, as the module's docstring describes."""
    try:
        native = _native(framework, call.method, call.dtype, call.without_bias, call.form)
    except Unsupported as error:
        return f"unsupported: {error}"
    arrays, options = _arrays(call, native.spec), dict(call.options)
    right = dataclasses.replace(arrays)
    _with_fault(call, arrays, options)
    try:
        made = native.call(call, arrays, options)
    except (ValueError, TypeError) as error:
        return f"refused {type(error).__name__} in {len(str(error).splitlines())} lines: {error}"
    if call.fault is not None:
        if call.fault[0] == "targets" and call.compiled and all(np.isnan(part).any() for part in made):
            return "NaN"
        return f"accepted {call.fault}: {made[0].ravel()[:3]}"
    problem = _problem(call, right, made, _oracle(call.method, call.dtype, call.without_bias))
    return problem or "ok"


def _problem(call: Call, arrays: Arrays, made: tuple[NDArray, ...], oracle: Layer) -> str:
    """Return how a result differs from the definition's; empty if it does not."""
    hidden_ND = arrays.hidden.reshape(-1, DIM)
    tolerance = TOLERANCE[call.dtype]
    if call.name == "grad":  # has the precision of the hidden vectors
        tolerance = max(tolerance, ROUNDING[call.hidden_dtype])
    if call.name in ("loss", "grad"):
        return _unlike(made[0], _expected_loss(call, arrays, oracle), tolerance)
    if not len(hidden_ND):
        width = {"log_probs": (VOCAB,), "topk": (call.options.get("k"),), "beam": (call.options.get("k"),)}
        shape = (*call.shape, *width.get(call.name, ()))
        return "" if all(part.shape == shape for part in made) else f"shape {made[0].shape} is not {shape}"
    softcap = call.options.get("softcap")
    log_NV = oracle.log_probs(hidden_ND, softcap=softcap)
    if call.name == "log_probs":
        return _unlike(made[0], log_NV.reshape(*call.shape, VOCAB), tolerance)
    if call.name == "target_log_probs":
        rows = np.arange(len(log_NV)), arrays.targets.ravel()
        return _unlike(made[0], log_NV[rows].reshape(call.shape), tolerance)
    if call.name == "entropy":
        return _unlike(made[0], -(np.exp(log_NV) * log_NV).sum(axis=1).reshape(call.shape), tolerance)
    if call.name == "sample":
        chosen = made[0]
        if chosen.shape != call.shape or chosen.min() < 0 or chosen.max() >= VOCAB:
            return f"sampled {chosen.ravel()[:5]} of shape {chosen.shape}"
        drawing = {name: call.options.get(name) for name in ("top_k", "top_p")}
        uniforms_NU = arrays.uniforms.reshape(len(hidden_ND), -1)
        expected = oracle.sample(hidden_ND, uniforms_NU, temperature=call.options.get("temperature", 1.0), **drawing)
        exact = call.dtype in ("float32", "float64") and softcap is None
        return "" if not exact or (expected == chosen.ravel()).all() else f"sampled {chosen.ravel()}, not {expected}"
    return _unlike_best(call, made, log_NV, tolerance)


def _expected_loss(call: Call, arrays: Arrays, oracle: Layer) -> NDArray:
    """Return the loss or the gradient of its sum with respect to the hidden vectors."""
    options = {name: call.options[name] for name in ("label_smoothing", "z_loss", "softcap") if name in call.options}
    reduction = call.options.get("reduction", "mean")
    real = arrays.targets.ravel() != call.options.get("ignore_index", PADDING)
    hidden_ND, targets_N = arrays.hidden.reshape(-1, DIM), arrays.targets.ravel()
    weight_N = np.ones(len(targets_N)) if arrays.token_weight is None else arrays.token_weight.ravel().astype(float)
    losses_N, gradient_ND = np.zeros(len(targets_N)), np.zeros_like(hidden_ND)
    for row in np.flatnonzero(real):
        loss, gradient_1D, _ = oracle.loss_and_grads(
            hidden_ND[row : row + 1], targets_N[row : row + 1], **options, **arrays.extra
        )
        losses_N[row], gradient_ND[row] = loss, gradient_1D[0]
    total = weight_N[real].sum() if reduction == "mean" else 1.0
    scale_N = np.where(real, weight_N, 0) / (total if total > 0 else 1.0)
    if call.name == "grad":
        return (gradient_ND * scale_N[:, None]).reshape(arrays.hidden.shape)
    return (losses_N * scale_N).reshape(call.shape) if reduction == "none" else np.asarray((losses_N * scale_N).sum())


def _unlike_best(call: Call, made: tuple[NDArray, ...], log_NV: NDArray, tolerance: float) -> str:
    values, ids = made
    k = call.options["k"]
    if values.shape != (*call.shape, k) or ids.shape != values.shape:
        return f"shapes {values.shape} and {ids.shape}, not {(*call.shape, k)}"
    values_NK, ids_NK = values.reshape(-1, k), ids.reshape(-1, k).astype(np.int64)
    if ids_NK.min() < 0 or ids_NK.max() >= VOCAB or any(len(set(row)) < k for row in ids_NK.tolist()):
        return f"ids {ids_NK[0]}"
    reached_NK = np.isfinite(values_NK)
    if call.name == "topk" and not reached_NK.all():
        return f"values {values_NK[~reached_NK.all(axis=1)][0]}"
    if (np.diff(values_NK, axis=1)[reached_NK[:, 1:]] > 0).any():
        return "values that are not in order"
    own_NK = np.take_along_axis(log_NV, ids_NK, axis=1)
    problem = _unlike(np.where(reached_NK, values_NK, 0), np.where(reached_NK, own_NK, 0), tolerance)
    if call.name == "topk" and not problem:
        problem = _unlike(values_NK, -np.sort(-log_NV, axis=1)[:, :k], tolerance)
    return problem


def _unlike(made: NDArray, expected: NDArray, tolerance: float) -> str:
    if made.shape != expected.shape:
        return f"shape {made.shape} is not {expected.shape}"
    if np.allclose(made, expected, rtol=tolerance, atol=tolerance):
        return ""
    return f"differs by {np.abs(made - expected).max():.3g}: {made.ravel()[:3]} is not {expected.ravel()[:3]}"


def main(framework: str) -> None:
    if framework == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    for number, line in enumerate(sys.stdin, start=1):
        if framework == "jax" and number % CALLS_BETWEEN_CLEARING == 0:
            jax.clear_caches()  # thousands of compiled programs would take many gigabytes
        described = json.loads(line)
        described["shape"] = tuple(described["shape"])
        try:
            judgement = outcome(framework, Call(**described))
        except Exception as error:
            judgement = f"failed {type(error).__name__}: {error}"
        print("OUTCOME", " ".join(judgement.split()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
