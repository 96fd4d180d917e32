"""The inputs of a layer's calls: checked, and flattened to one axis of tokens.

Values are read where that costs next to nothing: in eager mode on a CPU. Elsewhere the loss of a target outside the
vocabulary is NaN.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vocabench.impls import calls, targets
from vocabench.impls.errors import BadInput
from vocabench.impls.on_torch.tensors import at_least_float32
from vocabench.impls.spec import LayerSpec

_INTEGERS = frozenset(
    (
        *(torch.int64, torch.int32, torch.int16, torch.int8),
        *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    )
)
_FEW = 32  # targets up to which a list is read faster than an array


class Targets(NamedTuple):
    """The targets of a batch.

    Attributes:
        words_N: int64 word ids; some word of the vocabulary at padding and where a target is outside the vocabulary.
        padding_N: True at padding; None if the host knows that there is none.
        outside_N: True where a target is outside the vocabulary; None if the host knows that all are inside.
    """

    words_N: Tensor
    padding_N: Tensor | None = None
    outside_N: Tensor | None = None


def is_readable(tensor: Tensor) -> bool:
    """Return whether the host can read the values at once: no device computes them and no function is traced."""
    return (
        tensor.is_cpu
        and type(tensor) is Tensor
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._get_tracing_state()
    )


def check_local(parameter: Tensor, method: str) -> None:
    """Refuse a parameter of which this process has a part only, as FSDP2 leaves it outside `forward`."""
    if hasattr(parameter, "device_mesh"):
        raise BadInput(
            f"parameters of {method} are sharded: allowed: calls of forward, or of methods that "
            "torch.distributed.fsdp.register_fsdp_forward_method has registered"
        )


def check_hidden(hidden: object, dim: int) -> None:
    """Refuse hidden vectors that are not a (..., D) tensor of a floating dtype."""
    if not isinstance(hidden, Tensor):
        raise BadInput(f"hidden is a {type(hidden).__name__}: allowed: a torch.Tensor")
    calls.check_hidden(hidden.shape, dim, hidden.dtype, floating=hidden.is_floating_point())


def check_targets(targets: object, leading: torch.Size) -> None:
    """Refuse targets that are not a tensor of integers with the leading axes of the hidden vectors."""
    if not isinstance(targets, Tensor):
        raise BadInput(f"targets is a {type(targets).__name__}: allowed: a torch.Tensor")
    calls.check_targets(targets.shape, leading, targets.dtype, integer=targets.dtype in _INTEGERS)


def read_targets(targets_N: Tensor, vocab: int, ignore_index: int | None) -> Targets:
    """Separate words from padding and from ids outside the vocabulary. There is at least one target.

    Raises:
        BadInput: The host can read that a target is neither a word nor padding.
    """
    if targets_N.dtype is not torch.int64:
        targets_N = targets_N.long()
    if not is_readable(targets_N):
        words_N = targets_N.clamp(0, vocab - 1)
        outside_N = words_N != targets_N
        if ignore_index is None:
            return Targets(words_N, None, outside_N)
        padding_N = targets_N == ignore_index
        return Targets(words_N, padding_N, outside_N & ~padding_N)
    if len(targets_N) <= _FEW:
        values = targets_N.tolist()
        if min(values) >= 0 and max(values) < vocab and ignore_index not in values:
            return Targets(targets_N)
        array_N = np.array(values)
    else:
        array_N = targets_N.numpy()
        lowest, highest = int(array_N.min()), int(array_N.max())
        inside = lowest >= 0 and highest < vocab
        if inside and (ignore_index is None or not lowest <= ignore_index <= highest):
            return Targets(targets_N)
    real_N = targets.real_targets(array_N, vocab, ignore_index)
    if real_N.all():
        return Targets(targets_N)
    padding = torch.from_numpy(~real_N)
    return Targets(targets_N.masked_fill(padding, 0), padding)


def without_padding(hidden_ND: Tensor, padding_N: Tensor | None) -> Tensor:
    """Return hidden vectors with zeros at padding, where NaN and infinity would reach the gradients of parameters."""
    return hidden_ND if padding_N is None else hidden_ND.masked_fill(padding_N[:, None], 0.0)


def check_token_weight(token_weight: object, leading: torch.Size) -> Tensor:
    """Return (N,) checked weights of the tokens."""
    if not isinstance(token_weight, Tensor):
        raise BadInput(f"token_weight is a {type(token_weight).__name__}: allowed: a torch.Tensor, or None")
    floating = token_weight.is_floating_point()
    calls.check_token_weight(token_weight.shape, leading, token_weight.dtype, floating=floating)
    return token_weight.reshape(-1)


def check_uniforms(uniforms: object, leading: torch.Size, draws: int) -> Tensor:
    """Return (N, U) checked uniform numbers, at least in float32 and below 1 in that dtype too."""
    if not isinstance(uniforms, Tensor):
        raise BadInput(f"uniforms is a {type(uniforms).__name__}: allowed: a torch.Tensor, or None")
    floating = uniforms.is_floating_point()
    calls.check_uniforms(uniforms.shape, leading, draws, uniforms.dtype, floating=floating)
    uniforms = at_least_float32(uniforms)
    if is_readable(uniforms):
        targets.check_uniforms(uniforms.detach().numpy())
    return uniforms.reshape(-1, draws).clamp(max=targets.BELOW_ONE)


def check_extra(name: str, value: object, spec: LayerSpec, leading: torch.Size) -> Tensor:
    """Return a random input of a loss: word ids (S,), or (N, S) for each token, or (V,) numbers.

    Raises:
        BadInput: It has another shape or dtype, or the host can read that an id is not a word.
    """
    if not isinstance(value, Tensor):
        raise BadInput(f"{name} is a {type(value).__name__}: allowed: a torch.Tensor")
    kinds = {"floating": value.is_floating_point(), "integer": value.dtype in _INTEGERS}
    calls.check_input(name, value.shape, value.dtype, spec, leading, **kinds)
    extra = spec.definition.extra[name]
    if extra.for_each_word:
        return value
    value = value.long()
    if is_readable(value):
        targets.check_ids(name, value.numpy(), spec.vocab)
    return value.reshape(-1, value.size(-1)) if extra.for_each_token(spec.options) else value


def seed_from(generator: torch.Generator | None) -> int:
    """Draw a seed for NumPy's generator from PyTorch's, the default one of the CPU if None."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**63 - 1, (), generator=generator, device=device))


def on(device: torch.device, arrays: Iterable[tuple[str, np.ndarray]]) -> dict[str, Tensor]:
    """Return arrays on the device."""
    return {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in arrays}


def masked(losses_N: Tensor, batch: Targets) -> Tensor:
    """Return the losses with 0 at padding and NaN where a target is outside the vocabulary."""
    if batch.padding_N is not None:
        losses_N = losses_N.masked_fill(batch.padding_N, 0.0)
    return losses_N if batch.outside_N is None else losses_N.masked_fill(batch.outside_N, torch.nan)


def nothing_found(hidden_ND: Tensor, leading: torch.Size, k: int) -> tuple[Tensor, Tensor]:
    """Return values and ids (..., K) of no hidden vectors."""
    values = at_least_float32(hidden_ND).new_zeros(*leading, k)
    return values, torch.zeros(values.shape, dtype=torch.int64, device=values.device)
