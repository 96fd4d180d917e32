"""The place where the cells of a run are measured."""

from __future__ import annotations

from dataclasses import dataclass

from vocabench.impls.errors import unknown

KINDS = ("local", "ray")


@dataclass(frozen=True)
class Executor:
    """This machine ("local"), or a Ray cluster ("ray").

    Attributes:
        address, cores: Address of the cluster and cores per cell, as `ray_pool.run` takes them.
    """

    kind: str = "local"
    address: str | None = None
    cores: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("executor", self.kind, KINDS)


LOCAL = Executor()
