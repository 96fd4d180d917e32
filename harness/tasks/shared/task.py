"""What a module of `harness/tasks/` provides, as its value `TASK`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # all of these import the registry, which reads tasks
    from vocabench.harness.run.cells import Cell
    from vocabench.harness.run.rows import Measurement
    from vocabench.harness.run.settings import Setting
    from vocabench.harness.tasks.shared.data import Load, Progress
    from vocabench.harness.tasks.shared.evaluation import Evaluation
    from vocabench.harness.tasks.shared.result import Result


@dataclass(frozen=True)
class Task:
    """A measurement of one cell: a method in a framework, at one vocabulary size.

    Attributes:
        settings: The settings that a sweep or the command line may give, with their defaults.
        run: Measures a cell in the process of its framework.
        load: Loads the data of a cell, for a task that reads a dataset.
        fixed_by: Returns what the data decides about a sweep, such as its methods, if it decides anything.
        check: Raises `BadInput` for settings that are not allowed together, before any data is loaded.
        extra_methods: Methods without an output layer, which are measured once, for comparison.
        seeded_methods: Those of `extra_methods` that depend on the seed, which are measured once for each seed.
        selected_methods: Those of `extra_methods` that run only if they are selected, since they need a setting or take
            long.
        fresh_process: Whether each cell needs a process of its own, because it would measure what an earlier one left.
        repeat: Measures the times of a cell once more in another process, given the measurements of the first one, for
            a task with a setting `processes` whose cells the run distributes over processes.
        evaluation: Evaluates a network that the task has saved, for a task with a setting `save` for networks.
    """

    settings: Mapping[str, Setting]
    run: Callable[[Cell, Progress], Result]
    load: Load[Any] | None = None
    fixed_by: Callable[[Any], dict[str, Any]] | None = None
    check: Callable[[Mapping[str, Any]], None] | None = None
    extra_methods: tuple[str, ...] = ()
    seeded_methods: tuple[str, ...] = ()
    selected_methods: tuple[str, ...] = ()
    fresh_process: bool = False
    repeat: Callable[[Cell, Sequence[Measurement], Progress], list[Measurement]] | None = None
    evaluation: Evaluation[Any] | None = None
