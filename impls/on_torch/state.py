"""The structure of a layer, which gives its parameters their meaning, in its state and after moves and casts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vocabench.impls.spec import Arrays, LayerSpec

_DIGEST = "structure_digest"


class Structured(nn.Module):
    """A module whose state holds the structure of its specification, and whose other buffers follow from it.

    Buffers: `structure_digest` (32,) uint8, and `structure_<name>` for each array of `spec.structure`, all persistent.
    Integers keep their dtype in every cast, and so do floating-point buffers: they hold constants.

    Loading refuses a state whose digest is another one, strict or not: its parameters have another meaning.
    """

    structure_digest: Tensor

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.spec = spec
        digest = torch.frombuffer(bytearray(spec.structure_digest), dtype=torch.uint8)
        self.register_buffer(_DIGEST, digest)
        for name, array in self._kept_structure().items():
            kept = array if array.dtype.kind in "iu" else array.astype(np.float32)  # not every device has float64
            self.register_buffer(f"structure_{name}", torch.from_numpy(np.array(kept)))

    def _kept_structure(self) -> Arrays:
        """Return the arrays of the structure that the state holds."""
        return self.spec.structure

    def _blank(self) -> Structured:
        """Return another layer of the same specification, whose parameters have no values yet."""
        return type(self)(self.spec)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Structured:
        before = dict(self._buffers)
        was_empty = self.structure_digest.is_meta
        super()._apply(fn, recurse)
        if was_empty and not self.structure_digest.is_meta:
            self._restore_buffers([name for name, _ in self.named_buffers()])
            return self
        for name, buffer in before.items():
            after = self._buffers[name]
            if buffer is not None and after is not None and after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        return self

    def restore_derived_buffers(self) -> None:
        """Give the buffers that a state does not hold their values, after memory without any was allocated for them.

        Loaders that bypass `load_state_dict` call it once the state is in place.
        """
        derived = [
            f"{prefix}.{name}" if prefix else name
            for prefix, module in self.named_modules()
            for name in module._non_persistent_buffers_set
        ]
        self._restore_buffers(derived)

    @torch.no_grad()
    def _restore_buffers(self, names: Iterable[str]) -> None:
        """Give the named buffers the values that follow from the specification."""
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            values = dict(self._blank().named_buffers())
        buffers = dict(self.named_buffers())
        for name in names:
            if name in buffers and not buffers[name].is_meta:
                buffers[name].copy_(values[name])

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        refusal = self._refusal(state_dict.get(prefix + _DIGEST))
        if refusal:
            error_msgs.append(refusal)
            # What PyTorch reads next, for the modules of this one, is the state that they have.
            for name in [name for name in state_dict if name.startswith(prefix)]:
                del state_dict[name]
            state_dict.update(self.state_dict(prefix=prefix))
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _refusal(self, digest: Tensor | None) -> str | None:
        """Return why a state with this digest is refused, or None."""
        method = self.spec.method
        if digest is None:
            return f"state of {method} has no structure_digest: allowed: a state that this version of Vocabench saved"
        if self._adopts_structure() or digest.is_meta or bytes(digest.tolist()) == self.spec.structure_digest:
            return None
        return (
            f"state of {method} has structure_digest={bytes(digest.tolist()).hex()[:16]}...: allowed: "
            f"{self.spec.structure_digest.hex()[:16]}..., that of a layer with the same counts, options and seed"
        )

    def _adopts_structure(self) -> bool:
        """Return whether the layer takes over the structure of a state that it loads."""
        return False
