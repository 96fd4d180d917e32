"""A pre-norm transformer decoder over an encoder's frames in PyTorch.

See `impls/models/recognizer.py` for the formulas. Shape letters: B sequences, T units, S frames, H heads, E = D / H, R
decoded rows: the same number for each of the B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, cat, nn
from torch.nn import functional as F

from vocabench.impls.models.recognizer import NORM_EPSILON, RecognizerConfig

KeysValues = tuple[Tensor, Tensor]  # (B, H, S, E) each


class Attention(nn.Module):
    """The projections of multi-head attention, and the norm before it."""

    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm = nn.LayerNorm(config.dim, NORM_EPSILON)
        self.query = nn.Linear(config.dim, config.dim)
        self.key = nn.Linear(config.dim, config.dim)
        self.value = nn.Linear(config.dim, config.dim)
        self.out = nn.Linear(config.dim, config.dim)

    def split(self, x_BTD: Tensor) -> Tensor:
        """Return (B, T, D) as (B, H, T, E)."""
        return x_BTD.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def keys_values(self, memory_BSD: Tensor) -> KeysValues:
        return self.split(self.key(memory_BSD)), self.split(self.value(memory_BSD))

    def attend(
        self, query_BHTE: Tensor, memory: KeysValues, mask: Tensor | None = None, *, causal: bool = False
    ) -> Tensor:
        """Return the (B, T, D) attention output; `mask` is that of `F.scaled_dot_product_attention`."""
        mixed_BHTE = F.scaled_dot_product_attention(query_BHTE, *memory, attn_mask=mask, is_causal=causal)
        return self.out(mixed_BHTE.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config: RecognizerConfig, activation: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim, NORM_EPSILON)
        self.add_module("in", nn.Linear(config.dim, config.feed_forward))
        self.activation = activation
        self.out = nn.Linear(config.feed_forward, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.activation(self.get_submodule("in")(self.norm(x))))


class DecoderBlock(nn.Module):
    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__()
        self.self = Attention(config)
        self.cross = Attention(config)
        self.feed = FeedForward(config, nn.ReLU(inplace=True))

    def forward(
        self, x_RTD: Tensor, frames: KeysValues, real_B11S: Tensor, past: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        """Return (R, T, D), and the keys and values of all units so far, including the past.

        Args:
            x_RTD: All units, or one unit if there is a past.
            frames: `cross.keys_values` of the encoder's frames.
            real_B11S: False at padding.
            past: The keys and values returned for the previous units.
        """
        normed_RTD = self.self.norm(x_RTD)
        new = self.self.keys_values(normed_RTD)
        units = new if past is None else (cat([past[0], new[0]], dim=2), cat([past[1], new[1]], dim=2))
        query = self.self.split(self.self.query(normed_RTD))
        x_RTD = x_RTD + self.self.attend(query, units, causal=past is None)
        # Cross-attention treats a sequence's rows like units of one row, so that its frames are not copied.
        x_BWD = x_RTD.reshape(len(real_B11S), -1, x_RTD.shape[2])
        query = self.cross.split(self.cross.query(self.cross.norm(x_BWD)))
        x_BWD = x_BWD + self.cross.attend(query, frames, real_B11S)
        return (x_BWD + self.feed(x_BWD)).view_as(x_RTD), units


class Decoder(nn.Module):
    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.dim, NORM_EPSILON)

    def memory(self, frames_BSD: Tensor) -> list[KeysValues]:
        """Return the keys and values of the encoder's frames for each block."""
        return [block.cross.keys_values(frames_BSD) for block in self._blocks]

    def forward(
        self, x_RTD: Tensor, memory: Sequence[KeysValues], real_B11S: Tensor, past: Sequence[KeysValues] | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """Return (R, T, D) hidden vectors, and the `past` to pass with the next unit."""
        new_past = []
        for number, block in enumerate(self._blocks):
            x_RTD, units = block(x_RTD, memory[number], real_B11S, past[number] if past else None)
            new_past.append(units)
        return self.norm(x_RTD), new_past

    @property
    def _blocks(self) -> list[DecoderBlock]:
        return list(self.blocks)  # type: ignore[arg-type]
