"""The sizes of recognizers for the speech task, and their settings."""

from __future__ import annotations

from vocabench.harness.run.cells import Cell
from vocabench.harness.tasks.shared.optimizer import optimizer_of
from vocabench.impls.models.recognizer import RecognizerConfig

SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "channels": 8, "heads": 2, "feed_forward": 128, "kernel": 7, "encoder_layers": 2, "decoder_layers": 1,
    },
    "small": {
        "channels": 64, "heads": 4, "feed_forward": 576, "kernel": 15, "encoder_layers": 6, "decoder_layers": 2,
    },
    "paper": {
        "channels": 256, "heads": 4, "feed_forward": 2048, "kernel": 31, "encoder_layers": 12, "decoder_layers": 6,
    },
}  # fmt: skip


def config_of(cell: Cell, end: int) -> RecognizerConfig:
    """Return the settings of the recognizer for a cell of the speech task."""
    settings = cell.settings
    return RecognizerConfig(
        end=end,
        dim=cell.dim,
        **SIZES[settings["size"]],
        smoothing=settings["smoothing"],
        ctc_weight=settings["ctc_weight"],
        optimizer=optimizer_of(settings),
        warmup=settings["warmup"],
        seed=cell.seed,
    )
