"""Execution of cells on the nodes of a Ray cluster. Each cell has cores, or GPUs of one node, to itself.

A cell is one Ray task. On its node the task starts the child process that measures, as `pool` does on one machine, and
streams the child's lines of progress and the row back as JSON. The rows are stored where the command runs, so a run
resumes with or without a cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from vocabench.harness.ascii_numbers import parse_count
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.harness.installing import pip_install
from vocabench.harness.run import pool, processes, provenance
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Row
from vocabench.harness.run.store import Store
from vocabench.impls.errors import BadInput

_PATIENCE = 5.0  # seconds without messages before the cluster is checked


def check(device: str, address: str | None, cores: int | None) -> None:
    """Raise `BadInput` if Ray or its cluster is missing or an argument is invalid, before any work is prepared."""
    _ray()
    if ":" in device:
        raise BadInput(f"device {device!r} with --executor ray, which hands out the GPUs itself: allowed: cpu, cuda")
    if cores is not None and cores < 1:
        raise BadInput(f"--cores {cores}: allowed: a whole number from 1")
    address = address or os.environ.get("RAY_ADDRESS", "auto")
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host:
        raise _no_cluster(address, "no address")
    try:
        # Ray itself would retry for minutes.
        socket.create_connection((host.strip("[]"), parse_count(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError, ValueError) as error:
        raise _no_cluster(address, str(error)) from error


def run(
    cells: Iterable[Cell],
    store: Store,
    *,
    deadline: float,
    progress: pool.Progress,
    address: str | None = None,
    cores: int | None = None,
) -> Iterator[Row]:
    """Measure cells as `pool.run` does, on a Ray cluster.

    A cell whose node is lost is measured once more, on another node; if that is lost too, it becomes an error row.

    Args:
        address: Address of the cluster, as for `ray.init`; None stands for the cluster running on this machine, or a
            new one.
        cores: Number of cores of each cell, and of threads of its framework; None gives a cell the whole node, or on
            a GPU its share of the node's cores.

    Raises:
        BadInput: There is no cluster at `address`, or none of its nodes has what a cell needs.
    """
    waiting = [cell for cell in cells if cell.key not in store]
    if not waiting:
        return
    ray = _ray()
    code = provenance.code_fingerprint()
    with _connected(ray, address):
        nodes = _nodes(ray)
        share = {gpus: cores or _share(nodes, gpus) for gpus in set(map(_gpus, waiting))}
        measure = ray.remote(max_retries=0)(_measure)

        def submit(cell: Cell) -> Any:
            gpus = _gpus(cell)
            task = measure.options(num_cpus=share[gpus], num_gpus=gpus, name=cell.label)
            return task.remote(cell.to_json(), deadline, share[gpus], code)

        _check_room(nodes, share)
        running = {submit(cell): cell for cell in waiting}
        lost: set[str] = set()
        while running:
            ready, _ = ray.wait(list(running), timeout=_PATIENCE)
            if not ready:
                _check_room(_nodes(ray), share)
                continue
            stream = ready[0]
            cell = running[stream]
            try:
                message = _received(ray.get(next(stream)))
            except ray.exceptions.OutOfMemoryError as error:
                message = _unanswered(cell, "oom", _first_line(error))
            except ray.exceptions.RayTaskError as error:
                message = _unanswered(cell, "error", f"the cell's node cannot measure: {_last_line(error)}")
            except ray.exceptions.RayError as error:
                if cell.key not in lost:
                    lost.add(cell.key)
                    del running[stream]
                    running[submit(cell)] = cell
                    message = "lost its node, goes to another"
                else:
                    message = _unanswered(cell, "error", f"lost its node twice: {_first_line(error)}")
            if isinstance(message, str):
                progress(cell, message)
            else:
                if processes.is_complete(message) or message.message:
                    del running[stream]
                store.append(message)
                yield message


def _measure(fields: dict[str, Any], deadline: float, cores: int, code: str) -> Iterator[str | dict[str, Any]]:
    """Yield, on the node, lines of progress, and the cell's row as JSON after each of its processes."""
    cell, row = Cell.from_json(fields), None
    yield ""
    with pool.Worker(cell.framework, threads=cores) as worker:
        while row is None or not (processes.is_complete(row) or row.message):
            worker.kill()  # each time in a new process
            for message in pool.measure(worker, cell, deadline, code=code, earlier=row):
                if isinstance(message, str):
                    yield message
                else:
                    row = message
                    yield row.to_json()


def _received(message: str | dict[str, Any]) -> str | Row:
    return message if isinstance(message, str) else Row.from_json(message)


def _ray() -> ModuleType:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise BadInput(
            f"--executor ray needs Ray, not installed here: allowed: '{pip_install('ray')}' first"
        ) from error
    return ray


@contextlib.contextmanager
def _connected(ray: ModuleType, address: str | None) -> Iterator[None]:
    # A cluster that is started here sends no usage statistics.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Nodes that share this machine's files import the same code; `IMPORT_ROOT` is needed if it is not installed there.
    path = os.pathsep.join(filter(None, [str(IMPORT_ROOT), os.environ.get("PYTHONPATH")]))
    shared = {name: value for name, value in os.environ.items() if name.startswith("VOCABENCH_")}
    try:
        ray.init(
            address,
            runtime_env={"env_vars": {**shared, "PYTHONPATH": path}},
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address or "the usual place", _first_line(error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _no_cluster(address: str, reason: str) -> BadInput:
    return BadInput(
        f"no Ray cluster at {address}: {reason}: allowed: auto, or the HOST:PORT that 'ray start --head' printed, on a "
        "machine that is in the cluster"
    )


def _gpus(cell: Cell) -> int:
    """Return the number of GPUs of one node that a cell needs."""
    return cell.settings.get("devices", 1) if cell.device == "cuda" else 0


def _nodes(ray: ModuleType) -> list[dict[str, float]]:
    """Return the resources of each live node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _share(nodes: list[dict[str, float]], gpus: int) -> int:
    """Return the cores of a cell, the same for every cell: with GPUs, as large a share of a node's as of its GPUs."""
    shares = [
        node.get("CPU", 0) * gpus // node["GPU"] if gpus else node.get("CPU", 0)
        for node in nodes
        if node.get("GPU", 0) >= gpus
    ]
    return int(min((share for share in shares if share >= 1), default=1))


def _check_room(nodes: list[dict[str, float]], share: Mapping[int, int]) -> None:
    """Raise `BadInput` if a cell would wait forever.

    Args:
        share: Number of cores of a cell, by its number of GPUs.
    """
    for gpus, cores in share.items():
        if not any(node.get("CPU", 0) >= cores and node.get("GPU", 0) >= gpus for node in nodes):
            here = ", ".join(f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes)
            raise BadInput(
                f"no node of the cluster has the {cores} cores and {gpus} GPUs of a cell (nodes have {here}): allowed: "
                "fewer --cores, or more nodes and the same command again, which keeps the rows so far"
            )


def _unanswered(cell: Cell, status: str, message: str) -> Row:
    row = pool.failed(cell, status, message)
    # The machine of the lost node is unknown.
    return dataclasses.replace(row, provenance=dataclasses.replace(row.provenance, machine={}))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
