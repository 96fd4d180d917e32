"""Cells: the smallest units of work, each measured once and kept as one row."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vocabench.harness.run import schema
from vocabench.impls.errors import BadInput

_ALLOWED = "allowed: the fields of a row's cell"


@dataclass(frozen=True)
class Cell:
    """What to measure. Two cells with equal fields are the same measurement.

    Attributes:
        vocab: Size of the vocabulary.
        dim: Size of a hidden vector.
        tokens: Number of tokens in a batch.
        dataset_sha256: Checksum of the data, so that rows over different data never count as the same.
        options: Options of the method that differ from their defaults.
        settings: All settings of the task.
    """

    suite: str
    task: str
    framework: str
    method: str
    vocab: int
    dim: int
    tokens: int
    device: str = "cpu"
    precision: str = "float32"
    seed: int = 0
    dataset: str = ""
    dataset_sha256: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Cell:
        """Raise `BadInput` if `fields` are not exactly the fields of a cell."""
        if missing := [name for name in _SCHEMAS if name not in fields]:
            raise BadInput(f"not a cell: missing {', '.join(missing)}: {_ALLOWED}")
        if unknown := [name for name in fields if name not in _SCHEMAS]:
            raise BadInput(f"not a cell: unknown field {unknown[0][:60]!r}: {_ALLOWED}")
        if wrong := _CELL(fields):
            raise BadInput(f"not a cell: {wrong.removeprefix('.')}")
        return cls(**fields)

    @property
    def key(self) -> str:
        """Hash of the contents, by which an interrupted run resumes."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def label(self) -> str:
        """Name of the cell in progress lines and errors."""
        layer = f"{self.task} {self.framework} {self.method}{self.variant}"
        dataset = f" {self.dataset}" if self.dataset else ""
        vocab = f" V={self.vocab:,}" if self.vocab else ""
        return f"{layer}{dataset}{vocab} {self.precision} {self.device}"

    @property
    def variant(self) -> str:
        """Options that differ from the defaults, as `[a=1,b=2]`, or ""."""
        return variant(self.options)


_SCHEMAS = {
    **dict.fromkeys(("suite", "task", "framework", "method"), schema.text),
    **dict.fromkeys(("vocab", "dim", "tokens"), schema.whole(0)),
    **dict.fromkeys(("device", "precision"), schema.text),
    "seed": schema.whole(0),
    **dict.fromkeys(("dataset", "dataset_sha256"), schema.text),
    **dict.fromkeys(("options", "settings"), schema.record({})),
}

_CELL = schema.record(_SCHEMAS)


def labels(cells: Sequence[Cell]) -> list[str]:
    """Return the labels of cells, with the sizes and numeric settings in which those of one label and seed differ."""
    alike: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for cell in cells:
        alike.setdefault((cell.label, cell.seed), []).append(_numbers(cell))
    found = []
    for cell in cells:
        others, own = alike[cell.label, cell.seed], _numbers(cell)
        differing = [name for name, value in own.items() if any(other.get(name) != value for other in others)]
        found.append(" ".join((cell.label, *(f"{name}={own[name]}" for name in differing))))
    return found


def _numbers(cell: Cell) -> dict[str, Any]:
    settings = {name: value for name, value in cell.settings.items() if isinstance(value, int | float)}
    return {"dim": cell.dim, "tokens": cell.tokens, **settings}


def variant(options: Mapping[str, Any]) -> str:
    def text(value: object) -> str:
        return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    return f"[{','.join(f'{name}={text(value)}' for name, value in sorted(options.items()))}]" if options else ""
