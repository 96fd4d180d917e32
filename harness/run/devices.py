"""What the frameworks of this machine compute on, determined in child processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vocabench.harness.run.pool import Worker, WorkerDied
from vocabench.harness.run.settings import check_has_device
from vocabench.impls.errors import BadInput

_START_DEADLINE = 300.0  # seconds for a framework to be imported and described


def describe(framework: str) -> dict[str, Any]:
    """Return devices and versions of a framework, determined in a child process."""
    with Worker(framework) as worker:
        (message,) = worker.ask({"describe": True}, deadline=_START_DEADLINE)
        return message["result"]


def check(frameworks: Iterable[str], device: str, *, every: bool) -> None:
    """Raise `BadInput` if a framework does not have the device.

    Args:
        frameworks: Installed frameworks.
        every: Whether all of them must have it. Otherwise one is enough: the cells of the others are skipped.
    """
    if device == "cpu":
        return
    lacking: list[BadInput] = []
    for framework in (frameworks := list(frameworks)):
        try:
            check_has_device(framework, describe(framework)["devices"], device)
        except (WorkerDied, TimeoutError) as error:
            lacking.append(BadInput(f"framework {framework!r} does not start: {error}"))
        except BadInput as error:
            lacking.append(error)
    if lacking and (every or len(lacking) == len(frameworks)):
        raise lacking[0]
