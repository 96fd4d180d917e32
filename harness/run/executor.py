"""The place where the cells of a run are measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Executor:
    """This machine ("local"), or a Ray cluster ("ray").

    Attributes:
        address, cores: Address of the cluster and cores per cell, as `ray_pool.run` takes them.
    """

    kind: str = "local"
    address: str | None = None
    cores: int | None = None


LOCAL = Executor()
