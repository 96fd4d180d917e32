"""Evaluation of saved networks: what a task provides for `vocabench eval`, and what is the same in all tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from vocabench.harness import network_folder, registry
from vocabench.harness.network_folder import SavedNetwork
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.settings import task_settings
from vocabench.harness.tasks.shared.data import Data, Progress
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.models.network import Network


@dataclass(frozen=True)
class Request:
    """The data that a network is to be scored on.

    Attributes:
        dataset: Name or path of a dataset; None for the one that the network was trained on.
        split: Split of the dataset; None for the one that the network was scored on after training.
        settings: Settings of the task that differ from those of the training, as text.
    """

    dataset: str | None = None
    split: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


class HeldOut(Protocol):
    """Checked data that a network is scored on. It can be sent to another process."""

    @property
    def name(self) -> str:
        """Name of its dataset."""
        ...

    @property
    def split(self) -> str: ...

    @property
    def remark(self) -> str:
        """What the command adds to the number of samples, starting with a comma, or ""."""
        ...

    def details(self) -> dict[str, Any]:
        """Return further entries for the JSON object that the command prints."""
        ...


@dataclass(frozen=True)
class HeldOutSamples:
    """Samples with a text each that a saved network is scored on.

    Attributes:
        cell: The cell of the network with their dataset, split and settings.
        is_own: Whether they are of the dataset that the network was trained on.
        name: Name of their dataset.
        skipped: Number of unusable samples by reason.
    """

    cell: Cell
    is_own: bool
    name: str
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def split(self) -> str:
        return self.cell.settings["split"]

    @property
    def remark(self) -> str:
        return "".join(f", skipped: {reason} {count:,}" for reason, count in self.skipped.items())

    def details(self) -> dict[str, Any]:
        return {"skipped": dict(self.skipped)}


@dataclass(frozen=True)
class Scores:
    """The scores of a network in one framework.

    Attributes:
        values: Scores by quantity, that of the task first.
        counted: What they are the scores of, such as "tokens".
        count: Its number.
        records: Objects of a file for `vocabench score`, one for each sample.
    """

    values: Mapping[str, float]
    counted: str
    count: int
    records: Sequence[Mapping[str, Any]]


AnyHeldOut = TypeVar("AnyHeldOut", bound=HeldOut)
AnyNetwork = TypeVar("AnyNetwork", bound=Network[Any])


@dataclass(frozen=True)
class Evaluation(Generic[AnyHeldOut]):
    """How a task evaluates a network that it has saved.

    Attributes:
        data: Checks the data of a request, in the process of the command.
        score: Scores the network of a folder in the process of a framework, on a device.
        settings: The settings that may differ from those of the training.
    """

    data: Callable[[SavedNetwork, Request, Progress], AnyHeldOut]
    score: Callable[[Path, str, str, AnyHeldOut], Scores]
    settings: tuple[str, ...] = ()


def of_task(task: str, request: Request) -> Evaluation[Any]:
    """Return the evaluation of a task that saves networks.

    Raises:
        BadInput: A setting of the request may not differ from that of the training.
    """
    found = registry.task(task).evaluation
    assert found is not None, task
    for name in request.settings:
        if name not in found.settings:
            raise unknown(f"setting of an evaluation of {task}", name, found.settings)
    return found


def cell_for(saved: SavedNetwork, request: Request, whole: Mapping[str, Any]) -> Cell:
    """Return the cell of the network with the dataset, the split and the settings of a request.

    Args:
        saved: The network.
        request: The request.
        whole: The settings that select all of another dataset.

    Raises:
        BadInput: A setting is not allowed.
    """
    cell = saved.cell
    settings = task_settings(cell.task, cell.settings, request.settings)
    if request.dataset is not None:
        settings |= {name: value for name, value in whole.items() if name not in request.settings}
    settings["split"] = saved.scores["split"] if request.split is None else request.split
    return dataclasses.replace(cell, dataset=request.dataset or cell.dataset, settings=settings)


def check_split(name: str, split: str, splits: Collection[str]) -> None:
    if split not in splits:
        raise BadInput(f"split {split!r} of dataset {name!r}: allowed: {', '.join(splits)}")


def check_own(saved: SavedNetwork, data: Data, *vocabularies: tuple[Sequence[str], Sequence[str]]) -> None:
    """Check that data are those that a network was trained on.

    Args:
        saved: The network.
        data: The data.
        vocabularies: Words of the data with words of the network, which must be equal.

    Raises:
        BadInput: They differ.
    """
    cell = saved.cell
    if data.sha256 != cell.dataset_sha256 or any(list(ours) != list(theirs) for ours, theirs in vocabularies):
        raise BadInput(
            f"dataset {cell.dataset!r} is not the one that the network was trained on: allowed: the same data, with "
            f"sha256 {cell.dataset_sha256[:12]}..., or --dataset for other data"
        )


def opened(folder: Path, framework: str, device: str, kind: type[AnyNetwork]) -> tuple[SavedNetwork, AnyNetwork]:
    """Return a saved network, and the network itself on a device, in the process of its framework.

    Raises:
        BadInput: The framework has no such device.
    """
    devices = registry.adapter(framework).devices()
    if device not in devices:
        raise BadInput(f"device {device!r}: {framework} has none here: allowed: {', '.join(devices)}")
    saved = network_folder.load(folder)
    network = saved.network(framework, device)
    assert isinstance(network, kind)
    return saved, network
