"""What a task hands back for one cell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vocabench.harness.run.rows import Measurement

OK, DISAGREE = "ok", "disagree"


@dataclass(frozen=True)
class Result:
    """
    Attributes:
        agreement: As `vocabench.harness.measure.agreement.summary` gives it; its verdict stands beside every figure of
        the row.
        data: Provenance of the text, where the task read any.
    """

    measurements: list[Measurement]
    agreement: dict[str, Any]
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        return DISAGREE if self.agreement.get("verdict") == "disagree" else OK
